package app

import (
	"bufio"
	"net"
	"net/http"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// client is the response as the client gets it. It records how much of it was sent.
type client struct {
	http.ResponseWriter
	e      *exchange
	began  bool // the response has begun
	closes bool // the connection is closed after the response
}

// WriteHeader sends a header.
func (c *client) WriteHeader(status int) {
	header := c.Header()
	if status < 200 && !c.e.r.ProtoAtLeast(1, 1) {
		return // HTTP/1.0 has no such responses
	}
	if status >= 200 {
		if c.closes || c.e.body.rest.isPending() { // ReverseProxy clears all fields after a 1xx response
			header.Set("Connection", "close")
		}
		if _, ok := header["Content-Type"]; !ok {
			header["Content-Type"] = nil // so that net/http does not guess it
		}
		c.began, c.e.Status = true, status
		inflight.From(c.e.ctx).SetStage(inflight.Sending)
	}
	c.ResponseWriter.WriteHeader(status)
}

// Write sends a part of the body.
func (c *client) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.e.Out += int64(n)
	if err != nil {
		c.e.lost(err)
	}
	return n, err
}

// lost notes that the client cannot be sent the rest of a response.
func (e *exchange) lost(err error) {
	if e.Cut = true; isTimeout(err) {
		e.Err = fault.Wrap(fault.Deadline, "the client took too long to receive the response", err)
		return
	}
	e.Err = fault.Wrap(fault.Cancelled, "the client disconnected", err)
}

// Unwrap is for http.ResponseController.
func (c *client) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Hijack takes over the connection for an upgrade.
func (c *client) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(c.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	c.Header().Del("Connection")
	c.began, c.e.Status, c.e.Upgraded = true, http.StatusSwitchingProtocols, true
	return c.e.tunnel.start(conn, buffered.Reader, c.e.p.UpgradeIdle), buffered, nil
}
