package control

import (
	"errors"
	"io"
	"slices"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// maxRequestData bounds the data of one message, in bytes.
const maxRequestData = 1 << 20

const (
	// freeMemory is how many bytes of memory every request may have: for itself, and for what a session makes of it. What goes beyond it counts
	// against the budget that all requests share.
	freeMemory = 64 << 10
	// aheadData is how much of a request is received before it enters its lane, so that slow callers do not fill it.
	aheadData = 256 << 10
)

// request reads what a Git client sent out of the messages of a call.
type request struct {
	receive  func() (*internalv1.RequestData, *internalv1.DataPath, error)
	stateful bool  // it goes on while it is answered
	limit    int64 // bytes in all
	memory   *admit.Holding
	part     int64 // bytes of the longest part so far, which are counted
	data     []byte
	taken    int64 // bytes received
	last     bool  // nothing follows
	short    bool  // its answer has to be short
	err      error // what was wrong with it
}

// take is called with one part after all before it have been read.
func (r *request) take(part *internalv1.RequestData) error {
	r.data, r.last = part.GetData(), part.GetLast()
	r.taken += int64(len(r.data))
	switch {
	case len(r.data) > maxRequestData:
		r.err = fault.New(fault.Invalid, "a part of the request is longer than %d bytes", maxRequestData)
	case r.taken > r.limit:
		r.err = fault.New(fault.Invalid, "the request's body is longer than %d bytes", r.limit)
	case int64(len(r.data)) > r.part:
		if r.err = r.memory.Grow(int64(len(r.data)) - r.part); r.err == nil {
			r.part = int64(len(r.data))
		}
	}
	return r.err
}

// ahead receives the beginning, in almost all cases all of it. A client that waits for its answer sends no more before it.
func (r *request) ahead() error {
	if r.stateful {
		return nil
	}
	var ahead []byte
	for len(ahead) < aheadData {
		err := r.fill()
		if errors.Is(err, io.EOF) && r.err == nil {
			break
		} else if err != nil {
			return err
		}
		if ahead == nil && r.last { // one message
			return nil
		}
		if err := r.memory.Grow(int64(len(r.data))); err != nil {
			r.err = err
			return err
		}
		ahead, r.data = append(ahead, r.data...), nil
	}
	r.data = ahead
	return nil
}

// fill waits for bytes; io.EOF says that there are no more.
func (r *request) fill() error {
	for len(r.data) == 0 || r.err != nil {
		if r.err != nil {
			return r.err
		}
		if r.last {
			return io.EOF
		}
		data, road, err := r.receive()
		switch {
		case errors.Is(err, io.EOF):
			r.err = fault.New(fault.Invalid, "the request ends before its last part")
		case err != nil:
			r.err = err
		case data == nil || road != nil:
			r.err = fault.New(fault.Invalid, "a part of the request has to follow")
		default:
			_ = r.take(data)
		}
	}
	return nil
}

func (r *request) Read(p []byte) (int, error) {
	if err := r.fill(); err != nil {
		return 0, err
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

// end reads to the end of the request. What stands there is of no interest, but it has to be whole.
func (r *request) end() error {
	if r.stateful {
		return nil
	}
	for {
		if err := r.fill(); errors.Is(err, io.EOF) && r.err == nil {
			return nil
		} else if err != nil {
			return err
		}
		r.data = nil
	}
}

// road waits for the road that the caller names. No part of the request may follow it, unless it goes on while it is answered; then, what
// comes first is kept.
func (r *request) road() (*internalv1.DataPath, error) {
	data, road, err := r.receive()
	for r.stateful && err == nil && data != nil && len(r.data) <= aheadData {
		kept := r.data
		if err = r.take(data); err == nil {
			r.data = slices.Concat(kept, r.data)
			data, road, err = r.receive()
		}
	}
	switch {
	case errors.Is(err, io.EOF): // so do gateways whose lane is full
		return nil, fault.New(fault.Cancelled, "the caller ended the call and named no road for the answer")
	case err != nil:
		return nil, err
	case data != nil || road == nil:
		return nil, fault.New(fault.Invalid, "the caller named no road for the answer")
	}
	return road, nil
}
