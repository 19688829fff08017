package app

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// checkUpgrade finds the protocol that a client wants to switch to (RFC 9110, section 7.8), or returns why it may not.
// An upgrade to HTTP/2 is ignored, because a worker could be sent other requests on that connection.
func (e *exchange) checkUpgrade() (problem string) {
	r := e.r
	protocols := clients.List(r.Header["Upgrade"])
	if !r.ProtoAtLeast(1, 1) || e.p.MaxUpgrades < 0 || len(protocols) == 1 && strings.EqualFold(protocols[0], "h2c") {
		return ""
	}
	name, _, _ := strings.Cut(protocols[0], "/")
	switch {
	case !httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade"):
		return "Upgrade without Connection: Upgrade"
	case len(protocols) > 1 || !httpguts.ValidHeaderFieldName(strings.Replace(protocols[0], "/", "", 1)):
		return "Upgrade must name one protocol"
	case slices.Contains([]string{"h2c", "h2", "http", "tls"}, strings.ToLower(name)):
		return "Upgrade to this protocol is not supported"
	case r.Method != http.MethodGet:
		return "Upgrade needs GET"
	case r.ContentLength != 0:
		return "Upgrade with a request body"
	}
	e.upgrade = protocols[0]
	return ""
}

// acceptUpgrade takes a response with status 101. The worker is free for other requests from now on.
func (e *exchange) acceptUpgrade(s *seat, response *http.Response) (*http.Response, error) {
	isWanted := e.upgrade != "" && strings.EqualFold(response.Header.Get("Upgrade"), e.upgrade) &&
		httpguts.HeaderValuesContainsToken(response.Header["Connection"], "upgrade") &&
		response.Header.Get("Content-Length") == ""
	switch {
	case e.ctx.Err() != nil:
		response.Body.Close()
		s.done(balance.Cut)
		return nil, e.ctx.Err()
	case !isWanted:
		response.Body.Close()
		s.done(balance.Failed)
		return nil, fault.New(fault.Internal, "the application switched to a protocol that was not requested")
	}
	s.done(balance.Cut)
	response.Header["Connection"] = []string{"Upgrade"}
	return response, nil
}

// tunnel is the client's side of an upgraded connection. It fails when neither side sends anything for the idle time.
type tunnel struct {
	net.Conn
	early   *bufio.Reader // the bytes that the client sent before the switch
	idle    time.Duration
	in, out atomic.Int64
	err     atomic.Pointer[error] // the first one
}

func (t *tunnel) start(c net.Conn, early *bufio.Reader, idle time.Duration) *tunnel {
	t.Conn, t.early, t.idle = c, early, idle
	t.renew()
	return t
}

// renew sets the deadline of both directions, also for a Read that waits.
func (t *tunnel) renew() { _ = t.SetDeadline(time.Now().Add(t.idle)) }

func (t *tunnel) Read(p []byte) (n int, err error) {
	if n = t.early.Buffered(); n > 0 {
		n, err = t.early.Read(p[:min(n, len(p))])
	} else {
		n, err = t.Conn.Read(p)
	}
	t.in.Add(int64(n))
	return n, t.note(err)
}

func (t *tunnel) Write(p []byte) (int, error) {
	t.renew()
	n, err := t.Conn.Write(p)
	t.out.Add(int64(n))
	return n, t.note(err)
}

// note renews the deadline, or keeps an error.
func (t *tunnel) note(err error) error {
	if err == nil {
		t.renew()
	} else if err != io.EOF && !errors.Is(err, net.ErrClosed) {
		t.err.CompareAndSwap(nil, &err)
	}
	return err
}

// CloseWrite ends the direction to the client.
func (t *tunnel) CloseWrite() error {
	if half, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// finish adds what happened to the record.
func (t *tunnel) finish(e *exchange) {
	e.In, e.Out, e.Cut = t.in.Load(), t.out.Load(), false
	switch err := t.err.Load(); {
	case err != nil && isTimeout(*err):
		e.Err = fault.New(fault.Deadline, "the upgraded connection was idle for too long")
	case err != nil:
		e.Err = fault.Wrap(fault.Cancelled, "the upgraded connection was cut", *err)
	}
}
