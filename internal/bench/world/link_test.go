package world

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// A link limits its rate, delays, refuses connections while it is down, and has the same address afterwards.
func TestLink(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				io.CopyN(io.Discard, conn, 1)
				conn.Write(make([]byte, 3*burst))
				conn.Close()
			}()
		}
	}()
	l, err := NewLink(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.Shape(20*burst, 10*time.Millisecond)
	read := func() (int64, error) {
		conn, err := net.Dial("tcp", l.Addr())
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		conn.Write([]byte{0})
		return io.Copy(io.Discard, conn)
	}
	begun := time.Now()
	n, err := read()
	// one burst passes at once, two take 50 ms each, and both directions are delayed
	if took, want := time.Since(begun), 110*time.Millisecond; err != nil || n != 3*burst || took < want {
		t.Errorf("got %d bytes in %v, %v, want %d in %v or more", n, took, err, 3*burst, want)
	}
	if l.Bytes() != n {
		t.Errorf("Bytes() = %d, want %d", l.Bytes(), n)
	}
	l.Down()
	if _, err := read(); err == nil {
		t.Error("the link is down and accepts a connection")
	}
	if err := l.Up(); err != nil {
		t.Fatal(err)
	}
	l.Shape(0, 0)
	if n, err := read(); err != nil || n != 3*burst {
		t.Errorf("after Up: got %d bytes, %v, want %d", n, err, 3*burst)
	}
}

// TestCut cuts a connection of a client that sends, and passes the next one.
func TestCut(t *testing.T) {
	t.Parallel()
	var received atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body) // the error of a cut body is expected
		received.Add(n)
	}))
	defer s.Close()
	l, err := NewLink(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const size, at = 3 << 20, 1 << 20
	l.CutAt(at)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	post := func() error {
		response, err := client.Post("http://"+l.Addr(), "", bytes.NewReader(make([]byte, size)))
		if err == nil {
			response.Body.Close()
		}
		return err
	}
	if err := post(); err == nil || !l.Cut() {
		t.Errorf("a request through a cut: got error %v, cut %v, want both", err, l.Cut())
	}
	if err := post(); err != nil {
		t.Error(err)
	}
	if n := l.Sent(); n < size+at || n < received.Load() {
		t.Errorf("%d bytes sent, want at least %d and those that the server got, %d", n, size+at, received.Load())
	}
}
