package loadgen

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"
)

// FuzzResponse parses any bytes as responses with both readers. Neither hangs nor panics, and if the small reader
// completes, the other has the same body.
func FuzzResponse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhell\r\n1\r\no\r\n0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 204 No\r\n\r\n"))
	f.Add([]byte("HTTP/1.0 200\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var x Exchange
		done := false
		for rest := b; len(rest) > 0 && !done; {
			n := copy(x.space(), rest[:min(len(rest), 3)])
			var err error
			if done, err = x.took(n); err != nil {
				return
			}
			rest = rest[n:]
		}
		if !done {
			return
		}
		c := NewConn(&bytesConn{r: bytes.NewReader(b)}, new(atomic.Int64))
		h, err := c.ReadHead()
		if err != nil {
			t.Fatal(err)
		}
		var body []byte
		for r := c.Body(h); ; {
			p, err := r.Next(16)
			body = append(body, p...)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%v where the small reader was done", err)
			}
		}
		if h.Status != x.Head.Status || !bytes.Equal(body, x.Body) {
			t.Errorf("status %d, body %q; small reader: %d, %q", h.Status, body, x.Head.Status, x.Body)
		}
	})
}

// bytesConn is a connection that supports only reads.
type bytesConn struct {
	net.Conn
	r io.Reader
}

func (c *bytesConn) Read(p []byte) (int, error) { return c.r.Read(p) }
