package e2e

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// openChannel asks a node for a side channel.
func openChannel(address string) (net.Conn, int, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, 0, err
	}
	_ = c.SetDeadline(time.Now().Add(hostileLimit))
	_, _ = io.WriteString(c, "GET /packhorse/channel HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: "+
		"packhorse-channel/1\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		c.Close()
		return nil, 0, err
	}
	return c, resp.StatusCode, nil
}

// TestChannelsLeft opens a thousand side channels and does not use them. Their number is limited, the node reports the
// limit, and it closes them after a while.
func TestChannelsLeft(t *testing.T) {
	t.Parallel()
	p := newPair(t, false)
	var left []net.Conn
	refused := 0
	for range 1000 { // the gateway has one, too
		c, status, err := openChannel(p.node.listen)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		switch status {
		case http.StatusSwitchingProtocols:
			left = append(left, c)
		case http.StatusServiceUnavailable:
			refused++
		default:
			t.Fatalf("status %d", status)
		}
	}
	if len(left) < 900 {
		t.Errorf("%d channels were opened, %d refused", len(left), refused)
	}
	p.found() // small requests need none
	eventually(t, "the node has closed them", func() bool { return p.metric(p.node, "packhorse_channels") <= 1 })
	for _, c := range left {
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Fatal("got data on an unused channel, want none before its end")
		}
		c.Close()
	}
	p.clone("one")
	p.letsGo(p.node, 0)

	// And those that are left at their opener's end are gone at once.
	for range 100 {
		if c, _, err := openChannel(p.node.listen); err == nil {
			c.Close()
		}
	}
	p.letsGo(p.node, 0)
}

// TestAbsurdCallers sends a node what no gateway sends.
func TestAbsurdCallers(t *testing.T) {
	t.Parallel()
	p := newPair(t, false)
	call := func(body string, fields ...hpack.HeaderField) string {
		var b bytes.Buffer
		b.WriteString(http2.ClientPreface)
		f := http2.NewFramer(&b, nil)
		_ = f.WriteSettings()
		var block bytes.Buffer
		enc := hpack.NewEncoder(&block)
		for _, h := range append([]hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "localhost"},
			{Name: ":path", Value: "/packhorse.internal.v1.SessionService/UploadPack"},
			{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
		}, fields...) {
			_ = enc.WriteField(h)
		}
		first := block.Next(16 << 10)
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first, EndHeaders: block.Len() == 0})
		for block.Len() > 0 {
			part := block.Next(16 << 10)
			_ = f.WriteContinuation(1, block.Len() == 0, part)
		}
		for len(body) > 0 {
			k := min(len(body), 16<<10)
			_ = f.WriteData(1, false, []byte(body[:k]))
			body = body[k:]
		}
		return b.String()
	}
	message := func(length uint32, flags byte) string {
		return string(binary.BigEndian.AppendUint32([]byte{flags}, length))
	}
	frame := func(length int, kind byte) string {
		return http2.ClientPreface + string([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) +
			string([]byte{byte(length >> 16), byte(length >> 8), byte(length), kind, 0, 0, 0, 0, 1})
	}
	pings := func() string {
		var b bytes.Buffer
		b.WriteString(http2.ClientPreface)
		f := http2.NewFramer(&b, nil)
		_ = f.WriteSettings()
		for i := range 20_000 {
			_ = f.WritePing(false, [8]byte{byte(i)})
		}
		return b.String()
	}
	start := "\x53\x00\x00\x00\x00\x00\x00\x00"
	upgrade := "GET /packhorse/channel HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: " +
		"packhorse-channel/1\r\n"
	for name, request := range map[string]string{
		"message of 4 GB":           call(message(1<<32-1, 0)),
		"message of 4 GB, begun":    call(message(1<<32-1, 0) + strings.Repeat("x", 1<<20)),
		"message above the limit":   call(message(4<<20+1, 0) + strings.Repeat("x", 32<<10)),
		"compressed message":        call(message(100, 1) + strings.Repeat("x", 100)),
		"message of another type":   call(message(100, 0) + strings.Repeat("\xff", 100)),
		"field of 2 GB inside":      call(message(10, 0) + "\x0a\xff\xff\xff\xff\x07\x00\x00\x00\x00"),
		"headers without an end":    call("", hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 8<<20)}),
		"a thousand headers":        call("", make([]hpack.HeaderField, 1000)...),
		"deadline of ages":          call("", hpack.HeaderField{Name: "grpc-timeout", Value: "99999999999999999999H"}),
		"frame of 16 MB":            frame(1<<24-1, 0),
		"settings of 16 MB":         frame(1<<24-1, 4),
		"unknown frame":             frame(10, 0xee) + strings.Repeat("x", 10),
		"pings without a break":     pings(),
		"long line":                 strings.Repeat("x", 4<<20),
		"upgrade and a long header": upgrade + "X: " + strings.Repeat("x", 4<<20) + "\r\n\r\n",
		"upgrade with a body":       upgrade + "Content-Length: 99999999999\r\n\r\n" + strings.Repeat("x", 1<<20),
		"channel of absurd length": upgrade + "\r\n" + start +
			"\x00\x00\x00\x00\x00\x00\x00\x01\x7f\xff\xff\xff\xff\xff\xff\xff" + strings.Repeat("x", 1<<20),
		"JSON of 64 MB": "POST /packhorse.v1.RefService/Resolve HTTP/1.1\r\nHost: localhost\r\nContent-Type: " +
			"application/json\r\nContent-Length: 67108864\r\n\r\n{\"repository\":\"" +
			strings.Repeat("x", 5<<20),
	} {
		c, err := net.Dial("tcp", p.node.listen)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_ = c.SetDeadline(time.Now().Add(hostileLimit))
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = io.WriteString(c, request)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		go func() { _, _ = io.Copy(io.Discard, c) }()
		<-sent
		p.found()
		c.Close()

	}
	p.clone("one")
	p.letsGo(p.node, 0)
	if kb := peakMemory(p.node); kb > 150<<10 && !serverHasRaceDetector() {
		t.Errorf("the node took %d kB", kb)
	}
}

// peakMemory is the most memory that a process has had, in kB; 0 where /proc does not tell.
func peakMemory(s *serverProcess) (kb int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, _ = fmt.Sscan(rest, &kb)
		}
	}
	return kb
}

// TestAbsurdNodes replaces a node by servers that send nonsense. Clients of the gateway get an error quickly, and the
// gateway stays healthy.
func TestAbsurdNodes(t *testing.T) {
	t.Parallel()
	settings := func(b *bytes.Buffer) *http2.Framer {
		f := http2.NewFramer(b, nil)
		_ = f.WriteSettings()
		return f
	}
	// answer is a call's, with a body.
	answer := func(body string) string {
		var b, block bytes.Buffer
		f := settings(&b)
		enc := hpack.NewEncoder(&block)
		_ = enc.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
		_ = enc.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
		for len(body) > 0 {
			k := min(len(body), 16<<10)
			_ = f.WriteData(1, false, []byte(body[:k]))
			body = body[k:]
		}
		return b.String()
	}
	long := func() string {
		var b, block bytes.Buffer
		f := settings(&b)
		_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 8<<20)})
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Next(16 << 10)})
		for block.Len() > 0 {
			_ = f.WriteContinuation(1, false, block.Next(16<<10))
		}
		return b.String()
	}
	nonsense := map[string]string{
		"nothing":      "",
		"HTTP/1":       "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"SSH":          "SSH-2.0-OpenSSH_9.2\r\n",
		"zeros":        strings.Repeat("\x00", 1<<20),
		"endless line": strings.Repeat("x", 4<<20),
		"frame of 16 MB": "\x00\x00\x00\x04\x00\x00\x00\x00\x00\xff\xff\xff\x00\x00\x00\x00\x00\x01" +
			strings.Repeat("x", 1<<20),
		"header without an end":  long(),
		"message of 4 GB":        answer("\x00\xff\xff\xff\xff" + strings.Repeat("x", 60<<10)),
		"message of 2 MB":        answer("\x00\x00\x20\x00\x00" + strings.Repeat("x", 60<<10)),
		"message that is none":   answer("\x00\x00\x00\x00\x0a" + strings.Repeat("\xff", 10)),
		"compressed message":     answer("\x01\x00\x00\x00\x0a" + strings.Repeat("x", 10)),
		"health of another type": answer("\x00\x00\x00\x00\x02\x08\x63"),
	}
	dir := t.TempDir()
	config := patient
	for name, text := range nonsense {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					_, _ = c.Read(make([]byte, 1<<10))
					_, _ = io.WriteString(c, text)
					if text != "" {
						_, _ = io.Copy(io.Discard, c)
					}
				}()
			}
		}()
		id := strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), "/", "-")
		config += fmt.Sprintf("\n[[node]]\nname = %q\naddress = %q\n[[route]]\nprefix = %q\nnodes = [%q]\n", id, l.Addr(), id,
			id)
	}
	p := &pair{T: t, dir: dir, base: map[*serverProcess]int{}}
	p.gatewayConfig = p.write("gateway.toml", config, 0o600)
	p.startGateway()
	for name := range nonsense {
		id := strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), "/", "-")
		for range 2 {
			resp, err := http.Get(p.gateway.http + "/" + id + "/app/info/refs?service=git-upload-pack")
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode < 500 || err != nil || len(text) > 1000 ||
				!strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
				t.Errorf("%s: status %d (%v), %d bytes: %.300q", name, resp.StatusCode, err, len(text), text)
			}
		}
	}
	p.idle(p.gateway)
	if kb := peakMemory(p.gateway); kb > 150<<10 && !serverHasRaceDetector() {
		t.Errorf("the gateway took %d kB", kb)
	}
	for line := range strings.Lines(p.gateway.logged()) {
		if len(line) > 32<<10 {
			t.Errorf("a line of the log has %d bytes", len(line))
		}
	}
}
