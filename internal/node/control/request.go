package control

import (
	"errors"
	"io"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
)

// maxRequestData is the maximum size of the data in one message in bytes.
const maxRequestData = 1 << 20

const (
	// freeMemory is the memory in bytes that every request can use for itself and its session. More memory counts against
	// the budget that all requests share.
	freeMemory = 64 << 10
	// aheadData is the number of bytes received before a request enters its lane, so that slow callers do not fill the
	// lane.
	aheadData = 256 << 10
)

// request reads the request of a Git client from the messages of a call.
type request struct {
	receive  func() (*internalv1.SessionRequest, error)
	stateful bool  // the session is stateful: it continues during the response
	limit    int64 // maximum size in bytes
	memory   *admit.Holding
	part     int64 // size of the longest part so far, for which memory is reserved
	data     []byte
	taken    int64 // bytes received
	last     bool  // no more parts follow
	short    bool  // the response has to be short
	err      error // of an invalid request
}

// take adds a part, after all earlier ones were read.
func (r *request) take(part *internalv1.RequestData) error {
	r.data, r.last = part.GetData(), part.GetLast()
	r.taken += int64(len(r.data))
	switch {
	case len(r.data) > maxRequestData:
		r.err = errLongPart
	case r.taken > r.limit:
		r.err = fault.New(fault.Invalid, "request body longer than %d bytes", r.limit)
	case int64(len(r.data)) > r.part:
		if r.err = r.memory.Grow(int64(len(r.data)) - r.part); r.err == nil {
			r.part = int64(len(r.data))
		}
	}
	return r.err
}

// ahead receives the beginning of the request, which is mostly all of it.
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

// fill waits for data. The error is io.EOF at the end of the request.
func (r *request) fill() error {
	for len(r.data) == 0 || r.err != nil {
		if r.err != nil {
			return r.err
		}
		if r.last {
			return io.EOF
		}
		var part *internalv1.RequestData
		if part, r.err = receivePart(r.receive()); r.err == nil {
			_ = r.take(part)
		}
	}
	return nil
}

// receivePart returns the part of a request in a received message.
func receivePart(m *internalv1.SessionRequest, err error) (*internalv1.RequestData, error) {
	switch {
	case errors.Is(err, io.EOF):
		err = fault.New(fault.Invalid, "incomplete request: its last part is missing")
	case err != nil:
	case m.GetData() == nil:
		err = fault.New(fault.Invalid, "unexpected message: want a part of the request")
	case len(m.GetData().GetData()) > maxRequestData:
		err = errLongPart
	}
	return m.GetData(), err
}

var errLongPart = fault.New(fault.Invalid, "part of the request longer than %d bytes", maxRequestData)

func (r *request) Read(p []byte) (int, error) {
	if err := r.fill(); err != nil {
		return 0, err
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

// end reads the rest of the request, which has to be complete.
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

// receiveDataPath receives the data path that the gateway has chosen. In a stateful session parts of the request can
// come before it, which are kept.
func (r *request) receiveDataPath() (*internalv1.DataPath, error) {
	m, err := r.receive()
	for r.stateful && err == nil && m.GetData() != nil && len(r.data) <= aheadData {
		kept := r.data
		if err = r.take(m.GetData()); err == nil {
			r.data = slices.Concat(kept, r.data)
			m, err = r.receive()
		}
	}
	switch {
	case errors.Is(err, io.EOF): // also from gateways whose lane is full
		return nil, fault.New(fault.Cancelled, "the gateway cancelled the call before it chose a data path")
	case err != nil:
		return nil, err
	case m.GetDataPath() == nil:
		return nil, fault.New(fault.Invalid, "unexpected message: want a data path")
	}
	return m.GetDataPath(), nil
}
