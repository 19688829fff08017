package app

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const (
	wants = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: " +
		"websocket\r\nSec-Websocket-Key: x\r\n\r\n"
	switched = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
		"y\r\nX-Packhorse-A: evil\r\n\r\n"
)

// parrot switches protocols, and then says everything again.
func parrot(_ int, c net.Conn, in *bufio.Reader) {
	for {
		r := request(in)
		switch {
		case r == "":
			return
		case strings.HasPrefix(r, "GET /ws") && strings.Contains(r, "\r\nUpgrade: websocket\r\n") &&
			strings.Contains(r, "\r\nConnection: Upgrade\r\n"):
			_, _ = io.WriteString(c, switched+"hello ")
			_, _ = io.Copy(c, in)
			return
		default:
			_, _ = io.WriteString(c, ok(r))
		}
	}
}

// switchTo asks for another protocol and reads the head of the answer.
func switchTo(t *testing.T, f *front) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	c := f.dial()
	_, _ = io.WriteString(c, wants)
	in := bufio.NewReader(c)
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, in, response
}

func TestUpgrade(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, parrot)
	f := newFront(t, Options{Workers: one(w.address), MaxUpgrades: 3})
	var open []net.Conn
	for i := range 3 {
		c, in, response := switchTo(t, f)
		defer c.Close()
		open = append(open, c)
		if response.StatusCode != 101 || response.Header.Get("Sec-Websocket-Accept") != "y" ||
			response.Header.Get("X-Packhorse-A") != "" ||
			response.Header.Get("Upgrade") != "WebSocket" || response.Header.Get("Connection") != "Upgrade" {
			t.Fatalf("%+v", response)
		}
		var hello [6]byte
		if _, err := io.ReadFull(in, hello[:]); err != nil || string(hello[:]) != "hello " {
			t.Fatalf("%q, %v", hello, err)
		}
		for range 3 {
			text := strings.Repeat(fmt.Sprint("said ", i), 10_000)
			go func() { _, _ = io.WriteString(c, text) }()
			b := make([]byte, len(text))
			if _, err := io.ReadFull(in, b); err != nil || string(b) != text {
				t.Fatalf("%.20q, %v", b, err)
			}
		}
		// The one slot is free meanwhile.
		if status, _, _, err := f.get("/"); err != nil || status != 200 {
			t.Error(status, err)
		}
		<-f.records
	}
	c, _, response := switchTo(t, f)
	c.Close()
	if response.StatusCode != 503 || response.Header.Get("Retry-After") == "" {
		t.Errorf("one too many: %+v", response)
	}
	<-f.records
	open[0].Close()
	if r := <-f.records; !r.Upgraded || r.Status != 101 || r.In < 100_000 || r.Out < 100_000 {
		t.Errorf("%+v", r)
	}
	wait(t, "another one may come", func() bool { return f.upgrades.Load() == 2 })
	c, _, response = switchTo(t, f)
	defer c.Close()
	if response.StatusCode != 101 {
		t.Errorf("%+v", response)
	}
	// They go on, too, when their worker has other slots or another name, or is there no more.
	routing := f.table.Load().Routing
	for _, workers := range [][]WorkerOptions{{{Name: "w0", Address: w.address, Slots: 2}},
		{{Name: "w1", Address: w.address}}, {{Name: "w1", Address: "http://127.0.0.1:1"}}} {
		routing.Pools = []PoolOptions{{Name: "app", Share: 1, Workers: workers}}
		if err := f.Set(routing); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(c, "still there!"); err != nil {
		t.Fatal(err)
	}
	if b, err := bufio.NewReader(c).ReadString('!'); err != nil || !strings.HasSuffix(b, "still there!") {
		t.Errorf("%q, %v", b, err)
	}
	f.Close() // ends them all
	_, _ = io.Copy(io.Discard, c)
}

// Over TLS all is the same, but that the kernel does not copy.
func TestTLS(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, func(n int, c net.Conn, in *bufio.Reader) {
		for {
			r := request(in)
			switch {
			case strings.HasPrefix(r, "GET /ws"):
				_, _ = io.WriteString(c, switched)
				_, _ = io.Copy(c, in)
				return
			case r == "":
				return
			default:
				_, _ = io.WriteString(c, ok(r))
			}
		}
	})
	f := newFrontWith(t, Options{Workers: one(w.address)}, (*httptest.Server).StartTLS)
	client := f.server.Client()
	response, err := client.Get(f.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil || !strings.Contains(string(b), "\r\nX-Forwarded-Proto: https\r\n") {
		t.Errorf("response = %.500q, %v, want X-Forwarded-Proto: https", b, err)
	}
	config := client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = nil
	c, err := tls.Dial("tcp", f.address, config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, wants)
	in := bufio.NewReader(c)
	if response, err := http.ReadResponse(in, nil); err != nil || response.StatusCode != 101 {
		t.Fatal(response, err)
	}
	_, _ = io.WriteString(c, "hello")
	_ = c.CloseWrite()
	if b, err := io.ReadAll(in); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
}

// Workers may omit Connection: Upgrade, or name other options there, in any packets. The client gets it.
func TestUpgradeWithoutConnection(t *testing.T) {
	t.Parallel()
	const head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
	for name, response := range map[string]string{
		"none": head, "other": head + "Connection: keep-alive\r\n",
		"line feeds": "HTTP/1.1 101 Switching Protocols\nUpgrade: websocket\n",
		"long":       head + strings.Repeat("X-Long: "+strings.Repeat("x", 1000)+"\r\n", 10),
	} {
		for _, inBytes := range []bool{false, true} {
			w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
				request(in)
				text := response + "\r\nhello"
				for inBytes && text != "" {
					_, _ = io.WriteString(c, text[:1])
					text = text[1:]
				}
				_, _ = io.WriteString(c, text)
				_, _ = io.Copy(c, in)
			})
			c, in, answer := switchTo(t, newFront(t, Options{Workers: one(w.address)}))
			if answer.StatusCode != 101 || len(answer.Header["Connection"]) != 1 ||
				answer.Header.Get("Connection") != "Upgrade" {
				t.Errorf("%s: %+v", name, answer)
			}
			_, _ = io.WriteString(c, ", world")
			var text [12]byte
			if _, err := io.ReadFull(in, text[:]); err != nil || string(text[:]) != "hello, world" {
				t.Errorf("%s: %q, %v", name, text, err)
			}
			c.Close()
		}
	}
}

// Each side can end what it says, and hear the other out.
func TestUpgradeHalfClosed(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		if request(in) != "" {
			_, _ = io.WriteString(c, switched)
			b, _ := io.ReadAll(in)
			fmt.Fprintf(c, "%d bytes", len(b))
		}
	})
	f := newFront(t, Options{Workers: one(w.address)})
	c, in, _ := switchTo(t, f)
	defer c.Close()
	_, _ = io.WriteString(c, strings.Repeat("x", 12345))
	_ = c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(in); err != nil || string(b) != "12345 bytes" {
		t.Errorf("%q, %v", b, err)
	}
	if r := <-f.records; r.In != 12345 || r.Out != int64(len("12345 bytes")) || r.Err != nil {
		t.Errorf("%+v", r)
	}
}

// Bytes that come with the response count as sent, unless the client has disconnected.
func TestUpgradeCounts(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for request(in) != "" {
			time.Sleep(20 * time.Millisecond)
			_, _ = io.WriteString(c, switched+"hello")
		}
	})
	f := newFront(t, Options{Workers: one(w.address)})
	c, in, _ := switchTo(t, f)
	if _, err := io.ReadFull(in, make([]byte, 5)); err != nil {
		t.Error(err)
	}
	c.Close()
	if r := <-f.records; r.Out != 5 {
		t.Errorf("%+v", r)
	}
	for range 10 {
		c := f.dial()
		_, _ = io.WriteString(c, wants)
		_ = c.(*net.TCPConn).SetLinger(0)
		time.Sleep(2 * time.Millisecond)
		c.Close()
		if r := <-f.records; r.Out < 0 || r.Out > 5 {
			t.Errorf("%+v", r)
		}
	}
}

func TestUpgradeIdle(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, parrot)
	f := newFront(t, Options{Workers: one(w.address), UpgradeIdle: time.Second})
	c, in, response := switchTo(t, f)
	defer c.Close()
	if response.StatusCode != 101 {
		t.Fatal(response)
	}
	_, _ = io.Copy(io.Discard, in) // until we are cut off
	if r := <-f.records; r.Err == nil {
		t.Errorf("%+v", r)
	}
	wait(t, "the worker's connection is closed", func() bool { return w.open.Load() == 0 })
}

// Invalid upgrades never reach a worker as upgrades.
func TestUpgradeAbuse(t *testing.T) {
	t.Parallel()
	const head = " / HTTP/1.1\r\nHost: a\r\n"
	w := serveRaw(t, echo)
	f := newFront(t, Options{Workers: one(w.address)})
	for name, test := range map[string]struct {
		request string
		status  string
	}{
		"a body": {"GET" + head +
			"Connection: Upgrade, close\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello", "400"},
		"chunks": {"GET" + head +
			"Connection: Upgrade, close\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
		"POST":          {"POST" + head + "Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n", "400"},
		"no Connection": {"GET" + head + "Connection: close\r\nUpgrade: websocket\r\n\r\n", "400"},
		"two protocols": {"GET" + head + "Connection: Upgrade, close\r\nUpgrade: websocket, h2c\r\n\r\n", "400"},
		"two fields": {"GET" + head +
			"Connection: Upgrade, close\r\nUpgrade: websocket\r\nUpgrade: other\r\n\r\n", "400"},
		"no token": {"GET" + head + "Connection: Upgrade, close\r\nUpgrade: web socket\r\n\r\n", "400"},
		"empty":    {"GET" + head + "Connection: Upgrade, close\r\nUpgrade:\r\n\r\n", "400"},
		"TLS":      {"GET" + head + "Connection: Upgrade, close\r\nUpgrade: TLS/1.0\r\n\r\n", "400"},
		"HTTP/2":   {"GET" + head + "Connection: Upgrade, close\r\nUpgrade: HTTP/2.0\r\n\r\n", "400"},
		"h2c": {"GET" + head +
			"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n",
			"200"},
		"HTTP/1.0":               {"GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "200"},
		"nothing named":          {"GET" + head + "Connection: Upgrade, close\r\n\r\n", "200"},
		"a worker that does not": {"GET" + head + "Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n", "200"},
	} {
		got := f.raw(test.request)
		if !strings.HasPrefix(got, "HTTP/1.1 "+test.status) && !strings.HasPrefix(got, "HTTP/1.0 "+test.status) {
			t.Errorf("%s: %q", name, got)
		}
		if name != "a worker that does not" && (strings.Contains(got, "\r\nUpgrade: ") ||
			strings.Contains(strings.ToLower(got), "http2-settings")) {
			t.Errorf("%s: the worker saw %q", name, got)
		}
	}
	if n := f.upgrades.Load(); n != 0 {
		t.Errorf("%d are counted", n)
	}
	for name, answer := range map[string]string{
		"another protocol": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\nConnection: Upgrade\r\n\r\n",
		"no protocol":      "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n",
		"old version":      "HTTP/1.0 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
		"a body": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: " +
			"Upgrade\r\nContent-Length: 5\r\n\r\nhello",
	} {
		bad := newFront(t, Options{Workers: one(serveRaw(t, say(answer)).address)})
		c, _, response := switchTo(t, bad)
		c.Close()
		if response.StatusCode != 502 {
			t.Errorf("%s: %+v", name, response)
		}
	}
	none := newFront(t, Options{Workers: one(w.address), MaxUpgrades: -1})
	c, in, response := switchTo(t, none)
	defer c.Close()
	if b, _ := io.ReadAll(io.LimitReader(in, response.ContentLength)); response.StatusCode != 200 ||
		strings.Contains(string(b), "pgrade") {
		t.Errorf("none allowed: %+v %q", response, b)
	}
}
