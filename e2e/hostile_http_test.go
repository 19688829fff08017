package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// lsAll asks for all refs.
var lsAll = packets("command=ls-refs", "|", "")

// TestHostileMethods sends every method and invalid HTTP/1.1. The server refuses requests that it cannot parse before a
// handler gets them (threats: request smuggling, protocol denial of service).
func TestHostileMethods(t *testing.T) {
	t.Parallel()
	v := attack(t, "", nil)
	const discovery = "/good/info/refs?service=git-upload-pack"
	head := " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nUser-Agent: "
	for name, test := range map[string]struct {
		request string
		status  int // 0: a closed connection will do
		logged  bool
	}{
		"OPTIONS":      {"OPTIONS " + discovery + head + "OPTIONS\r\n\r\n", 405, true},
		"OPTIONS-star": {"OPTIONS *" + head + "OPTIONS-star\r\n\r\n", 200, false},
		"TRACE":        {"TRACE " + discovery + head + "TRACE\r\n\r\n", 405, true},
		"DELETE":       {"DELETE /good.git" + head + "DELETE\r\n\r\n", 404, true},
		"PROPFIND":     {"PROPFIND /good.git/" + head + "PROPFIND\r\n\r\n", 404, true},
		"CONNECT":      {"CONNECT 127.0.0.1:22" + head + "CONNECT\r\n\r\n", 400, false},
		"long-method":  {strings.Repeat("A", 10_000) + " " + discovery + head + "long-method\r\n\r\n", 405, true},
		"HTTP/1.0": {"GET " + discovery + " HTTP/1.0\r\nUser-Agent: HTTP/1.0\r\nGit-Protocol: version=2\r\n\r\n",
			200, true},
		"HTTP/0.9": {"GET " + discovery + "\r\n\r\n", 400, false},
		"HTTP/2.0": {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", 505, false},
		"HTTP/9.9": {"GET " + discovery + " HTTP/9.9\r\nHost: h\r\n\r\n", 505, false},
		"h2c": {"GET " + discovery + head +
			"h2c\r\nGit-Protocol: version=2\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n", 200, true},
		"websocket": {"GET " + discovery + head +
			"websocket\r\nGit-Protocol: version=2\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n", 200, true},
		"TLS": {"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + strings.Repeat("\x00", 160) + "\r\n\r\n", 400,
			false},
		"SSH":               {"SSH-2.0-OpenSSH_9.2\r\n\r\n", 400, false},
		"git-daemon":        {"0033git-upload-pack /good.git\x00host=h\x00\x00version=2\x00\r\n\r\n", 400, false},
		"no-host":           {"GET " + discovery + " HTTP/1.1\r\n\r\n", 400, false},
		"two-hosts":         {"GET " + discovery + " HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, false},
		"odd-host":          {"GET / HTTP/1.1\r\nHost: a\"><script>\r\n\r\n", 400, false},
		"host-with-newline": {"GET / HTTP/1.1\r\nHost: a\nX: b\x00\r\n\r\n", 400, false},
		"NUL-in-agent":      {"GET " + discovery + head + "a\x00b\r\n\r\n", 400, false},
		"expects-magic":     {"GET " + discovery + head + "expects-magic\r\nExpect: magic\r\n\r\n", 417, false},
		"no-answer-wanted": {"GET " + discovery + head + "no-answer-wanted\r\nGit-Protocol: version=2\r\nTE: " +
			"trailers\r\nRange: bytes=5-\r\nIf-None-Match: *\r\nAccept-Encoding: gzip\r\n\r\n", 200, true},
		"long-target": {"GET /" + strings.Repeat("a", 200_000) + head + "long-target\r\n\r\n", 431, false},
		"long-header": {"GET " + discovery + head + strings.Repeat("a", 200_000) + "\r\n\r\n", 431, false},
		"many-headers": {"GET " + discovery + head + "many-headers\r\n" + strings.Repeat("a:\r\n", 50_000) + "\r\n", 431,
			false},
		"many-versions": {"GET " + discovery + head + "many-versions\r\nGit-Protocol: " +
			strings.Repeat(":version=1", 4000) + ":version=2\r\n\r\n", 200, true},
	} {
		a := v.send(strings.NewReader(test.request))
		if a.status != test.status || a.err != nil {
			t.Errorf("%s: %d (%v) %.200q, want %d", name, a.status, a.err, a.body, test.status)
		}
		if test.logged {
			if r := v.record(name); r.Status != test.status || r.Result == "ok" && r.Status != 200 || r.Result == "internal" {
				t.Errorf("%s: the log says %+v", name, r)
			}
		}
	}
	conn := v.connect() // HEAD has no body
	io.WriteString(conn, "HEAD "+discovery+head+"HEAD\r\n\r\n")
	if all, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 200") ||
		!strings.HasSuffix(string(all), "\r\n\r\n") {
		t.Errorf("HEAD: %v %q", err, all)
	}
	v.unharmed(manyMB)
}

// TestHostileBodies: lengths that lie, chunks that lie, and packed bodies that are damaged or unpack to too much
// (threats: bombs, protocol denial of service).
func TestHostileBodies(t *testing.T) {
	t.Parallel()
	v := attack(t, "[http]\nmax_body = \"8MiB\"\n", nil)
	pack := func(p []byte) []byte {
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		z.Write(p)
		z.Close()
		return b.Bytes()
	}
	bomb := pack(make([]byte, scaled(512<<20))) // less than a megabyte
	ls := pack(lsAll)
	flipped := bytes.Clone(ls)
	flipped[len(flipped)-5] ^= 1 // its checksum
	for name, test := range map[string]struct {
		body []byte
		says string // "": an answer
	}{
		"bomb":        {bomb, "not a pkt-line stream"},
		"bomb-behind": {pack(join(lsAll, make([]byte, scaled(512<<20)))), "longer than 8388608 bytes"},
		"bomb-of-lines": {pack(join(fetchStart, many(200_000, func(int) string { return "have " + fakeID(1) }),
			"0000")), "longer than 8388608 bytes"},
		"packed-twice":     {pack(ls), "not a pkt-line stream"},
		"packed-bomb":      {pack(bomb), "not a pkt-line stream"},
		"truncated":        {ls[:len(ls)-9], "cut off"},
		"header-only":      {ls[:10], "not a pkt-line stream"},
		"half-a-header":    {ls[:5], "not a gzip stream"},
		"wrong-checksum":   {flipped, "damaged"},
		"trailing-garbage": {join(ls, "garbage, more than a header"), "damaged"},
		"trailing-zeros":   {join(ls, make([]byte, 1000)), "damaged"},
		"not-packed":       {lsAll, "not a gzip stream"},
		"nothing":          {nil, "not a gzip stream"},
		"two-members":      {join(pack(lsAll[:9]), pack(lsAll[9:])), ""},
		"many-members":     {join(bytes.Repeat(pack(nil), scaled(100_000)), ls), ""},
		"members-behind":   {join(ls, bytes.Repeat(pack(nil), scaled(100_000))), ""},
		"long-name": {join("\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\x03", bytes.Repeat([]byte("n"), 1<<20)),
			"gzip stream"},
		"nothing-but-members": {bytes.Repeat(pack(nil), scaled(1_000_000)), "not a pkt-line stream"},
	} {
		v.fresh()
		a := v.post("good", name, test.body, "Content-Encoding: gzip")
		if test.says != "" && name != "nothing-but-members" {
			v.wantsError(name, a, test.says)
		} else if a.err != nil || a.status != 200 || test.says == "" && !strings.Contains(a.body, "refs/heads/main") {
			t.Errorf("%s: %d (%v) %.200q", name, a.status, a.err, a.body)
		}
		v.took(name, 200<<20)
	}
	for _, encoding := range []string{"gzip, gzip", "br", "deflate", "gzip;q=0", strings.Repeat("g", 10_000)} {
		a := v.post("good", "encoding", lsAll, "Content-Encoding: "+encoding)
		v.wantsError("encoding", a, "unknown content encoding")
	}
	v.unharmed(200 << 20)
}

// TestHostileLengths sends requests that a proxy and a server could understand in two ways. The server refuses them or
// closes the connection, and never takes a part of a body for a request. The connection alone, not a header, determines
// the client.
func TestHostileLengths(t *testing.T) {
	t.Parallel()
	v := attack(t, "", nil)
	length := fmt.Sprintf("Content-Length: %d", len(lsAll))
	const chunked = "Transfer-Encoding: chunked"
	chunk := fmt.Sprintf("%x\r\n%s\r\n", len(lsAll), lsAll)
	hidden := "GET /-/hidden HTTP/1.1\r\nHost: localhost\r\nUser-Agent: hidden\r\n\r\n"
	const notHTTP = 400
	for name, test := range map[string]struct {
		status  int
		says    string
		request string
	}{
		"length-and-chunks": {notHTTP, "Content-Length and Transfer-Encoding",
			fetchHead("good", "x", fmt.Sprintf("Content-Length: %d", len(chunk+"0\r\n\r\n"+hidden)), chunked) + chunk +
				"0\r\n\r\n" + hidden},
		"chunks-and-length": {notHTTP, "Content-Length and Transfer-Encoding",
			fetchHead("good", "x", chunked, "Content-Length: 3") + chunk + "0\r\n\r\n" + hidden},
		"HTTP/1.0-chunks": {notHTTP, "Transfer-Encoding must be chunked",
			strings.Replace(fetchHead("good", "x", chunked, "Connection: keep-alive"), "1.1", "1.0", 1) + chunk + "0\r\n\r\n" +
				hidden},
		"tab-chunked": {notHTTP, "Transfer-Encoding must be chunked",
			fetchHead("good", "x", "Transfer-Encoding:\tchunked ") + chunk + "0\r\n\r\n"},
		"two-lengths": {notHTTP, "Content-Length must be one decimal number",
			fetchHead("good", "x", length, "Content-Length: 5") + string(lsAll) + hidden},
		"negative": {notHTTP, "Content-Length must be one decimal number",
			fetchHead("good", "x", "Content-Length: -1") + hidden},
		"plus": {notHTTP, "Content-Length must be one decimal number",
			fetchHead("good", "x", "Content-Length: +5") + "00000" + hidden},
		"hexadecimal": {notHTTP, "Content-Length must be one decimal number",
			fetchHead("good", "x", "Content-Length: 0x5") + "00000" + hidden},
		"huge": {notHTTP, "Content-Length must be one decimal number",
			fetchHead("good", "x", "Content-Length: 99999999999999999999") + hidden},
		"empty-length": {notHTTP, "Content-Length must be one decimal number",
			fetchHead("good", "x", "Content-Length: ") + hidden},
		"space-before-colon": {notHTTP, "a space before its colon",
			fetchHead("good", "x", "Transfer-Encoding : chunked", length) + string(lsAll) + hidden},
		"control-in-header": {notHTTP, "a control character",
			fetchHead("good", "x", "X: a\x0bContent-Length: 0") + hidden},
		"bare-CR": {notHTTP, "end with CR and LF", fetchHead("good", "x", "X: a\rContent-Length: 0") + hidden},
		"two-codings": {notHTTP, "Transfer-Encoding must be chunked",
			fetchHead("good", "x", chunked, "Transfer-Encoding: identity") + chunk + "0\r\n\r\n" + hidden},
		"chunked-twice": {notHTTP, "Transfer-Encoding must be chunked",
			fetchHead("good", "x", "Transfer-Encoding: chunked, chunked") + chunk + "0\r\n\r\n" + hidden},
		"xchunked": {notHTTP, "Transfer-Encoding must be chunked",
			fetchHead("good", "x", "Transfer-Encoding: xchunked", length) + string(lsAll) + hidden},
		"folded": {notHTTP, "a header begins with a space",
			fetchHead("good", "x", "X-Folded: a\r\n Transfer-Encoding: chunked", length) + string(lsAll)},
		"folded-length": {notHTTP, "Content-Length must be one decimal number",
			fetchHead("good", "x", "Content-Length:\r\n "+fmt.Sprint(len(lsAll))) + string(lsAll)},
		"bad-chunk-size": {notHTTP, "invalid chunk", fetchHead("good", "x", chunked) + "-5\r\n" + hidden},
		"no-chunk-size":  {notHTTP, "invalid chunk", fetchHead("good", "x", chunked) + "\r\n" + hidden},
		"chunk-size-0x":  {notHTTP, "invalid chunk", fetchHead("good", "x", chunked) + "0x18\r\n" + hidden},
		"huge-chunk":     {notHTTP, "invalid chunk", fetchHead("good", "x", chunked) + "fffffffffffffffff\r\n" + hidden},
		"chunk-without-end": {notHTTP, "invalid chunk", fetchHead("good", "x", chunked) +
			fmt.Sprintf("%x\r\n%sxx", len(lsAll), lsAll) + hidden},
		"chunk-bare-line-feed": {notHTTP, "invalid chunk", fetchHead("good", "x", chunked) +
			fmt.Sprintf("%x;a\n%s\r\n0\r\n\r\n", len(lsAll), lsAll)},
		"long-extension": {notHTTP, "invalid chunk", fetchHead("good", "x", chunked) + "5;" +
			strings.Repeat("x", 100_000) + "\r\n" + hidden},
		"extensions": {notHTTP, "invalid chunk", fetchHead("good", "x", chunked) +
			strings.Repeat("1;"+strings.Repeat("x", 4000)+"\r\n0\r\n", 1000) + "0\r\n\r\n"},
		"long-trailer": {200, "cut off", fetchHead("good", "x", chunked, "Trailer: X") + chunk + "0\r\nX: " +
			strings.Repeat("x", 100_000) + "\r\n\r\n"},
	} {
		conn := v.connect()
		go io.WriteString(conn, test.request)
		r := bufio.NewReader(conn)
		v.wantsStatus(name, readAnswer(r), test.status, test.says)
		conn.CloseWrite()
		if a := readAnswer(r); a.status != 0 {
			t.Errorf("%s: what stood behind it was answered: %d %q", name, a.status, a.body)
		}
		conn.Close()
	}
	// With a length that is too long the request never completes. With one that is too short the rest is not a valid
	// request.
	conn := v.connect()
	io.WriteString(conn, fetchHead("good", "too-long", "Content-Length: 1000")+string(lsAll))
	conn.CloseWrite()
	v.wantsError("too-long", readAnswer(bufio.NewReader(conn)), "cut off")
	v.wantsError("too-short", v.send(strings.NewReader(fetchHead("good", "too-short",
		"Content-Length: 10")+string(lsAll))), "ends early")
	// A million chunks of one byte: net/http puts up with some overhead, not with this.
	tiny := fetchHead("good", "tiny", chunked) + strings.Repeat("1\r\n0\r\n", scaled(1_000_000)) + "0\r\n\r\n"
	if a := v.send(strings.NewReader(tiny)); a.status != 200 || a.body != "" && !strings.Contains(a.body, "ERR ") {
		t.Errorf("tiny chunks: %d (%v) %.200q", a.status, a.err, a.body)
	}
	for _, forged := range []string{"X-Forwarded-For: 10.9.9.9", "Forwarded: for=10.9.9.9", "X-Real-IP: 10.9.9.9",
		"X-Forwarded-Host: 10.9.9.9", "Via: 1.1 10.9.9.9"} {
		v.get("/good/info/refs?service=git-upload-pack", "forged", forged)
	}
	if r := v.record("forged"); !strings.HasPrefix(r.Client, "127.0.0.1:") || strings.Contains(v.logged(), "10.9.9.9") {
		t.Errorf("the log believes what a client says of its address: %+v", r)
	}
	// A target in absolute form is what proxies are sent.
	v.wantsStatus("absolute", v.get("http://127.0.0.1:1/good/info/refs?service=git-upload-pack", "absolute"), 400,
		"this server is not a proxy")
	v.unharmed(200 << 20)
}

// hurried is for the tests of time limits: what takes this long was meant to.
const hurried = "[http]\nidle_timeout = \"1s\"\nstall = \"1s\"\n"

// TestHostilePace has clients that are slow or silent, or that pipeline requests without reading a response. Each loses
// its connection, and other clients do not notice.
func TestHostilePace(t *testing.T) {
	t.Parallel()
	v := attack(t, hurried, nil)
	const discovery = "GET /good/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: localhost\r\nUser-Agent: " +
		"pipelined\r\nGit-Protocol: version=2\r\n"
	for name, request := range map[string]string{
		"nothing":           "",
		"half-a-line":       "GET /good",
		"half-a-head":       discovery,
		"a-body-of-nothing": fetchHead("good", "a", "Content-Length: 100"),
		"half-a-body":       fetchHead("good", "a", "Content-Length: 100") + "0014",
		"half-a-chunk":      fetchHead("good", "a", "Transfer-Encoding: chunked") + "100\r\n0014",
		"no-last-chunk": fetchHead("good", "a", "Transfer-Encoding: chunked") +
			fmt.Sprintf("%x\r\n%s\r\n", len(lsAll), lsAll),
		"expects-continue": fetchHead("good", "a", "Expect: 100-continue", "Content-Length: 100"),
		"half-of-gzip":     fetchHead("good", "a", "Content-Encoding: gzip", "Content-Length: 100") + "\x1f\x8b\x08",
		"idle":             discovery + "\r\n",
		"body-of-a-GET":    discovery + "Content-Length: 100\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := v.connect()
			io.WriteString(conn, request)
			if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
				t.Error("the connection is still open, want it closed")
			}
		})
	}
	for name, start := range map[string]string{"head": discovery,
		"body": fetchHead("good", "a", "Content-Length: 1000000")} {
		t.Run("trickled-"+name, func(t *testing.T) {
			t.Parallel()
			conn := v.connect()
			go io.Copy(io.Discard, conn)
			_, err := io.Copy(conn, io.MultiReader(strings.NewReader(start), trickle{}))
			if err == nil || isTimeout(err) {
				t.Errorf("single bytes just in time are taken for ever: %v", err)
			}
		})
	}
	t.Run("pipelined", func(t *testing.T) {
		t.Parallel()
		// The other limits might end a busy machine's request before it is read.
		v := attack(t, "[http]\nstall = \"1s\"\n", func(root string) {
			good := filepath.Join(root, "good.git")
			tip := gittest.At(t, good).ID("main").String()
			var refs strings.Builder
			refs.WriteString("# pack-refs with: peeled fully-peeled sorted \n" + tip + " refs/heads/main\n")
			for i := range 50_000 {
				fmt.Fprintf(&refs, "%s refs/heads/many/%06d\n", tip, i)
			}
			write(t, filepath.Join(good, "packed-refs"), refs.String())
		})
		idle := v.sockets()
		conn := v.connect()
		// All requests arrive together, and the responses are larger than the socket buffers. Once unread responses fill the
		// client's socket, the kernel stops its sending, and the server would wait for the next request.
		ask := strings.Replace(discovery, "version=2", "version=0", 1) + "\r\n"
		if _, err := io.WriteString(conn, strings.Repeat(ask, 20)); err != nil {
			t.Fatal(err)
		}
		v.record("pipelined")
		eventually(t, "who reads no answers is cut off", func() bool { return v.sockets() <= idle })
		v.took("who reads no answers", 200<<20)
	})
	t.Run("more half-sent requests than connections", func(t *testing.T) {
		t.Parallel()
		v := attack(t, "[http]\nconnections = 20\naddress_connections = 20\n", nil)
		for range 50 {
			conn := v.connect()
			defer conn.Close()
			io.WriteString(conn, fetchHead("good", "half", "Content-Length: 60000")+string(lsAll))
		}
		v.serves("good")
		if n := v.metric(`packhorse_connections_closed_total{listener="http",reason="connections"}`); n < 30 {
			t.Errorf("%v connections were closed for others, want 30 or more", n)
		}
		v.unharmed(200 << 20)
	})
	t.Run("many idle connections", func(t *testing.T) {
		t.Parallel()
		v := attack(t, "", nil)
		idle := make([]net.Conn, 500)
		for i := range idle {
			idle[i] = v.connect()
		}
		v.unharmed(200 << 20)
		for _, conn := range idle {
			conn.Close()
		}
		eventually(t, "closed connections are let go", func() bool { return v.descriptors() < 100 })
	})
	t.Cleanup(func() { // the subtests have ended
		eventually(t, "requests end", func() bool { return v.metric("packhorse_lane_running") == 0 })
		eventually(t, "it still serves", func() bool {
			return v.get("/good/info/refs?service=git-upload-pack",
				"after").status == 200
		})
		v.took("slow clients", 200<<20)
	})
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

// trickle gives a byte now and then.
type trickle struct{}

func (trickle) Read(p []byte) (int, error) {
	time.Sleep(50 * time.Millisecond) // the client's pace
	p[0] = '0'
	return 1, nil
}

// descriptors counts the server's open files.
func (v *victim) descriptors() int {
	names, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", v.cmd.Process.Pid))
	return len(names)
}

// sockets counts the server's open sockets, without what it opens for itself.
func (v *victim) sockets() (n int) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", v.cmd.Process.Pid))
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// TestHostileHangUps: a client that goes away anywhere, in its request or in the answer, leaves nothing behind.
func TestHostileHangUps(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]string{"cached": "", "uncached": "[cache]\nenabled = false\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := attack(t, config, func(root string) {
				if err := os.CopyFS(filepath.Join(root, "blobs.git"), os.DirFS(blobs(t).Dir)); err != nil {
					t.Fatal(err)
				}
			})
			request := fetchHead("blobs", "gone", "Transfer-Encoding: chunked") +
				fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", 0, "")
			body := fetching("want "+v.idOf("blobs", "main"), "done")
			request = fetchHead("blobs", "gone", fmt.Sprintf("Content-Length: %d", len(body))) + string(body)
			for n := 1; n < len(request); n += 17 {
				conn := v.connect()
				io.WriteString(conn, request[:n])
				conn.Close()
			}
			for _, n := range []int64{0, 1, 15, 100, 300, 4096, 65_000, 66_000, 700_000, 2_900_000} {
				conn := v.connect()
				io.WriteString(conn, request)
				io.CopyN(io.Discard, conn, n)
				if n%2 == 0 {
					conn.SetLinger(0) // a reset instead of an end
				}
				conn.Close()
			}
			v.serves("blobs")
			v.unharmed(200 << 20)
			eventually(t, "connections are let go", func() bool { return v.descriptors() < 100 })
		})
	}
}

// TestHostileNames: requests for repositories that do not exist, or for more than are kept open, keep nothing in memory
// and no file open.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	const stored, asked = 1200, 3000
	v := attack(t, "", func(root string) {
		for i := range stored { // as little as is a repository
			dir := filepath.Join(root, "many", fmt.Sprint(i))
			for _, sub := range []string{"objects", "refs"} {
				if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "HEAD"), []byte("ref: refs/heads/main\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	})
	conn := v.connect()
	r := bufio.NewReader(conn)
	ask := func(repo string) int {
		fmt.Fprintf(conn, "GET /%s/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: localhost\r\n"+
			"Git-Protocol: version=2\r\n\r\n", repo)
		a := readAnswer(r)
		if a.err != nil {
			t.Fatal(a.err)
		}
		return a.status
	}
	v.fresh()
	before := v.descriptors()
	for i := range asked {
		if got := ask(fmt.Sprint("nothing/", i)); got != 404 {
			t.Fatalf("a repository that is not there: %d", got)
		}
	}
	for i := range stored {
		if got := ask(fmt.Sprint("many/", i)); got != 200 {
			t.Fatalf("repository %d: %d", i, got)
		}
	}
	if now := v.descriptors(); now > before+20 {
		t.Errorf("%d files are open, %d were before", now, before)
	}
	v.unharmed(150 << 20)
}
