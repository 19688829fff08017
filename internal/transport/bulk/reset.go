package bulk

import (
	"net"
	"net/http"
)

// Reset closes the connection of an incomplete response with a TCP reset. An HTTP/1.0 client does not know chunks, so
// it takes a normal close for the end of the response (RFC 9112, section 8). Reset hijacks the connection from
// net/http.
func Reset(w http.ResponseWriter) {
	nc, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	for c := nc; ; {
		switch inner := c.(type) {
		case *net.TCPConn:
			_ = inner.SetLinger(0)
			inner.Close()
			nc.Close()
			return
		case *Conn:
			c = inner.Socket
		case interface{ NetConn() net.Conn }:
			c = inner.NetConn()
		default:
			nc.Close()
			return
		}
	}
}
