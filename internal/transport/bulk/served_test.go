package bulk

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// patience is the timeout of events that must happen, on any machine.
const patience = time.Minute

// served is a pair of connections, the first as net/http has it.
func servedPair(t *testing.T) (server *Conn, client *net.TCPConn, ctx context.Context) {
	t.Helper()
	server, client = connect(t, NewPump(PumpOptions{}), patience)
	ctx = Serve(t.Context(), server)
	return server, client, ctx
}

func write(t *testing.T, c io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

// A removed limit does not end a read when it passes. A limit in force does, also if it is set while a read waits.
func TestServedReadLimits(t *testing.T) {
	t.Parallel()
	server, client, _ := servedPair(t)
	write(t, client, "a")
	buf := make([]byte, 10)
	var limit time.Time
	for {
		limit = time.Now().Add(20 * time.Millisecond)
		_ = server.SetReadDeadline(limit)
		if n, err := server.Read(buf); err == nil && n == 1 {
			break
		} else if !errors.Is(err, os.ErrDeadlineExceeded) { // a machine that stood still
			t.Fatal(n, err)
		}
	}
	read := func() chan error {
		got := make(chan error, 1)
		go func() { _, err := server.Read(buf); got <- err }()
		return got
	}
	_ = server.SetReadDeadline(time.Now().Add(time.Hour))
	got := read()
	other, _, _ := servedPair(t)
	_ = other.SetReadDeadline(limit)
	if _, err := other.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) { // the limit has passed
		t.Fatal(err)
	}
	select {
	case err := <-got:
		t.Fatal("a read ended without bytes, want it to block:", err)
	default:
	}
	write(t, client, "b")
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	_ = server.SetReadDeadline(time.Time{})
	got = read()
	_ = server.SetReadDeadline(longAgo)
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	if _, err := server.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	_ = server.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := server.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	_ = server.SetReadDeadline(time.Time{})
	write(t, client, "c")
	if n, err := server.Read(buf); err != nil || n != 1 {
		t.Fatal(n, err)
	}
}

// Of reads of one byte, the first one behind bytes is spared, and no other.
func TestServedReadsOfOneByte(t *testing.T) {
	t.Parallel()
	server, client, ctx := servedPair(t)
	write(t, client, "abcd")
	var one [1]byte
	if n, err := server.Read(one[:]); n != 1 || err != nil || one[0] != 'a' {
		t.Fatal(n, err)
	}
	if n, err := server.Read(one[:]); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	rest := make([]byte, 3)
	for i := range rest {
		if n, err := io.ReadFull(server, rest[i:i+1]); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if string(rest) != "bcd" || ctx.Err() != nil {
		t.Errorf("%q, %v", rest, ctx.Err())
	}
}

// front is net/http's server on connections that are served.
func serve(t *testing.T, handler http.HandlerFunc) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handler, ConnContext: Serve, ReadHeaderTimeout: patience, IdleTimeout: patience}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(Listen(l, NewPump(PumpOptions{}), patience)) }()
	t.Cleanup(func() { s.Close(); <-done })
	return l.Addr().String()
}

func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn)
}

// The disconnect of a client ends the context of its request at any time and in any way, also behind answered requests.
func TestServedClientGoesAway(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(c *net.TCPConn){
		"closes": func(c *net.TCPConn) { c.Close() },
		"resets": func(c *net.TCPConn) { _ = c.SetLinger(0); c.Close() },
		"ends":   func(c *net.TCPConn) { _ = c.CloseWrite() },
		"closes behind another request": func(c *net.TCPConn) {
			_, _ = c.Write([]byte("GET /short HTTP/1.1\r\nHost: a\r\n\r\n"))
			time.Sleep(3 * lasting) // it is seen alone, too
			c.Close()
		},
	} {
		if runtime.GOOS != "linux" && strings.Contains(name, "behind") {
			t.Log("what is behind another request cannot be seen on this system")
			continue
		}
		for _, before := range []time.Duration{0, 3 * lasting} {
			t.Run(name+" after "+before.String(), func(t *testing.T) {
				t.Parallel()
				waiting, ended := make(chan struct{}), make(chan error, 1)
				address := serve(t, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/short" {
						return
					}
					_, _ = io.ReadAll(r.Body) // only then it is looked
					close(waiting)
					select {
					case <-r.Context().Done():
					case <-time.After(patience):
					}
					ended <- r.Context().Err()
				})
				c := dial(t, address)
				in := bufio.NewReader(c)
				for range 3 {
					write(t, c, "GET /short HTTP/1.1\r\nHost: a\r\n\r\n")
					response, err := http.ReadResponse(in, nil)
					if err != nil {
						t.Fatal(err)
					}
					response.Body.Close()
				}
				write(t, c, "POST /long HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
				<-waiting
				time.Sleep(before)
				leave(c)
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
	}
}

// Data that arrives while a long answer is sent is the next request, and not a disconnect.
func TestServedKeepsConnections(t *testing.T) {
	t.Parallel()
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/long") {
			time.Sleep(4 * lasting)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Context().Err() != nil {
			http.Error(w, "gone", http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, r.URL.Path+string(body))
	})
	c := dial(t, address)
	in := bufio.NewReader(c)
	want := func(texts ...string) {
		t.Helper()
		for _, text := range texts {
			response, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(response.Body); string(b) != text || err != nil ||
				response.StatusCode != http.StatusOK {
				t.Errorf("%q, %v", b, err)
			}
		}
	}
	get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n" }
	for range 3 {
		write(t, c, get("/a"))
		want("/a")
		write(t, c, get("/long/1"))
		want("/long/1")
		write(t, c, get("/long/2")+"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"+get("/long/3"))
		want("/long/2", "/bhi", "/long/3")
		write(t, c, get("/long/4"))
		time.Sleep(3 * lasting)
		write(t, c, get("/c"))
		want("/long/4", "/c")
		write(t, c, "POST /long/5 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n")
		time.Sleep(3 * lasting)
		write(t, c, "0\r\n\r\n")
		want("/long/5hi")
	}
}
