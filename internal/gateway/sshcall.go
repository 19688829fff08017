package gateway

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// sshCall is one request over SSH.
type sshCall struct {
	call
	s     *sshSession
	reply *sshReply
}

// allowed finds out who calls, and whether they may do it; if not, it tells them.
func (c *sshCall) allowed(op auth.Operation) bool {
	err := error(nil)
	if c.id, err = c.s.identify(); err == nil {
		err = c.allow(op)
	}
	if fault.Is(err, fault.Unauthenticated) && c.id.Anonymous() && c.s.who.key == nil {
		err = fault.New(fault.Unauthenticated, "say who you are: log in with a key")
	}
	if err != nil {
		c.fail(err)
	}
	return err == nil
}

// caller is whose requests share a lane's places.
func (c *sshCall) caller() balance.Caller {
	return c.Lanes.CallerOf(c.id.Name, c.s.wire.RemoteAddr().String())
}

// enter takes a place in a lane.
func (c *sshCall) enter(lane *admit.Lane, body *body) bool {
	seat, err := lane.Enter(c.caller())
	if err != nil {
		c.fail(err)
		return false
	}
	c.reply = newSSHReply(c, seat, body)
	return true
}

// fail tells the client why there is no answer.
func (c *sshCall) fail(err error) {
	c.err = err
	c.s.writing.Reset(c.s.WriteStall)
	defer c.s.writing.Stop()
	n, _ := c.s.channel.Write(protocol.AppendError(nil, fault.Message(err)))
	c.sent(n)
}

// finish ends an answer after a node is through with it. It reports whether it was whole, so that the session can go on.
func (c *sshCall) finish() bool {
	if c.err == nil {
		c.err = c.reply.commit()
	}
	if c.reply.body.broken != nil {
		c.err = c.reply.body.broken
	}
	if c.err == nil {
		return true
	}
	_, told := errors.AsType[*node.ReportedError](c.err)
	_, broken := errors.AsType[*node.ClientConnError](c.err)
	switch {
	case !c.reply.begun:
		c.fail(c.err)
	case !told && !broken: // what was sent has no end; the exit status says so too
		c.s.writing.Reset(c.s.WriteStall)
		c.s.say("packhorse: " + fault.Message(c.err))
		c.s.writing.Stop()
	}
	return false
}

// done counts the request, and writes its line into the log.
func (c *sshCall) done() {
	defer c.running.End()
	if cause := recover(); cause != nil {
		c.Log.Error("panic while answering a request", "repository", auth.Redact(c.repo.String()), "panic", cause, "stack", string(debug.Stack()))
		c.err = fault.New(fault.Internal, "internal error; the server's log says more")
	}
	result, took := c.count()
	c.log(result, took, func(a []slog.Attr) []slog.Attr {
		agent := c.outcome.Agent
		if agent == "" {
			agent = c.s.agent
		}
		return append(a,
			slog.String("transport", "ssh"), slog.String("client", c.s.wire.RemoteAddr().String()),
			slog.String("protocol", "SSH "+protocol.ParseVersion(c.s.environment).String()), slog.String("agent", auth.Redact(clip(agent))))
	})
	c.endSpan(result, "ssh")
}

// wholeBody receives a request that ends by itself, in almost all cases all of it.
func (c *sshCall) wholeBody(from io.Reader) (*body, error) {
	b := &body{memory: c.Memory.Hold(c.caller(), freeMemory)}
	in := c.patient(from)
	in.step = readFirst
	err := b.receive(in)
	if err == nil {
		b.unpacked.limit = c.MaxBody
		err = b.begin()
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// streamBody is a request of a session with state: it ends when the node has heard enough.
func (c *sshCall) streamBody() *body {
	b := &body{ended: true}
	b.rest = c.patient(c.s.input)
	b.unpacked = unpacked{r: b.rest, left: c.MaxBody, limit: c.MaxBody}
	return b
}

// pushBody is a push's request. It may pause for longer than others: the client works out what to send.
func (c *sshCall) pushBody() *body {
	b := &body{ended: true}
	b.rest = &patient{r: c.s.input, limit: c.s.limit, stall: maxStalls * c.ReadStall, end: time.Now().Add(c.pushTime())}
	limit := c.pushLimit()
	b.unpacked = unpacked{r: b.rest, left: limit, limit: limit}
	return b
}

func (c *sshCall) patient(from io.Reader) *patient {
	return &patient{r: from, limit: c.s.limit, stall: c.ReadStall, end: time.Now().Add(maxStalls * c.ReadStall)}
}

// requestReader is one request of version 2 out of a stream of them: up to its flush packet (gitprotocol-v2(5), "Packet-Line Framing").
type requestReader struct {
	r    *bufio.Reader
	left int // bytes of the packet that are still to come
	last bool
}

func (q *requestReader) Read(p []byte) (int, error) {
	if q.left == 0 {
		if q.last {
			return 0, io.EOF
		}
		head, err := q.r.Peek(4)
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		n, err := pktline.ParseLength(head)
		if err != nil {
			return 0, fault.Wrap(fault.Invalid, "the request is no pkt-line stream", err)
		}
		q.last = n == 0
		q.left = max(n, 4)
	}
	n, err := q.r.Read(p[:min(len(p), q.left)])
	q.left -= n
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
