package gateway

import (
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// reply carries a session's answer into an HTTP response. It counts bytes by the way they took, and keeps the request in the
// lane that it belongs in: small until a pack or a long answer is to be sent. It stays in the bulk lane when another node is asked.
type reply struct {
	e       *exchange
	body    *body
	control *http.ResponseController

	small     bool   // in the small lane
	bulk      bool   // in the bulk lane
	begun     bool   // the header is sent
	before    []byte // what comes before the session's answer
	hasLength bool
	length    int64
	sent      int64
	kernel    int64
	refused   error // what kept the answer from being sent, that was no fault of the node's
}

func newReply(e *exchange, body *body) *reply {
	return &reply{e: e, body: body, control: http.NewResponseController(e.w), small: true}
}

// Length announces the length of the whole answer.
func (r *reply) Length(n int64) {
	r.hasLength, r.length = true, n+int64(len(r.before))
	r.e.w.Header().Set("Content-Length", strconv.FormatInt(r.length, 10))
}

// Bulk moves the request from the small lane to the bulk lane. It takes the rest of the body in first: net/http watches for a
// client that goes away only once the body has ended.
func (r *reply) Bulk() error {
	if err := r.body.end(); err != nil {
		r.refused = err
		return err
	}
	if r.bulk {
		return nil
	}
	if err := r.e.HTTP.Bulk.Enter(); err != nil {
		r.refused = err
		return err
	}
	r.bulk = true
	r.leaveSmall()
	return nil
}

func (r *reply) leaveSmall() {
	if r.small {
		r.small = false
		r.e.Small.Leave()
	}
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
	r.sent += int64(n)
	return err
}

// Write sends p through user space.
func (r *reply) Write(p []byte) (int, error) {
	if err := r.begin(); err != nil {
		return 0, err
	}
	n, err := r.e.w.Write(p)
	r.sent += int64(n)
	return n, err
}

// ReadFrom sends a part of a file or what comes from a node's connection, by the kernel if nothing stands between here and the socket.
func (r *reply) ReadFrom(src io.Reader) (int64, error) {
	if err := r.begin(); err != nil {
		return 0, err
	}
	n, err := io.Copy(r.e.w, src)
	r.sent += n
	if s, ok := src.(interface{ KernelBytes() int64 }); ok {
		r.kernel += s.KernelBytes()
	}
	return n, err
}

// Flush sends what is buffered, the header included.
func (r *reply) Flush() error {
	if err := r.begin(); err != nil {
		return err
	}
	return r.control.Flush()
}

// rewind takes back what a node announced, so that another one can answer. Nothing was sent yet.
func (r *reply) rewind() {
	r.hasLength, r.length = false, 0
	r.e.w.Header().Del("Content-Length")
}

// commit ends an answer: it sends the header of an empty one, and checks that all that was announced was sent.
func (r *reply) commit() error {
	if err := r.begin(); err != nil {
		return err
	}
	if r.hasLength && r.sent != r.length {
		return fault.New(fault.Internal, "the answer has %d bytes where %d were announced", r.sent, r.length)
	}
	return nil
}

// close leaves the lanes and counts. It is called whatever happened.
func (r *reply) close() {
	if !r.bulk {
		r.e.Pump.Small()
	}
	r.leaveSmall()
	if r.bulk {
		r.e.HTTP.Bulk.Leave()
	}
	r.e.Metrics.countBytes(r.kernel, r.sent-r.kernel)
}

func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}
