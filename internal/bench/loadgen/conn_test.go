package loadgen

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"
)

// FuzzResponse parses any bytes as a response, in pieces of several sizes. It neither hangs nor panics, and all sizes
// have the same body.
func FuzzResponse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhell\r\n1\r\no\r\n0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 204 No\r\n\r\n"))
	f.Add([]byte("HTTP/1.0 200\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		read := func(step int) (body []byte, err error) {
			c := NewConn(&bytesConn{r: bytes.NewReader(b), step: step}, new(atomic.Int64), 0)
			r, err := c.Response()
			for err == nil {
				var p []byte
				p, err = r.Next(16)
				body = append(body, p...)
			}
			if err == io.EOF && r != nil {
				return body, nil
			}
			return nil, err
		}
		body, err := read(len(b))
		for step := 1; step < 4; step++ {
			again, bad := read(step)
			if (bad == nil) != (err == nil) || !bytes.Equal(again, body) {
				t.Errorf("in pieces of %d bytes: %q, %v, want %q, %v", step, again, bad, body, err)
			}
		}
	})
}

// bytesConn is a connection that supports only reads.
type bytesConn struct {
	net.Conn
	r    io.Reader
	step int
}

func (c *bytesConn) Read(p []byte) (int, error) { return c.r.Read(p[:min(len(p), c.step)]) }
