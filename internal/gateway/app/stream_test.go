package app

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Streams are passed on at once, piece by piece.
func TestStreams(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ head, before, after string }{
		"events": {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
			"5\r\n", "\r\n"},
		"chunks":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "5\r\n", "\r\n"},
		"to the end": {"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", "", ""},
		"long":       {"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			step := make(chan bool)
			w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
				if request(in) == "" {
					return
				}
				_, _ = io.WriteString(c, test.head)
				for range step {
					_, _ = io.WriteString(c, test.before+"hello"+test.after)
				}
			})
			f := newFront(t, Options{Workers: one(w.address), StallTimeout: time.Hour})
			c := f.dial()
			defer c.Close()
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			response, err := http.ReadResponse(bufio.NewReader(c), nil) // the head comes before there is a body
			if err != nil || response.StatusCode != 200 || response.Header.Get("X-Accel-Buffering") != "" {
				t.Fatal(response, err)
			}
			for range 5 {
				step <- true
				var b [5]byte
				if _, err := io.ReadFull(response.Body, b[:]); err != nil || string(b[:]) != "hello" {
					t.Fatalf("%q, %v", b, err)
				}
			}
			close(step)
			if b, err := io.ReadAll(response.Body); (err == nil) != (name == "to the end") {
				t.Errorf("then %q, %v", b, err)
			}
		})
	}
}

// A slow client holds its worker only if the response is longer than what is stored.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	content := make([]byte, 32<<20) // more than the kernel holds
	_, _ = rand.Read(content)
	w := serveRaw(t, func(_ int, c net.Conn, in *bufio.Reader) {
		for r := request(in); r != ""; r = request(in) {
			content := content
			if strings.Contains(r, "stored") {
				content = content[:maxStored]
			}
			switch {
			case strings.HasPrefix(r, "GET /length"):
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(content))
				_, _ = c.Write(content)
			case strings.HasPrefix(r, "GET /chunks"):
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", len(content))
				_, _ = c.Write(content)
				_, _ = io.WriteString(c, "\r\n0\r\n\r\n")
			default:
				_, _ = io.WriteString(c, ok("short"))
			}
		}
	})
	for _, path := range []string{"/length", "/chunks", "/length-stored", "/chunks-stored"} {
		t.Run(path[1:], func(t *testing.T) {
			t.Parallel()
			f := newFront(t, Options{Workers: one(w.address)})
			c := f.dial()
			defer c.Close()
			_, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
			want := content
			if strings.Contains(path, "stored") {
				want = content[:maxStored]
				if status, _, body, err := f.get("/"); err != nil || status != 200 || body != "short" {
					t.Errorf("the worker does not answer others: %d %q, %v", status, body, err)
				}
			}
			response, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(response.Body); err != nil || !bytes.Equal(b, want) {
				t.Errorf("%d bytes, %v, want %d", len(b), err, len(want))
			}
			if status, _, body, err := f.get("/"); err != nil || status != 200 || body != "short" {
				t.Errorf("after it: %d %q, %v", status, body, err)
			}
			wait(t, "no bytes in memory are left", func() bool { return f.memory.used.Load() == 0 })
		})
	}
}

// Responses without a body, with early hints and in other special forms are passed on.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, answer string
		want         []string // in what the client receives
		never        []string
	}{
		{"HEAD /length", "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", []string{"Content-Length: 1234\r\n"}, nil},
		{"HEAD /chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", []string{"HTTP/1.1 200 OK\r\n"},
			[]string{"\r\n0\r\n"}},
		{"GET /204", "HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n", []string{"HTTP/1.1 204 No Content\r\n", "X-A: b\r\n"},
			[]string{"Content-Length", "Transfer-Encoding"}},
		{"GET /304", "HTTP/1.1 304 Not Modified\r\nEtag: \"x\"\r\n\r\n",
			[]string{"HTTP/1.1 304 Not Modified\r\n", "Etag: \"x\"\r\n"}, []string{"Transfer-Encoding"}},
		{"GET /empty", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", []string{"Content-Length: 0\r\n"},
			[]string{"Content-Type"}},
		{"GET /no-type", "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", []string{"<html>"}, []string{"Content-Type"}},
		{"GET /hints", "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 " +
			"OK\r\nContent-Length: 2\r\n\r\nok",
			[]string{"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n", "HTTP/1.1 200 OK\r\n"}, nil},
		{"GET /cookies", "HTTP/1.1 200 OK\r\nset-cookie: a=b\r\nSet-Cookie: c=d\r\nContent-Length: 0\r\n\r\n",
			[]string{"Set-Cookie: a=b\r\n", "Set-Cookie: c=d\r\n"}, nil},
		{"GET /trailers", "HTTP/1.1 200 OK\r\nTrailer: X-Sum, X-Accel-Redirect\r\nTransfer-Encoding: " +
			"chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\nX-Accel-Redirect: /x\r\n\r\n",
			[]string{"Trailer: X-Sum\r\n", "\r\n0\r\nX-Sum: 1\r\n\r\n"}, []string{"Accel"}},
		{"GET /internal", "HTTP/1.1 200 OK\r\nX-Packhorse-User: a\r\nPackhorse-Request: " +
			"evil\r\nGitlab-Workhorse-Send-Data: evil\r\nX-Sendfile: /etc/passwd\r\nX-Accel-Redirect: " +
			"/evil\r\nX-Accel-Limit-Rate: 1\r\nContent-Length: 2\r\n\r\nok",
			[]string{"ok"}, []string{"evil", "passwd", "Packhorse", "Accel", "Workhorse"}},
		{"GET /hop", "HTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: evil\r\nKeep-Alive: evil\r\nProxy-Authenticate: " +
			"evil\r\nUpgrade: evil\r\nContent-Length: 2\r\n\r\nok",
			[]string{"ok"}, []string{"evil"}},
		{"GET /reason", "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", []string{"HTTP/1.1 200 OK\r\n"}, nil},
		{"GET /599", "HTTP/1.1 599 Odd\r\nContent-Length: 2\r\n\r\nok", []string{"HTTP/1.1 599 "}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := serveRaw(t, say(test.answer))
			f := newFront(t, Options{Workers: []WorkerOptions{{Name: "w0", Address: w.address}}})
			for range 2 { // on the same connection to the worker, if that can be kept
				got := f.raw(test.name + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
				for _, want := range test.want {
					if !strings.Contains(got, want) {
						t.Errorf("no %q in %q", want, got)
					}
				}
				for _, never := range test.never {
					if strings.Contains(got, never) {
						t.Errorf("%q in %q", never, got)
					}
				}
				if r := <-f.records; r.Err != nil || r.Cut {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// TestTrailersBesideTheHeader requests short responses with trailers. The race detector checks that the goroutine that
// reads the trailer from the worker does not write to the map that the client's header is made from.
func TestTrailersBesideTheHeader(t *testing.T) {
	t.Parallel()
	w := serveRaw(t, say("HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: "+
		"chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\n"+
		"X-Accel-Redirect: /a\r\n\r\n"))
	f := newFront(t, Options{Workers: one(w.address)})
	for range 20 {
		got := f.raw("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		if want := "\r\n0\r\nX-Sum: 1\r\n\r\n"; !strings.Contains(got, want) || strings.Contains(got, "Accel") {
			t.Errorf("response = %q, want %q and no X-Accel-Redirect", got, want)
		}
		<-f.records
	}
}
