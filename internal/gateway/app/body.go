package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/connlimit"
)

const firstBody = 4 << 10 // first allocation for a body of unknown length: most are short

var (
	errTooLong = errors.New("the request body is too long")
	errFull    = errors.New("no room on disk")
)

// body is a request body. It is received in full before a worker is chosen, in memory and, beyond a limit, in a file
// without a name.
type body struct {
	size     int64
	memory   []byte // the beginning, or all of it
	reserved int64  // of Proxy.memory
	file     *file  // the rest; nil: there is none
}

// open returns a reader of the body. Reads after close are allowed, and can return errors.
func (b *body) open() io.ReadCloser {
	if b.file == nil {
		return io.NopCloser(bytes.NewReader(b.memory))
	}
	return io.NopCloser(io.MultiReader(bytes.NewReader(b.memory), io.NewSectionReader(b.file.f, 0, b.file.size)))
}

// close releases memory and disk space.
func (b *body) close(p *Proxy) {
	p.memory.release(b.reserved)
	b.reserved, b.memory = 0, nil
	if b.file != nil {
		b.file.close()
		b.file = nil
	}
}

// receive receives the request body. If it cannot, it answers the request and returns false.
func (e *exchange) receive() bool {
	r := e.r
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return true
	}
	if r.ContentLength > e.p.Bodies.MaxRequest {
		e.refuseBody(errTooLong)
		return false
	}
	conn := connlimit.From(r.Context())
	conn.Receiving()
	err := e.receiveAll()
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
			e.p.Bodies.MaxRequest))
	case errors.Is(err, errFull), isExhausted(err):
		e.Err = fault.Wrap(fault.Exhausted, "too many long request bodies", err)
		e.w.Header().Set("Retry-After", fault.RetryHeader(fault.RetryLater))
		e.refuse(http.StatusServiceUnavailable, "too many long request bodies; try again")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.p.logDiskError("long request bodies refused: cannot write to disk", err)
		e.Err = fault.Wrap(fault.Exhausted, "the disk of "+e.p.Bodies.Dir+" is full", err)
		e.refuse(http.StatusInsufficientStorage, "the server's disk is full and has no room for the request body; send a "+
			"shorter one, or try again later")
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Err = fault.Wrap(fault.Deadline, "the request body took too long", err)
		e.refuse(http.StatusRequestTimeout, "the request body took too long")
	case errors.Is(err, errDisk):
		e.Err = err
		e.refuse(http.StatusInternalServerError, "internal error; see the server's log")
	case e.ctx.Err() != nil:
		e.clientLeft()
	default:
		e.Err = fault.Wrap(fault.Invalid, "the request body is incomplete or damaged", err)
		e.refuse(http.StatusBadRequest, "the request body is incomplete or damaged")
	}
}

// receiveAll reads the body into memory until the memory is used up, and the rest into a file.
func (e *exchange) receiveAll() error {
	control := http.NewResponseController(&e.w)
	e.reserve(e.r.ContentLength)
	b := &e.body
	var scratch []byte
	defer func() { e.p.buffers.Put(scratch) }()
	for {
		_ = control.SetReadDeadline(time.Now().Add(e.p.Bodies.ReadStall))
		if len(b.memory) == cap(b.memory) && b.file == nil {
			e.reserve(-1)
		}
		space := b.memory[len(b.memory):cap(b.memory)]
		inMemory := len(space) > 0 && b.file == nil
		if !inMemory {
			if scratch == nil {
				scratch = e.p.buffers.Get()
			}
			space = scratch
		}
		n, err := e.r.Body.Read(space)
		if b.size += int64(n); b.size > e.p.Bodies.MaxRequest {
			return errTooLong
		}
		if inMemory {
			b.memory = b.memory[:len(b.memory)+n]
		} else if n > 0 {
			if b.file == nil {
				b.file = &file{p: e.p}
			}
			if err := b.file.append(space[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			_ = control.SetReadDeadline(time.Time{})
			return nil
		} else if err != nil { // keep the deadline: net/http waits for the rest of the body before it sends a response
			return err
		}
	}
}

// reserve makes room in memory for a body of size bytes, or of unknown size if size is -1. It does nothing if no memory
// is left.
func (e *exchange) reserve(size int64) {
	b, most := &e.body, e.p.Bodies.RequestMemory
	switch {
	case size > most, size < 0 && b.memory == nil:
		size = min(firstBody, most)
	case size < 0:
		size = most
	}
	more := size - max(int64(cap(b.memory)), firstBody) // the first allocation is not counted
	if more > 0 {
		if !e.p.memory.reserve(more) {
			return
		}
		b.reserved += more
	}
	if size > int64(cap(b.memory)) {
		b.memory = append(make([]byte, 0, size), b.memory...)
	}
}
