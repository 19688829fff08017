package gateway

import (
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// Sink sends a response to a client. Each front end has one.
type Sink interface {
	// Begin is called once, before the first part of a response, for example to send the header of HTTP.
	Begin() error
	io.Writer
	io.ReaderFrom
	// Flush sends buffered bytes.
	Flush() error
	// SetLength announces the length of the whole response. A negative length revokes an earlier one.
	SetLength(n int64)
	// ExpectSilence is called before a long response, when the client does not send any more.
	ExpectSilence()
}

// Response is the response to a request, on its way from a node to a client. It is a node.ResponseWriter, and counts
// the bytes. At StartBulk it moves the request from the concurrency limit of its operation to that of hits or of cold
// packs. A nil Response sends nothing.
type Response struct {
	request *Request
	sink    Sink
	seat    *admit.Seat
	body    *Body

	started bool      // something may have been sent
	begun   time.Time // when it started
	refused error     // error of the gateway, not of the node
}

// NewResponse creates the response to a request that was admitted with a seat. It does not close the seat or the body.
func NewResponse(r *Request, sink Sink, seat *admit.Seat, body *Body) *Response {
	return &Response{request: r, sink: sink, seat: seat, body: body}
}

// SetLength implements node.ResponseWriter.
func (p *Response) SetLength(n int64) { p.sink.SetLength(n) }

// SetStaleness implements node.StalenessWriter, for clients of HTTP.
func (p *Response) SetStaleness(age time.Duration) {
	if w, ok := p.sink.(node.StalenessWriter); ok {
		w.SetStaleness(age)
	}
}

// SetArchive implements node.ArchiveWriter.
func (p *Response) SetArchive(h node.ArchiveHeader) {
	if w, ok := p.sink.(node.ArchiveWriter); ok {
		w.SetArchive(h)
	}
}

// StartBulk implements node.ResponseWriter. It reads the rest of the body first: net/http watches for a client that
// disconnects only after the end of the body.
func (p *Response) StartBulk(cold bool) error {
	err := p.body.finish()
	if err == nil {
		err = p.seat.Move(p.request.Lanes.Long(cold))
	}
	p.request.At(inflight.Packing)
	p.refused = err
	p.sink.ExpectSilence()
	return err
}

// ReserveMemory implements node.ResponseWriter.
func (p *Response) ReserveMemory(n int64) error {
	err := p.body.memory.Grow(n)
	if err != nil {
		p.refused = err
	}
	return err
}

// begin sends the header, once the request is known to be complete.
func (p *Response) begin() error {
	if p.started {
		return nil
	}
	if err := p.body.finish(); err != nil {
		p.refused = err
		return err
	}
	p.started, p.begun = true, time.Now()
	p.request.At(inflight.Sending)
	return p.sink.Begin()
}

// Write implements node.ResponseWriter.
func (p *Response) Write(b []byte) (int, error) {
	if err := p.begin(); err != nil {
		return 0, err
	}
	return p.sink.Write(b)
}

// ReadFrom sends a part of a file, or bytes from a node's connection.
func (p *Response) ReadFrom(src io.Reader) (int64, error) {
	if err := p.begin(); err != nil {
		return 0, err
	}
	return p.sink.ReadFrom(src)
}

// Flush implements node.ResponseWriter.
func (p *Response) Flush() error {
	if err := p.begin(); err != nil {
		return err
	}
	return p.sink.Flush()
}

// Begun reports whether anything may have been sent to the client.
func (p *Response) Begun() bool { return p != nil && p.started }

// rewind revokes an announced length, and returns to the first byte of the request's body, so that another node can
// answer. It reports whether that is possible.
func (p *Response) rewind() bool {
	if p == nil {
		return true
	}
	if !p.body.rewind() {
		return false
	}
	p.sink.SetLength(-1)
	return true
}

// failedHere reports whether the gateway or the request's body caused a failure, and not the node.
func (p *Response) failedHere() bool {
	return p != nil && (p.refused != nil || p.body.failed())
}

// Finish ends the response after the node has ended. If the request has not failed, it sends the header of an empty
// response, and checks that the response has the announced length. It returns the request's error.
func (p *Response) Finish() error {
	r := p.request
	if r.Err == nil {
		r.Err = p.begin()
	}
	if r.Err == nil {
		r.Err = r.Bytes.Check(0)
	}
	if err := p.body.damage; err != nil {
		r.Err = err
	}
	return r.Err
}
