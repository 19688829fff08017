package gitssh

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// request is one request of a session, and its response.
type request struct {
	gateway.Request
	session *session
}

// begin begins a request of the session.
func (s *session) begin(op *gateway.Operation) *request {
	q := &request{session: s, Request: s.Begin(s.ctx, op, s.wire.RemoteAddr().String(), nil)}
	q.Repo = s.command.repo
	q.Reidentify = func(context.Context) (auth.Identity, error) { return s.identify() }
	return q
}

// may determines the caller and whether they may perform an operation; if not, it sends the reason.
func (q *request) may(op auth.Operation) bool {
	err := q.authorize(op)
	if err != nil {
		q.fail(err)
	}
	return err == nil
}

// authorize determines the caller, and returns why they may not perform an operation.
func (q *request) authorize(op auth.Operation) (err error) {
	if q.ID, err = q.session.identify(); err == nil {
		err = q.Authorize(op)
	}
	if fault.Is(err, fault.Unauthenticated) && q.ID.Anonymous() && q.session.user.key == nil {
		err = fault.New(fault.Unauthenticated, "authentication required: log in with a key")
	}
	return err
}

// respond admits the request, has a node answer it, and ends the response. It reports whether the response is complete,
// so that the session can continue.
func (q *request) respond(body *gateway.Body, ask func(*gateway.Response)) bool {
	return q.respondTo(&sink{q: q}, body, ask)
}

// respondTo is respond for a sink.
func (q *request) respondTo(sink gateway.Sink, body *gateway.Body, ask func(*gateway.Response)) bool {
	seat, err := q.Enter()
	if err != nil {
		q.fail(err)
		return false
	}
	defer seat.Leave()
	response := gateway.NewResponse(&q.Request, sink, seat, body)
	ask(response)
	if err := response.Finish(); err == nil {
		return true
	}
	_, reported := errors.AsType[*node.ReportedError](q.Err)
	_, broken := errors.AsType[*node.ClientConnError](q.Err)
	s := q.session
	switch {
	case !response.Begun():
		q.fail(q.Err)
	case !reported && !broken: // the response is incomplete; the exit status reports that too
		s.writing.Reset(s.WriteStall)
		s.say("packhorse: " + fault.Message(q.Err))
		s.writing.Stop()
	}
	return false
}

// fail sends the reason why there is no response.
func (q *request) fail(err error) {
	q.Err = err
	s := q.session
	s.writing.Reset(s.WriteStall)
	defer s.writing.Stop()
	if q.Op == gateway.Push { // the client of a push reads side-bands, which do not have such a packet
		s.say("packhorse: " + fault.Message(err))
		return
	}
	n, _ := s.channel.Write(protocol.AppendError(nil, fault.Message(err)))
	q.Sent(n)
}

// Transport implements gateway.FrontEnd.
func (q *request) Transport() string { return "ssh" }

// Attributes implements gateway.FrontEnd.
func (q *request) Attributes(a []slog.Attr) []slog.Attr {
	agent := q.Outcome.Agent
	if agent == "" {
		agent = q.session.agent
	}
	return append(a,
		slog.String("client", q.Client), slog.String("protocol",
			"SSH "+protocol.ParseVersion(q.session.environment).String()),
		slog.String("agent", gateway.LogText(agent)))
}

// Panicked implements gateway.FrontEnd. The exit status reports the failure.
func (q *request) Panicked() {}

// source reads the bytes that the client sends.
func (s *session) source(r io.Reader) gateway.Source {
	return gateway.Source{Reader: r, SetDeadline: s.setReadDeadline}
}

// requestReader is one request of version 2 in a stream of them: up to its flush packet (gitprotocol-v2(5),
// "Packet-Line Framing").
type requestReader struct {
	r    *bufio.Reader
	left int // bytes of the packet that are still to come
	last bool
}

func (p *requestReader) Read(b []byte) (int, error) {
	if p.left == 0 {
		if p.last {
			return 0, io.EOF
		}
		head, err := p.r.Peek(4)
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		n, err := pktline.ParseLength(head)
		if err != nil {
			return 0, fault.Wrap(fault.Invalid, "the request is not a pkt-line stream", err)
		}
		p.last = n == 0
		p.left = max(n, 4)
	}
	n, err := p.r.Read(b[:min(len(b), p.left)])
	p.left -= n
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
