package gateway

import (
	"io"
	"net/http"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/inflight"
)

// reply carries a session's answer into an HTTP response. It counts bytes by the way they took, and keeps the request in the
// lane that it belongs in: where it came in until a pack or a long answer is to be sent, then that of hits or of cold packs, also when another
// node is asked.
type reply struct {
	e       *exchange
	seat    *admit.Seat
	body    *body
	control *http.ResponseController

	begun   bool   // the header is sent
	before  []byte // what comes before the session's answer
	refused error  // what kept the answer from being sent, that was no fault of the node's
}

func newReply(e *exchange, seat *admit.Seat, body *body) *reply {
	return &reply{e: e, seat: seat, body: body, control: http.NewResponseController(e.w)}
}

// Length announces the length of the whole answer.
func (r *reply) SetLength(n int64) {
	n += int64(len(r.before))
	r.e.bytes.Announce(n)
	r.e.w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
}

// Bulk moves the request from the small lane to that of long answers. It takes the rest of the body in first: net/http watches for a
// client that goes away only once the body has ended.
func (r *reply) StartBulk(cold bool) error {
	err := r.body.end()
	if err == nil {
		err = r.seat.Move(r.e.Lanes.Long(cold))
	}
	r.e.running.At(inflight.Packing)
	r.refused = err
	return err
}

// begin sends the header and what comes first, once the request is known to be whole.
func (r *reply) begin() error {
	if r.begun {
		return nil
	}
	if err := r.body.end(); err != nil {
		r.refused = err
		return err
	}
	r.begun = true
	r.e.begin(http.StatusOK)
	n, err := r.e.w.Write(r.before)
	r.e.sent(n)
	return err
}

// Write sends p through user space.
func (r *reply) Write(p []byte) (int, error) {
	if err := r.begin(); err != nil {
		return 0, err
	}
	n, err := r.e.w.Write(p)
	r.e.sent(n)
	return n, err
}

// ReadFrom sends a part of a file or what comes from a node's connection, by the kernel if nothing stands between here and the socket.
func (r *reply) ReadFrom(src io.Reader) (int64, error) {
	if err := r.begin(); err != nil {
		return 0, err
	}
	return r.e.sendFrom(r.e.w, src)
}

// Flush sends what is buffered, the header included.
func (r *reply) Flush() error {
	if err := r.begin(); err != nil {
		return err
	}
	return r.control.Flush()
}

// Hold counts memory that the session takes.
func (r *reply) ReserveMemory(n int64) error {
	err := r.body.memory.Grow(n)
	if err != nil {
		r.refused = err
	}
	return err
}

// started tells whether the header is sent.
func (r *reply) started() bool { return r.begun }

// again takes back what a node announced, so that another one can answer, and goes back to the begin of the request's body.
func (r *reply) again() bool {
	if !r.body.rewind() {
		return false
	}
	r.e.bytes.Retract()
	r.e.w.Header().Del("Content-Length")
	return true
}

// hindered tells whether the lane or the request's body is to blame for a failure.
func (r *reply) hindered() bool { return r.refused != nil || r.body.unpacked.failed.Load() }

// commit ends an answer: it sends the header of an empty one, and checks that all that was announced was sent.
func (r *reply) commit() error {
	if err := r.begin(); err != nil {
		return err
	}
	return r.e.bytes.Check(0)
}
