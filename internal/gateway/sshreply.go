package gateway

import (
	"io"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/node"
)

// sshReply carries an answer into a session's channel. Like an HTTP reply it keeps the request in the lane where it belongs.
type sshReply struct {
	c    *sshCall
	seat *admit.Seat
	body *body

	begun   bool
	long    bool  // Bulk was called
	refused error // what kept the answer from being sent, that was no fault of the node's
}

func newSSHReply(c *sshCall, seat *admit.Seat, body *body) *sshReply {
	return &sshReply{c: c, seat: seat, body: body}
}

// Length announces the length of the whole answer.
func (r *sshReply) SetLength(n int64) { r.c.bytes.Announce(n) }

// Bulk moves the request from the small lane to that of long answers.
func (r *sshReply) StartBulk(cold bool) error {
	err := r.body.end()
	if err == nil {
		err = r.seat.Move(r.c.Lanes.Long(cold))
	}
	r.c.running.At(inflight.Packing)
	r.long, r.refused = true, err
	r.hush()
	return err
}

// hush lets the client be silent once it has said all, for as long as its answer takes. A request of a session with state has no end that would
// say so: but after a pack was announced, or a push is answered, nothing is to come of it.
func (r *sshReply) hush() {
	if r.long || r.c.push {
		_ = r.c.s.limit(time.Time{})
	}
}

// Write sends p.
func (r *sshReply) Write(p []byte) (int, error) {
	if err := r.begin(); err != nil {
		return 0, err
	}
	n, err := r.write(p)
	r.c.sent(n)
	return n, err
}

func (r *sshReply) begin() error {
	if r.begun {
		return nil
	}
	if err := r.body.end(); err != nil {
		r.refused = err
		return err
	}
	r.begun = true
	r.c.running.At(inflight.Sending)
	return nil
}

// write sends p, and ends the session if the client takes nothing of it for too long.
func (r *sshReply) write(p []byte) (int, error) {
	s := r.c.s
	r.hush()
	s.writing.Reset(s.WriteStall)
	n, err := s.channel.Write(p)
	s.writing.Stop()
	s.wire.backlog.sent(n)
	if err != nil {
		err = &node.ClientConnError{Err: err}
	}
	return n, err
}

// sshBuffer is how much of a file is read at once: two of the largest packets that OpenSSH takes. A client that waits holds one.
const sshBuffer = 64 << 10

var sshBuffers = sync.Pool{New: func() any { return new([sshBuffer]byte) }}

// ReadFrom sends a part of a file or what comes from a node's connection. It has to be encrypted, so that it passes through a buffer.
func (r *sshReply) ReadFrom(src io.Reader) (int64, error) {
	if err := r.begin(); err != nil {
		return 0, err
	}
	buf := sshBuffers.Get().(*[sshBuffer]byte)
	defer sshBuffers.Put(buf)
	var sent int64
	for {
		n, err := src.Read(buf[:])
		if n > 0 {
			m, broken := r.write(buf[:n])
			sent += int64(m)
			r.c.sent(m)
			if broken != nil {
				return sent, broken
			}
		}
		switch err {
		case nil:
		case io.EOF:
			return sent, nil
		default:
			return sent, err
		}
	}
}

// Flush does nothing: what is written is sent.
func (r *sshReply) Flush() error { return r.begin() }

// Hold counts memory that the session takes.
func (r *sshReply) ReserveMemory(n int64) error {
	err := r.body.memory.Grow(n)
	if err != nil {
		r.refused = err
	}
	return err
}

// started tells whether anything was sent.
func (r *sshReply) started() bool { return r.begun }

// again takes back what a node announced, and goes back to the begin of the request.
func (r *sshReply) again() bool {
	switch {
	case r.body.rest != nil && len(r.body.ahead) == 0: // of a session with state
		if r.body.rest.used {
			return false
		}
	case !r.body.rewind():
		return false
	}
	r.c.bytes.Retract()
	return true
}

// hindered tells whether the lane or the client's request is to blame for a failure.
func (r *sshReply) hindered() bool {
	return r.refused != nil || r.body.unpacked.failed.Load()
}

// commit ends an answer, and checks that all that was announced was sent.
func (r *sshReply) commit() error {
	if err := r.begin(); err != nil {
		return err
	}
	return r.c.bytes.Check(0)
}
