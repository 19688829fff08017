package app

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestRelay(t *testing.T) {
	t.Parallel()
	f := newFront(t, Options{Workers: one(serveRaw(t, echo).address)})
	status, _, body, err := f.do(http.MethodPost, "/a%20b/c?x=1&y=%zz", strings.NewReader("hello"), "X-Mine: 1",
		"Cookie: a=b")
	if err != nil || status != 200 {
		t.Fatal(status, err)
	}
	for _, want := range []string{
		"POST /a%20b/c?x=1&y=%zz HTTP/1.1\r\n", "\r\nHost: " + f.address + "\r\n", "\r\nX-Mine: 1\r\n", "\r\nCookie: a=b\r\n",
		"\r\nContent-Length: 5\r\n",
		"\r\nX-Forwarded-For: 127.0.0.1\r\n", "\r\nX-Forwarded-Proto: http\r\n", "\r\nX-Real-Ip: 127.0.0.1\r\n",
		"\r\nX-Request-Id: ", "\r\nX-Request-Start: t=1",
		"\r\nForwarded: for=127.0.0.1;host=\"" + f.address + "\";proto=http\r\n", "\r\n\r\nhello",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the worker saw no %q in %q", want, body)
		}
	}
	if r := <-f.records; r.Worker != "w0" || r.Status != 200 || r.In != 5 || r.Out != int64(len(body)) || r.Tries != 1 ||
		r.Err != nil {
		t.Errorf("%+v", r)
	}
}

// Workers get the target of a request as the client sent it. Some of them verify signatures over it.
func TestTarget(t *testing.T) {
	t.Parallel()
	f := newFront(t, Options{Workers: one(serveRaw(t, echo).address)})
	for _, target := range []string{
		"/", "/?", "/a|b", "/a[1]|b/(c)?x=1|2", "/%61%2f%2F/../b//c/./", "/a\\b^`{}\"<>", "/\xff\xc3\xa9|", "/a%20|;v=1?",
		"//a//b", "/a:b@c|", "/%7C|%7c",
	} {
		got := f.raw("GET " + target + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		if !strings.Contains(got, "GET "+target+" HTTP/1.1\r\n") {
			t.Errorf("%q: the worker saw %q", target, got)
		}
	}
	got := f.raw("GET http://evil.example/a|b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	if !strings.Contains(got, "GET /a%7Cb HTTP/1.1\r\n") {
		t.Errorf("absolute form: the worker saw %q", got)
	}
}

// The fields that workers believe are set by the proxy, whatever clients send.
func TestForged(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, echo)
	f := newFront(t, Options{Workers: one(w.address)})
	forged := []string{
		"X-Forwarded-For: 6.6.6.6", "X-Forwarded-Proto: https", "X-Forwarded-Host: evil", "X-Forwarded-Anything: evil",
		"X-Forwarded-Prefix: /evil", "X-Forwarded-Port: 6666",
		"Forwarded: for=6.6.6.6", "X-Forwarded: for=6.6.6.6", "Forwarded-For: 6.6.6.6",
		"CF-Connecting-IP: 6.6.6.6", "X-Remote-Addr: 6.6.6.6", "X-Original-Forwarded-For: 6.6.6.6", "X-Real-Ip: 6.6.6.6",
		"Client-Ip: 6.6.6.6", "X-Scheme: evil", "X-Url-Scheme: evil", "Front-End-Https: evil", "Gitlab-Workhorse: evil",
		"X_Forwarded_For: 6.6.6.6", "X.Forwarded.For: 6.6.6.6", "X-Forwarded~For: 6.6.6.6", "Client`Ip: 6.6.6.6",
		"X-Request-Id: evil", "X-Request-Start: t=666", "X-Packhorse-User: evil", "Packhorse-For: evil",
		"Gitlab-Workhorse-Api-Request: evil", "X-Sendfile-Type: evil", "X-Accel-Mapping: /=/evil", "Proxy: evil",
		"Proxy-Authorization: evil", "Keep-Alive: evil",
		"Te: evil", "Trailer: evil", "Connection: X-Hop, close", "X-Hop: evil", "Upgrade-Insecure-Requests: 1",
	}
	_, _, body, err := f.get("/", forged...)
	if err != nil || strings.Contains(body, "evil") || strings.Contains(body, "6.6.6") ||
		strings.Contains(body, "6666") ||
		!strings.Contains(body, "Upgrade-Insecure-Requests") {
		t.Errorf("%v: the worker saw %s", err, body)
	}
	if <-f.records; !regexp.MustCompile(`X-Request-Start: t=\d{10}\.\d{3}\r\n`).MatchString(body) {
		t.Errorf("the worker saw %s", body)
	}

	trusting := newFront(t, Options{Workers: one(w.address)})
	trusting.trusted = clients.Proxies{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")}
	for _, test := range []struct {
		sent []string
		want []string
	}{
		{[]string{"X-Forwarded-For: 6.6.6.6, 192.0.2.1, 10.1.1.1", "X-Forwarded-Proto: http, https, https",
			"X-Forwarded-Host: evil, a.example, b.example", "X-Request-Id: abc"},
			[]string{"X-Forwarded-For: 192.0.2.1, 10.1.1.1, 127.0.0.1\r\n", "X-Forwarded-Proto: https\r\n",
				"X-Forwarded-Host: a.example\r\n", "X-Real-Ip: 192.0.2.1\r\n",
				"Forwarded: for=192.0.2.1;host=\"a.example\";proto=https, for=10.1.1.1, for=127.0.0.1\r\n",
				"X-Request-Id: abc\r\n"}},
		{[]string{"X-Forwarded-For: 6.6.6.6, nonsense, 10.1.1.1"}, []string{"X-Forwarded-For: 10.1.1.1, 127.0.0.1\r\n"}},
		{[]string{"CF-Connecting-IP: 192.0.2.9", "X-Forwarded: for=6.6.6.6"}, []string{"Cf-Connecting-Ip: 192.0.2.9\r\n"}},
		{[]string{"X-Forwarded-For: 2001:db8::1"}, []string{"Forwarded: for=\"[2001:db8::1]\";"}},
		// which a proxy passed on
		{[]string{`Forwarded: for=6.6.6.6;proto=http;host="evil"`, "X-Forwarded-Proto: https", "X-Forwarded-Host: a.example"},
			[]string{"X-Forwarded-For: 127.0.0.1\r\n", "X-Forwarded-Proto: https\r\n", "X-Forwarded-Host: a.example\r\n"}},
		{[]string{`Forwarded: for=6.6.6.6;proto=https;host="evil"`},
			[]string{"X-Forwarded-For: 127.0.0.1\r\n", "X-Forwarded-Proto: http\r\n"}},
		{[]string{"X-Forwarded-Prefix: /git/%20a", "X-Forwarded-Port: 8443"},
			[]string{"X-Forwarded-Prefix: /git/%20a\r\n", "X-Forwarded-Port: 8443\r\n"}},
		{[]string{"X-Forwarded-Prefix: //evil", "X-Forwarded-Port: evil", "X-Forwarded-Anything: evil"}, nil},
		{[]string{"X-Forwarded-Prefix: https://evil", "X-Forwarded-Port: 80, 6.6.6.6"}, nil},
		{[]string{"X-Forwarded-Prefix: /a", "X-Forwarded-Prefix: /evil", "X-Forwarded-Port: 66.6.6.6"}, nil},
		{[]string{"X-Forwarded-Prefix: /evil?x", "X-Forwarded-Port: "}, nil},
		{[]string{"X-Forwarded-Prefix: /\\evil"}, nil},
		{[]string{"X-Forwarded-Prefix: /a/"}, []string{"X-Forwarded-Prefix: /a/\r\n"}},
		{[]string{"X-Forwarded-Prefix: /.//evil.example"}, nil},
		{[]string{"X-Forwarded-Prefix: /..;/evil"}, nil},
		{[]string{"X-Forwarded-Prefix: /a/%2e%2e/evil"}, nil},
		{[]string{"X-Forwarded-Prefix: /a/..%5cevil"}, nil},
		{[]string{"X-Forwarded-Prefix: /a//evil"}, nil},
		{[]string{"X-Forwarded-Host: a\"b", "X-Forwarded-Proto: gopher"},
			[]string{"X-Forwarded-Host: " + trusting.address + "\r\n", "X-Forwarded-Proto: http\r\n"}},
	} {
		_, _, body, err := trusting.get("/", test.sent...)
		if err != nil || strings.Contains(body, "6.6.6.6") || strings.Contains(body, "evil") {
			t.Errorf("%v: the worker saw %s", err, body)
		}
		for _, want := range test.want {
			if !strings.Contains(body, want) {
				t.Errorf("no %q in %q", want, body)
			}
		}
	}
}

// Each shape that two servers could read in two ways is refused, or has one meaning when the worker sees it.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	const host = "Host: a\r\n"
	for name, test := range map[string]struct {
		request string
		status  string // empty: relayed
		want    string // the worker's bytes begin so
		never   string
	}{
		"length and chunks": {"POST / HTTP/1.1\r\n" + host +
			"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: " +
			"a\r\n\r\n", "", "", "Transfer-Encoding"},
		"two lengths": {"POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "400",
			"", ""},
		"bad length":       {"POST / HTTP/1.1\r\n" + host + "Content-Length: +3\r\n\r\nabc", "400", "", ""},
		"list of lengths":  {"POST / HTTP/1.1\r\n" + host + "Content-Length: 3, 3\r\n\r\nabc", "400", "", ""},
		"strange encoding": {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n", "501", "", ""},
		"two encodings": {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501",
			"", ""},
		"bad chunk size": {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
			"400", "", ""},
		"huge chunk": {"POST / HTTP/1.1\r\n" + host +
			"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n", "400", "", ""},
		"space before colon": {"GET / HTTP/1.1\r\n" + host + "X-A : b\r\n\r\n", "400", "", ""},
		"two hosts":          {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400", "", ""},
		"no host":            {"GET / HTTP/1.1\r\n\r\n", "400", "", ""},
		"host with a path":   {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "400", "", ""},
		"host with a user":   {"GET / HTTP/1.1\r\nHost: u@b\r\n\r\n", "400", "", ""},
		"NUL in a field":     {"GET / HTTP/1.1\r\n" + host + "X-A: b\x00c\r\n\r\n", "400", "", ""},
		"CR in a field":      {"GET / HTTP/1.1\r\n" + host + "X-A: b\rX-B: c\r\n\r\n", "400", "", ""},
		"folded field": {"GET / HTTP/1.1\r\n" + host + "X-A: b\r\n X-B: c\r\nConnection: close\r\n\r\n", "", "",
			"\r\n X-B"},
		"trace":                {"TRACE / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "405", "", ""},
		"spaces in the target": {"GET /a b HTTP/1.1\r\n" + host + "\r\n", "400", "", ""},
		"control in a query":   {"GET /?a\x01b HTTP/1.1\r\n" + host + "\r\n", "400", "", ""},
		"raw bytes": {"GET /\xff?\xff# HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n", "",
			"GET /\xff?\xff# HTTP/1.1\r\n", "%23"},
		"bare LF": {"GET / HTTP/1.1\n" + host + "X-A: b\nConnection: close\r\n\r\n", "", "GET / HTTP/1.1\r\n",
			"[^\r]\n"},
		"HTTP/1.0 and chunks": {"POST / HTTP/1.0\r\n" + host +
			"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabcGET /smuggled HTTP/1.1\r\n\r\n", "", "", "/smuggled"},
		"trailers": {"POST / HTTP/1.1\r\n" + host +
			"Trailer: X-Real-Ip\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\nX-Real-Ip: " +
			"6.6.6.6\r\n\r\n", "", "", "6.6.6.6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var seen strings.Builder
			var mu sync.Mutex
			w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
				for r := request(in); r != ""; r = request(in) {
					mu.Lock()
					seen.WriteString(r)
					mu.Unlock()
					_, _ = io.WriteString(c, ok("done"))
				}
			})
			f := newFront(t, Options{Workers: one(w.address)})
			c := f.dial()
			defer c.Close()
			_, _ = io.WriteString(c, test.request)
			b, _ := io.ReadAll(c)
			got := string(b)
			status := test.status
			if status == "" {
				status = "200"
			}
			if !strings.HasPrefix(got, "HTTP/1.1 "+status) && !strings.HasPrefix(got, "HTTP/1.0 "+status) {
				t.Errorf("answered %q, want status %s", got, status)
			}
			mu.Lock()
			defer mu.Unlock()
			if test.status != "" && seen.Len() > 0 {
				t.Errorf("the worker saw %q", seen.String())
			}
			if !strings.HasPrefix(seen.String(), test.want) || test.never != "" && strings.Contains(seen.String(), test.never) {
				t.Errorf("the worker saw %q", seen.String())
			}
		})
	}
}

// An answer has as many fields as fit into its header.
func TestManyFields(t *testing.T) {
	t.Parallel()
	const n = 4000
	header := strings.Repeat("Set-Cookie: a\r\n", n)
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for request(in) != "" {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+header+"Content-Length: 0\r\n\r\n")
		}
	})
	f := newFront(t, Options{Workers: one(w.address)})
	status, got, _, err := f.do("GET", "/", nil)
	if cookies := len(got["Set-Cookie"]); err != nil || status != http.StatusOK || cookies != n {
		t.Errorf("%d, %d of %d fields: %v", status, cookies, n, err)
	}
	header += "X-Long: " + strings.Repeat("b", maxHeader) + "\r\n"
	if status, _, body, err := f.do("GET", "/", nil); err != nil || status != http.StatusBadGateway ||
		!strings.Contains(body, "longer than 65536 bytes") {
		t.Errorf("beyond the limit: %d, %q, %v", status, body, err)
	}
}

// A bad answer is an error, and never looks like a good one.
func TestBadAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"nothing":          "",
		"garbage":          "hello\r\n\r\n",
		"another version":  "HTTP/2.0 200 OK\r\n\r\n",
		"no status":        "HTTP/1.1 \r\n\r\n",
		"strange status":   "HTTP/1.1 099 X\r\n\r\n",
		"status 600":       "HTTP/1.1 600 X\r\nContent-Length: 0\r\n\r\n",
		"half a header":    "HTTP/1.1 200 OK\r\nContent-Le",
		"negative length":  "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
		"huge length":      "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
		"strange encoding": "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"NUL":              "HTTP/1.1 200 OK\r\nX-A: b\x00\r\nContent-Length: 0\r\n\r\n",
		"bare CR":          "HTTP/1.1 200 OK\r\nX-A: b\rX-B: c\r\nContent-Length: 0\r\n\r\n",
		"no colon":         "HTTP/1.1 200 OK\r\nX-A\r\nContent-Length: 0\r\n\r\n",
		"no name":          "HTTP/1.1 200 OK\r\n: b\r\nContent-Length: 0\r\n\r\n",
		"long field": "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("b", maxHeader) +
			"\r\nContent-Length: 0\r\n\r\n",
		"101 unasked":         "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"endless 103":         strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 100),
		"half of a short one": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
		"no end of chunks":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"half a chunk":        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
		"long chunk":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloooo\r\n0\r\n\r\n",
		"bad chunk size":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5x\r\nhello\r\n0\r\n\r\n",
		"signed chunk size":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
		"huge chunk size": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" +
			"\r\n8000000000000000\r\nhello\r\n0\r\n\r\n",
		"bare LF behind a size": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
		"endless size":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;" + strings.Repeat("x", 1<<20),
		"half of a long one":    "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("hello", 50_000),
		"half of a long one, 2": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nf4240\r\n" +
			strings.Repeat("hello", 50_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, proto := range []string{"1.1", "1.0"} {
				bad := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
					if request(in) != "" {
						_, _ = io.WriteString(c, answer)
					}
				})
				f := newFront(t, Options{Workers: one(bad.address)})
				c := f.dial()
				fmt.Fprintf(c, "POST / HTTP/%s\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi", proto)
				in := bufio.NewReader(c)
				response, err := http.ReadResponse(in, nil)
				for err == nil && response.StatusCode < 200 {
					response, err = http.ReadResponse(in, nil)
				}
				if err != nil {
					// a cut that came before the head
					if !strings.Contains(err.Error(), "reset") && !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Fatal(err)
					}
				} else if b, err := io.ReadAll(response.Body); response.StatusCode != http.StatusBadGateway && err == nil {
					t.Errorf("HTTP/%s: %d and %d bytes look whole", proto, response.StatusCode, len(b))
				}
				c.Close()
				if r := <-f.records; r.Err == nil || r.Tries != 1 {
					t.Errorf("%+v", r)
				}
				wait(t, "its connection is closed", func() bool { return bad.open.Load() == 0 })
			}
		})
	}
}

// Bytes after a response are dropped.
func TestBytesBehindAnAnswer(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"with a length": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged",
		"no body":       "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged",
		"204, chunks":   "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nforged\r\n0\r\n\r\n",
		"chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 " +
			"OK\r\nContent-Length: 6\r\n\r\nforged",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFront(t, Options{Workers: one(serveRaw(t, say(answer)).address)})
			for range 5 {
				if status, _, body, err := f.get("/"); err != nil || status/100 != 2 || strings.Contains(body, "forged") {
					t.Errorf("%d %q, %v", status, body, err)
				}
			}
		})
	}
}

// TestBytesBeforeTheReader has a request get a connection before the transport has looked for bytes behind the answer.
func TestBytesBeforeTheReader(t *testing.T) {
	t.Parallel()
	arrived := make(chan bool, 10) // requests
	worker := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for request(in) != "" {
			arrived <- true
			_, _ = io.WriteString(c, ok("asked")+ok("forged"))
		}
	})
	f := newFront(t, Options{Workers: []WorkerOptions{{Name: "w0", Address: worker.address, Slots: 2}}})
	var once sync.Once
	var second sync.WaitGroup
	ask := func() {
		if _, _, body, err := f.get("/"); body != "asked" || err != nil {
			t.Errorf("get() = %q, %v, want %q", body, err, "asked")
		}
	}
	f.running = httptrace.WithClientTrace(f.running, &httptrace.ClientTrace{PutIdleConn: func(error) {
		once.Do(func() {
			<-arrived
			second.Go(ask)
			select {
			case <-arrived: // over the same connection
			case <-time.After(200 * time.Millisecond):
			}
		})
	}})
	ask()
	second.Wait()
	if n := worker.dials.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// A client may be slow, as long as it is never silent for long.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	f := newFront(t, Options{Workers: one(serveRaw(t, echo).address), ReadStall: 2 * time.Second})
	for _, test := range []struct {
		parts int
		pause time.Duration
		want  string
	}{{25, 100 * time.Millisecond, " 200 "}, {2, time.Hour, " 408 "}} {
		t.Run(fmt.Sprint(test.parts, test.pause), func(t *testing.T) {
			t.Parallel()
			c := f.dial()
			defer c.Close()
			fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", test.parts)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				for range test.parts {
					_, _ = io.WriteString(c, "x")
					select {
					case <-ctx.Done():
						return
					case <-time.After(test.pause):
					}
				}
			}()
			if line, err := bufio.NewReader(c).ReadString('\n'); !strings.Contains(line, test.want) {
				t.Errorf("%q, %v", line, err)
			}
		})
	}
}

// Bodies and answers of all kinds come through as they are.
func TestBodies(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for {
			r := request(in)
			if r == "" {
				return
			}
			head, body, _ := strings.Cut(r, "\r\n\r\n")
			switch {
			case strings.HasPrefix(head, "POST /chunked"):
				fmt.Fprint(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				for b := []byte(body); len(b) > 0; {
					n := min(len(b), 9_999)
					fmt.Fprintf(c, "%X;x=y\r\n%s\r\n", n, b[:n])
					b = b[n:]
				}
				fmt.Fprint(c, "0\r\n\r\n")
			case strings.HasPrefix(head, "POST /close"):
				fmt.Fprintf(c, "HTTP/1.0 200 OK\r\n\r\n%s", body)
				return
			default:
				fmt.Fprint(c, ok(body))
			}
		}
	})
	f := newFront(t, Options{Workers: one(w.address)})
	for _, size := range []int{0, 1, 4 << 10, 20 << 10, 64 << 10, 64<<10 + 1, 1 << 20, 5 << 20} {
		body := make([]byte, size)
		_, _ = rand.Read(body)
		for _, kind := range []string{"sized", "chunked", "close"} {
			for _, long := range []bool{false, true} {
				content := io.Reader(bytes.NewReader(body))
				if long {
					content = io.MultiReader(content) // sent in chunks
				}
				status, _, got, err := f.do(http.MethodPost, "/"+kind, content)
				if err != nil || status != 200 || got != string(body) {
					t.Errorf("%s, %d bytes, chunks %v: %d, %d bytes, %v", kind, size, long, status, len(got), err)
				}
			}
		}
	}
	wait(t, "no bytes in memory are left", func() bool { return f.memory.used.Load() == 0 })
}

func TestTooMuch(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, echo)
	f := newFront(t, Options{Workers: one(w.address), MaxBody: 100 << 10})
	for length, want := range map[int]int{100 << 10: 200, 100<<10 + 1: 413} {
		for _, chunks := range []bool{false, true} {
			content := io.Reader(strings.NewReader(strings.Repeat("x", length)))
			if chunks {
				content = io.MultiReader(content)
			}
			if status, _, _, err := f.do(http.MethodPost, "/", content); err == nil && status != want {
				t.Errorf("%d bytes, chunks %v: status = %d, want %d", length, chunks, status, want)
			}
			if r := <-f.records; want == 413 && r.Tries != 0 {
				t.Errorf("%d bytes, chunks %v: record = %+v, want no tries", length, chunks, r)
			}
		}
	}
	slow := newFront(t, Options{Workers: one(w.address), ReadStall: 50 * time.Millisecond})
	if got := slow.raw("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel"); !strings.HasPrefix(got,
		"HTTP/1.1 408 ") {
		t.Errorf("a body that does not come: %q", got)
	}
	if got := slow.raw("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"); !strings.HasPrefix(got,
		"HTTP/1.1 408 ") {
		t.Errorf("chunks that do not come: %q", got)
	}
}

// A worker gets a long body while it is received. Problems of the client are not counted as the worker's.
func TestLongBody(t *testing.T) {
	t.Parallel()
	const size = 3 * maxStored
	for name, test := range map[string]struct {
		head string
		sent int // bytes of the body
		want string
	}{
		"too long": {"Transfer-Encoding: chunked\r\n\r\n" + strconv.FormatInt(2*size, 16) + "\r\n", 2 * size, " 413 "},
		"stalls":   {"Content-Length: " + itoa(size) + "\r\n\r\n", size - 1, " 408 "},
		"damaged":  {"Transfer-Encoding: chunked\r\n\r\n" + strconv.FormatInt(size, 16) + "\r\n", size + 10, " 400 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serveRaw(t, echo)
			f := newFront(t, Options{Workers: one(w.address), MaxBody: size, ReadStall: time.Second})
			c := f.dial()
			defer c.Close()
			go func() {
				_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\n"+test.head+strings.Repeat("x", test.sent))
			}()
			if line, err := bufio.NewReader(c).ReadString('\n'); !strings.Contains(line, test.want) {
				t.Errorf("response = %q, %v, want status%s", line, err, test.want)
			}
			if r := <-f.records; r.Err == nil || r.Tries != 1 {
				t.Errorf("record = %+v, want an error after one try", r)
			}
			wait(t, "its connection is closed", func() bool { return w.open.Load() == 0 })
			if s := f.Workers()[0]; s.Failed != 0 || s.InFlight != 0 {
				t.Errorf("worker = %+v, want no failure and no request", s)
			}
			if n := f.memory.used.Load(); n != 0 {
				t.Errorf("bytes of memory = %d, want 0", n)
			}
		})
	}
}

// Without memory, bodies and responses pass at the speed of the client.
func TestNoMemory(t *testing.T) {
	t.Parallel()
	f := newFront(t, Options{Workers: one(serveRaw(t, echo).address)})
	f.memory.limit = 0
	content := strings.Repeat("0123456789", 30_000)
	for _, chunks := range []bool{false, true} {
		body := io.Reader(strings.NewReader(content))
		if chunks {
			body = io.MultiReader(body)
		}
		if status, _, got, err := f.do(http.MethodPost, "/", body); err != nil || status != 200 ||
			!strings.HasSuffix(got, content) {
			t.Errorf("chunks %v: status = %d, %d bytes, %v, want 200", chunks, status, len(got), err)
		}
	}
}
