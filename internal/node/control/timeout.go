package control

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// maxStalls limits the total time that a call waits for its request, in multiples of Stall.
const maxStalls = 10

// limit interrupts reads or writes of a call after a timeout. A timer costs less than setting a deadline for each one.
// It is not safe for concurrent use.
type limit struct {
	interrupt func(time.Time) error // SetReadDeadline or SetWriteDeadline

	mu    sync.Mutex
	timer *time.Timer
	ended bool
}

// during calls wait, and interrupts it after d.
func (l *limit) during(d time.Duration, wait func()) {
	if l.timer == nil {
		l.timer = time.AfterFunc(d, l.fire)
	} else {
		l.timer.Reset(d)
	}
	wait()
	l.timer.Stop()
}

func (l *limit) fire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended { // otherwise the response does not exist any more
		_ = l.interrupt(time.Unix(1, 0))
	}
}

// end is called before the handler returns.
func (l *limit) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// timedBody is a request body with a timeout for each read and one for all reads.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
	http1   bool
	stall   time.Duration
	left    time.Duration // for all reads
	limit   limit
	whole   bool
}

func newTimedBody(r *http.Request, control *http.ResponseController, stall time.Duration) *timedBody {
	return &timedBody{
		ReadCloser: r.Body, control: control, http1: r.ProtoMajor == 1, stall: stall, left: maxStalls * stall,
		limit: limit{interrupt: control.SetReadDeadline},
	}
}

func (b *timedBody) Read(p []byte) (n int, err error) {
	start := time.Now()
	b.limit.during(min(b.stall, max(b.left, 0)), func() { n, err = b.ReadCloser.Read(p) })
	b.left -= time.Since(start)
	b.whole = b.whole || errors.Is(err, io.EOF)
	if _, ofConnection := errors.AsType[net.Error](err); b.http1 && err != nil && !ofConnection &&
		!errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		// invalid chunks
		err = connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("cannot read the request body: %w", err))
	}
	return n, err
}

// end is called before the handler returns. net/http reads the rest of an HTTP/1.1 request, for which it gets the
// timeout of one read.
func (b *timedBody) end() {
	b.limit.end()
	if b.http1 && !b.whole {
		_ = b.control.SetReadDeadline(time.Now().Add(b.stall))
	}
}

// timedResponse is the response of an HTTP/2 stream with a timeout for each write. Otherwise a client that reads
// nothing would keep its call, and everything that it uses, as long as its connection lives.
type timedResponse struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	limit   limit
}

func newTimedResponse(w http.ResponseWriter, control *http.ResponseController, stall time.Duration) *timedResponse {
	return &timedResponse{ResponseWriter: w, control: control, stall: stall,
		limit: limit{interrupt: control.SetWriteDeadline}}
}

func (w *timedResponse) Write(p []byte) (n int, err error) {
	w.limit.during(w.stall, func() { n, err = w.ResponseWriter.Write(p) })
	return n, err
}

// Flush implements http.Flusher, which Connect needs for streams.
func (w *timedResponse) Flush() {
	w.limit.during(w.stall, func() { _ = w.control.Flush() })
}

func (w *timedResponse) Unwrap() http.ResponseWriter { return w.ResponseWriter }
