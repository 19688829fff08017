package app

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/connlimit"
	"github.com/packhorse-git/packhorse/internal/fault"
)

const (
	firstBody = 4 << 10  // of a body that has no length: most are short
	pace      = 64 << 10 // bytes of a body for which a client has slowest times Options.ReadStall, lest it sends one now and then
	slowest   = 10
	copySize  = 64 << 10 // of pooled buffers
)

// errFull is the error of a body that there is no room for on disk.
var errFull = errors.New("no room on disk")

// body is that of a request. It is received whole before a worker is taken, in memory or, beyond a bound, in a file that has no name.
type body struct {
	there   bool // even if it is empty
	size    int64
	memory  []byte // its begin, or all of it
	counted int64  // bytes of Proxy.memory for it
	file    *file  // the rest; nil if there is none
}

// receive receives the request's body. If it cannot, it has answered.
func (e *exchange) receive() bool {
	r := e.r
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		e.body.there = r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch
		return true
	}
	if r.ContentLength > e.p.MaxBody {
		e.tooLong()
		return false
	}
	e.body.there = true
	conn := connlimit.From(r.Context())
	conn.Receiving()
	err := e.receiveAll()
	conn.Running()
	switch {
	case err == nil:
		return true
	case errors.Is(err, errTooLong):
		e.tooLong()
	case errors.Is(err, errFull), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		e.Err = fault.Wrap(fault.Exhausted, "too many long requests are here already", err)
		e.w.Header().Set("Retry-After", "5")
		e.refuse(http.StatusServiceUnavailable, "too many long requests are here already; try again")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.p.complain("long bodies of requests are refused: they cannot be written to a file", err)
		e.Err = fault.Wrap(fault.Exhausted, "the disk of "+e.p.Dir+" is full", err)
		e.refuse(http.StatusInsufficientStorage, "the server's disk is full, and has no room for the request's body; try a shorter one, or later")
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Err = fault.Wrap(fault.Deadline, "the request's body took too long", err)
		e.refuse(http.StatusRequestTimeout, "the request's body took too long")
	case errors.Is(err, errDisk):
		e.Err = err
		e.refuse(http.StatusInternalServerError, "internal error; the server's log says more")
	case e.ctx.Err() != nil:
		e.gone()
	default: // it was cut off, or its chunks are none
		e.Err = fault.Wrap(fault.Invalid, "the request's body was cut off, or is damaged", err)
		e.refuse(http.StatusBadRequest, "the request's body was cut off, or is damaged")
	}
	return false
}

func (e *exchange) tooLong() {
	e.refuse(http.StatusRequestEntityTooLarge, fmt.Sprintf("the request's body is longer than the %d bytes that one may have", e.p.MaxBody))
}

var errTooLong = errors.New("the request's body is too long")

// receiveAll reads the body into memory, as far as there is room for it, and then into a file.
func (e *exchange) receiveAll() error {
	control := http.NewResponseController(e.w)
	limit := func(t time.Time) error {
		if err := control.SetReadDeadline(t); !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		return nil
	}
	e.reserve(e.r.ContentLength)
	var scratch *[copySize]byte
	defer func() { e.p.giveBuffer(scratch) }()
	b, stall := &e.body, e.p.ReadStall
	var (
		until       int64        // how far the client has to come by then
		by, renewed time.Time    // by: then; renewed: when its time limit was set
		grace       = stall / 16 // a limit that is a little late serves many reads
	)
	for {
		now := time.Now()
		if b.size >= until {
			until, by, renewed = b.size+pace, now.Add(slowest*stall), time.Time{}
		}
		if now.Sub(renewed) >= grace {
			end := now.Add(stall + grace)
			if renewed = now; by.Before(end) {
				end = by
			}
			if err := limit(end); err != nil {
				return err
			}
		}
		if len(b.memory) == cap(b.memory) && b.file == nil {
			e.reserve(-1)
		}
		space := b.memory[len(b.memory):cap(b.memory)]
		inMemory := len(space) > 0 && b.file == nil
		if !inMemory {
			if scratch == nil {
				scratch = e.p.buffer()
			}
			space = scratch[:]
		}
		n, err := e.r.Body.Read(space)
		if b.size += int64(n); b.size > e.p.MaxBody {
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
		if err == io.EOF { // the connection is watched from now on, without a limit
			return limit(time.Time{})
		} else if err != nil { // and the limit stays: net/http would wait for the rest before it sends an answer
			return err
		}
	}
}

// reserve makes room in memory for a body of so many bytes, -1: nobody knows; or none, if there is none left for it.
func (e *exchange) reserve(size int64) {
	b := &e.body
	switch {
	case size > e.p.BodyMemory:
		size = min(firstBody, e.p.BodyMemory)
	case size < 0 && b.memory == nil:
		size = min(firstBody, e.p.BodyMemory)
	case size < 0:
		size = e.p.BodyMemory
	}
	more := size - max(int64(cap(b.memory)), firstBody) // the first is every request's
	if more > 0 {
		if !e.p.memory.take(more) {
			return
		}
		b.counted += more
	}
	if size > int64(cap(b.memory)) {
		b.memory = append(make([]byte, 0, size), b.memory...)
	}
}

// close gives back what the body takes.
func (b *body) close(p *Proxy) {
	p.memory.give(b.counted)
	b.counted, b.memory = 0, nil
	if b.file != nil {
		b.file.close()
		b.file = nil
	}
}

// writeTo sends the body, each part within the time that step sets.
func (b *body) writeTo(w io.Writer, p *Proxy, step func() error) error {
	for at := 0; at < len(b.memory); at += copySize {
		if err := step(); err != nil {
			return err
		}
		if _, err := w.Write(b.memory[at:min(at+copySize, len(b.memory))]); err != nil {
			return err
		}
	}
	if b.file == nil {
		return nil
	}
	buffer := p.buffer()
	defer p.giveBuffer(buffer)
	for at := int64(0); at < b.file.size; {
		n, err := b.file.read(buffer[:], at)
		if err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
		if _, err := w.Write(buffer[:n]); err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}
