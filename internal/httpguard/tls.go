package httpguard

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"time"
)

// tlsConn is a guarded connection with TLS. net/http makes the handshake only for a *tls.Conn itself. It asks other
// connections for their state, once and before it reads. The handshake is made then.
type tlsConn struct {
	conn
	tls *tls.Conn
}

// ConnectionState returns the TLS state for the requests of the connection.
func (c *tlsConn) ConnectionState() tls.ConnectionState {
	if c.err == nil && !c.tls.ConnectionState().HandshakeComplete {
		if err := c.handshake(); err != nil {
			if c.guard.Log != nil {
				c.guard.Log.Printf("http: TLS handshake error from %s: %v", c.RemoteAddr(), err)
			}
			c.err = io.EOF
			c.Close()
		}
	}
	return c.tls.ConnectionState()
}

func (c *tlsConn) handshake() error {
	if limit := c.guard.TLSLimit; limit > 0 {
		if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
	}
	err := c.tls.Handshake()
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok && record.Conn != nil {
		text := ""
		switch string(record.RecordHeader[:]) {
		case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
			text = "this port needs HTTPS: use https:// in the address\n"
		case "PROXY", "\r\n\r\n\x00":
			text, err = proxyHeader.Error()+"\n", proxyHeader
			c.guard.count(proxyHeader)
			if c.guard.Refused != nil {
				c.guard.Refused(c.RemoteAddr(), proxyHeader)
			}
		}
		if text != "" {
			fmt.Fprintf(record.Conn, "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: "+
				"%d\r\n\r\n%s", len(text), text)
		}
	}
	if err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}
