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

// maxStalls bounds the time that a call waits for parts of its request, in times of Stall: single bytes just in time do not keep it up.
const maxStalls = 10

// limit interrupts what one direction of a call waits for. The deadlines of a response are a message to its connection each, and stay once they are
// set; a timer that almost never fires costs less. Used by one goroutine at a time.
type limit struct {
	interrupt func(time.Time) error // SetReadDeadline or SetWriteDeadline

	mu    sync.Mutex
	timer *time.Timer
	ended bool
}

// during runs wait, and interrupts it after d.
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
	if !l.ended { // else there is no response any more
		_ = l.interrupt(time.Unix(1, 0))
	}
}

// end is called before the handler returns.
func (l *limit) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// impatientBody is a request whose sender has a time limit for each part, and one for all of them.
type impatientBody struct {
	io.ReadCloser
	control *http.ResponseController
	http1   bool
	stall   time.Duration
	left    time.Duration // of all waiting
	limit   limit
	whole   bool
}

func newImpatientBody(r *http.Request, control *http.ResponseController, stall time.Duration) *impatientBody {
	return &impatientBody{
		ReadCloser: r.Body, control: control, http1: r.ProtoMajor == 1, stall: stall, left: maxStalls * stall, limit: limit{interrupt: control.SetReadDeadline},
	}
}

func (b *impatientBody) Read(p []byte) (n int, err error) {
	start := time.Now()
	b.limit.during(min(b.stall, max(b.left, 0)), func() { n, err = b.ReadCloser.Read(p) })
	b.left -= time.Since(start)
	b.whole = b.whole || errors.Is(err, io.EOF)
	if _, ofConnection := errors.AsType[net.Error](err); b.http1 && err != nil && !ofConnection && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		err = connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the request's body cannot be read: %w", err)) // bad chunks
	}
	return n, err
}

// end is called before the handler returns: net/http reads the rest of an HTTP/1.1 request, in the time that one part has.
func (b *impatientBody) end() {
	b.limit.end()
	if b.http1 && !b.whole {
		_ = b.control.SetReadDeadline(time.Now().Add(b.stall))
	}
}

// impatient is the response of an HTTP/2 stream whose reader has a time limit for each write. Without it a reader that takes nothing
// would hold its transfer, and what that holds, for as long as its connection lives. What net/http still sends once the call has ended holds
// nothing but its stream.
type impatient struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	limit   limit
}

func newImpatient(w http.ResponseWriter, control *http.ResponseController, stall time.Duration) *impatient {
	return &impatient{ResponseWriter: w, control: control, stall: stall, limit: limit{interrupt: control.SetWriteDeadline}}
}

func (w *impatient) Write(p []byte) (n int, err error) {
	w.limit.during(w.stall, func() { n, err = w.ResponseWriter.Write(p) })
	return n, err
}

// Flush is what Connect looks for in a response that streams.
func (w *impatient) Flush() {
	w.limit.during(w.stall, func() { _ = w.control.Flush() })
}

func (w *impatient) Unwrap() http.ResponseWriter { return w.ResponseWriter }
