package httpguard

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// usual is a request of git.
const usual = "GET /team/app.git/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: git.example.org\r\nUser-Agent: " +
	"git/2.39.5\r\nAccept: */*\r\n" +
	"Accept-Encoding: deflate, gzip, br, zstd\r\nAccept-Language: en-US, *;q=0.9\r\nPragma: no-cache\r\nAuthorization: " +
	"Basic Z2l0OnBoa19hYmNkZWZnaGlqa2xtbm9wcXJzdHV2\r\n" +
	"Git-Protocol: version=2\r\n\r\n"

// BenchmarkFollow measures the checks of a head.
func BenchmarkFollow(b *testing.B) {
	b.ReportAllocs()
	b.SetBytes(int64(len(usual)))
	var f follower
	for head := []byte(usual); b.Loop(); {
		if n, bad := f.follow(head); bad != nil || n != len(head) {
			b.Fatal(n, bad)
		}
	}
}

// serve starts a server that reads bodies, and connects to it.
func serve(b *testing.B, guarded bool) (*net.TCPConn, *bufio.Reader) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	h := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			b.Error(err)
		}
	})}
	address := l.Addr().String()
	if guarded {
		g := New(Options{})
		h.ConnContext, h.ConnState = g.Context, g.State
		l = g.Listen(l)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = h.Serve(l) }()
	c, err := net.Dial("tcp", address)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		c.Close()
		h.Close()
		<-served
	})
	return c.(*net.TCPConn), bufio.NewReader(c)
}

func answered(b *testing.B, r *bufio.Reader) {
	b.Helper()
	response, err := http.ReadResponse(r, nil)
	if err != nil || response.StatusCode != http.StatusOK {
		b.Fatal(err, response)
	}
}

// BenchmarkRequest measures a request without a body, over a socket.
func BenchmarkRequest(b *testing.B) {
	for _, guarded := range []bool{false, true} {
		b.Run(fmt.Sprintf("guarded=%v", guarded), func(b *testing.B) {
			c, r := serve(b, guarded)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := io.WriteString(c, usual); err != nil {
					b.Fatal(err)
				}
				answered(b, r)
			}
		})
	}
}

// BenchmarkBody measures a long body, as of a push, over a socket.
func BenchmarkBody(b *testing.B) {
	const part, parts = 64 << 10, 1 << 10
	data := strings.Repeat("x", part)
	for _, kind := range []struct{ name, head, part, end string }{
		{"length", fmt.Sprintf("Content-Length: %d\r\n\r\n", part*parts), data, ""},
		{"chunks", te + "\r\n", fmt.Sprintf("%x\r\n%s\r\n", part, data), "0\r\n\r\n"},
		{"small chunks", te + "\r\n", strings.Repeat("400\r\n"+data[:1<<10]+"\r\n", part>>10), "0\r\n\r\n"},
	} {
		for _, guarded := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/guarded=%v", kind.name, guarded), func(b *testing.B) {
				c, r := serve(b, guarded)
				chunk := []byte(kind.part)
				b.SetBytes(part * parts)
				b.ReportAllocs()
				for b.Loop() {
					_, err := io.WriteString(c, post+kind.head)
					for i := 0; i < parts && err == nil; i++ {
						_, err = c.Write(chunk)
					}
					if err == nil {
						_, err = io.WriteString(c, kind.end)
					}
					if err != nil {
						b.Fatal(err)
					}
					answered(b, r)
				}
			})
		}
	}
}
