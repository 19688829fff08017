package httpguard

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"time"
)

// secure is a connection with TLS. net/http shakes hands only on what is a *tls.Conn itself; of another one it asks for the state, once, before
// it reads: the hands are shaken then.
type secure struct {
	conn
	tls *tls.Conn
}

// ConnectionState is what net/http has for a request's TLS.
func (c *secure) ConnectionState() tls.ConnectionState {
	if c.err == nil && !c.tls.ConnectionState().HandshakeComplete {
		if err := c.handshake(); err != nil {
			c.guard.logf("http: TLS handshake error from %s: %v", c.RemoteAddr(), err)
			c.err = io.EOF
			c.Close()
		}
	}
	return c.tls.ConnectionState()
}

func (c *secure) handshake() error {
	if limit := c.guard.TLSLimit; limit > 0 {
		if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
	}
	err := c.tls.Handshake()
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok && record.Conn != nil {
		text := ""
		switch begin := string(record.RecordHeader[:]); {
		case isPlain(record.RecordHeader):
			text = "this port speaks HTTPS: write https:// in the address\n"
		case begin == "PROXY" || begin == "\r\n\r\n\x00":
			text, err = proxyHeader.Error()+"\n", proxyHeader
			c.guard.count(proxyHeader)
			if c.guard.Refused != nil {
				c.guard.Refused(c.RemoteAddr(), proxyHeader)
			}
		}
		if text != "" {
			fmt.Fprintf(record.Conn, "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		}
	}
	if err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// isPlain tells a request of HTTP where TLS should begin.
func isPlain(begin [5]byte) bool {
	switch string(begin[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		return true
	}
	return false
}

func (g *Guard) logf(format string, args ...any) {
	if g.Log != nil {
		g.Log.Printf(format, args...)
	}
}
