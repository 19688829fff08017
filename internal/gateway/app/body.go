package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

const (
	firstBody = 4 << 10  // first allocation for a body of unknown length: most are short
	knownBody = 64 << 10 // the same for a longer one of known length
	// maxStored is how much of a request body is received before a worker is chosen, and how much of a response waits for
	// a slow client. Most forms, pages and API responses are shorter.
	maxStored = 1 << 20
	// linger is how long the rest of a request body is received after its response. A client that still sends might lose
	// the response otherwise, because TCP resets the connection.
	linger = 5 * time.Second
)

var errTooLong = errors.New("the request body is too long")

// body is a request body. Its beginning, or all of it, is received before a worker is chosen.
type body struct {
	length   int64 // -1: unknown before it was received
	memory   []byte
	reserved int64 // of Proxy.memory
	rest     *rest // nil: there is none
}

// open returns a reader for one try at a worker. Reads after close are allowed, and can return errors.
func (b *body) open() io.ReadCloser {
	if b.rest == nil {
		return io.NopCloser(bytes.NewReader(b.memory))
	}
	return io.NopCloser(io.MultiReader(bytes.NewReader(b.memory), b.rest))
}

// isUsed reports whether a worker got a part of the body that is not stored. The request cannot be sent again then.
func (b *body) isUsed() bool { return b.rest != nil && b.rest.isUsed.Load() }

// problem returns why the body could not be received, or nil.
func (b *body) problem() error {
	if b.rest == nil {
		return nil
	}
	if err := b.rest.err.Load(); err != nil {
		return *err
	}
	return nil
}

// rest is the part of a request body that is received while a worker gets it.
type rest struct {
	e                         *exchange
	isUsed, isEnded, isClosed atomic.Bool
	err                       atomic.Pointer[error]
	reading                   sync.Mutex // held by Read
}

// Read receives a part of the body. The transport may still call it after the response.
func (r *rest) Read(p []byte) (int, error) {
	r.reading.Lock()
	defer r.reading.Unlock()
	if r.isClosed.Load() { // the connection may have another request
		return 0, net.ErrClosed
	}
	r.isUsed.Store(true)
	r.e.waitForClient()
	if r.isClosed.Load() { // so a Read does not wait after close
		return 0, net.ErrClosed
	}
	n, err := r.e.read(p)
	switch {
	case err == io.EOF:
		r.isEnded.Store(true)
	case err != nil:
		r.err.CompareAndSwap(nil, &err)
	}
	return n, err
}

// isPending reports whether the client still sends the body.
func (r *rest) isPending() bool { return r != nil && !r.isEnded.Load() && r.err.Load() == nil }

// close ends a Read that waits. After close, nothing is received for workers.
func (r *rest) close() {
	r.isClosed.Store(true)
	client := http.NewResponseController(&r.e.w)
	if r.isPending() {
		_ = client.SetReadDeadline(time.Now())
	}
	r.reading.Lock()
	defer r.reading.Unlock()
	if r.isPending() && !r.e.Cut {
		_ = client.Flush()
		_ = client.SetReadDeadline(time.Now().Add(linger))
		_, _ = io.Copy(io.Discard, r.e.r.Body)
	}
}

// close releases memory, and receives what the client still sends.
func (b *body) close(p *Proxy) {
	if b.rest != nil {
		b.rest.close()
	}
	p.memory.release(b.reserved)
	b.reserved, b.memory = 0, nil
}

// receive receives the request body, up to maxStored. If it cannot, it answers the request and returns false.
func (e *exchange) receive() bool {
	r := e.r
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return true
	}
	if e.body.length = r.ContentLength; r.ContentLength > e.p.MaxBody {
		e.refuseBody(errTooLong)
		return false
	}
	conn := clients.ConnFrom(r.Context())
	conn.Receiving()
	err := e.receiveStored()
	conn.Running()
	if err != nil {
		e.refuseBody(err)
	}
	return err == nil
}

// refuseBody answers a request whose body could not be received.
func (e *exchange) refuseBody(err error) {
	switch {
	case errors.Is(err, errTooLong):
		e.refuse(http.StatusRequestEntityTooLarge, fmt.Sprintf("the request body is longer than the maximum of %d bytes",
			e.p.MaxBody))
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Err = fault.Wrap(fault.Deadline, "the request body took too long", err)
		e.refuse(http.StatusRequestTimeout, "the request body took too long")
	case e.ctx.Err() != nil:
		e.clientLeft()
	default:
		e.Err = fault.Wrap(fault.Invalid, "the request body is incomplete or damaged", err)
		e.refuse(http.StatusBadRequest, "the request body is incomplete or damaged")
	}
}

// receiveStored reads the body into memory. If the body is longer than the memory, it has a rest then.
func (e *exchange) receiveStored() error {
	b := &e.body
	for {
		if len(b.memory) == cap(b.memory) {
			e.grow()
		}
		space := b.memory[len(b.memory):cap(b.memory)]
		if len(space) == 0 && int64(len(b.memory)) != b.length {
			b.rest = &rest{e: e}
			// Otherwise net/http would read a part of the body before it sends the header of a response.
			_ = http.NewResponseController(&e.w).EnableFullDuplex()
			return nil
		}
		if len(space) == 0 {
			space = make([]byte, 1) // for the end
		}
		e.waitForClient()
		n, err := e.read(space)
		b.memory = b.memory[:min(len(b.memory)+n, cap(b.memory))]
		if err == io.EOF {
			b.length = int64(len(b.memory))
			return nil
		} else if err != nil {
			return err
		}
	}
}

// waitForClient sets the limit for the next read of the body.
func (e *exchange) waitForClient() {
	_ = http.NewResponseController(&e.w).SetReadDeadline(time.Now().Add(e.p.ReadStall))
}

// read reads from the body of the client. After an error the deadline stays: net/http waits for the rest of the body
// before it sends a response.
func (e *exchange) read(p []byte) (int, error) {
	n, err := e.r.Body.Read(p)
	if e.in.Add(int64(n)) > e.p.MaxBody {
		return n, errTooLong
	}
	if err == io.EOF {
		_ = http.NewResponseController(&e.w).SetReadDeadline(time.Time{})
	}
	return n, err
}

// grow makes room in memory for more of the body. It does nothing if no memory is left, or the body has all that it may
// have. The room grows with the received part, so that clients that only announce a long body hold little memory.
func (e *exchange) grow() {
	b := &e.body
	size := max(firstBody, 4*int64(cap(b.memory)))
	if b.length > 0 {
		size = min(max(size, knownBody), b.length)
	}
	size = min(size, maxStored)
	more := size - max(int64(cap(b.memory)), firstBody) // the first allocation is not counted
	if more > 0 {
		if e.p.memory.reserve(more) {
			b.reserved += more
		} else if size = firstBody; b.memory != nil {
			return
		}
	}
	if size > int64(cap(b.memory)) {
		b.memory = append(make([]byte, 0, size), b.memory...)
	}
}
