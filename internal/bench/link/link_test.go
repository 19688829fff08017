package link

import (
	"io"
	"net"
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
	l, err := New(listener.Addr().String())
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
