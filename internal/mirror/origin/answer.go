package origin

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// minRate is the least rate of an answer in bytes per second, as an average over its window.
const minRate = 1 << 10

// minDownloadRate is minRate for the objects of Git LFS: their origin has nothing to make first.
const minDownloadRate = 8 << 10

// drainTime is how long closing an answer waits for its end. A connection is only used again after the end.
const drainTime = 50 * time.Millisecond

// answer is the body of a response, with a minimum rate. It is not safe for concurrent use.
type answer struct {
	body     io.ReadCloser
	response *http.Response          // nil for SSH
	explain  func(error) error       // gives an error of body its kind
	cancel   context.CancelCauseFunc // ends the request
	leave    func()                  // frees the slot
	begun    func()                  // of SSH: called after the first read with data; nil after that
	silence  time.Duration           // maximum time without a byte
	window   time.Duration           // time in which the minimum rate has to be reached
	rate     int64                   // minimum in bytes per second, as an average over the window
	timer    *time.Timer             // cancels the request
	waited   time.Duration           // in the current window
	read     int64                   // bytes in the current window
	ended    bool                    // body was read to its end, or failed
}

// maxStall is the maximum time in which an answer that is not a pack has to reach its minimum rate.
const maxStall = time.Minute

// watch sets the limits of the rate. A pack may take longer, because the origin makes it first.
func (a *answer) watch(stall time.Duration, operation string, isPack bool) {
	a.silence, a.window, a.rate = stall, 10*stall, minRate
	if operation == OperationDownload {
		isPack, a.rate = false, minDownloadRate
	}
	if !isPack {
		a.silence = min(stall, maxStall)
		a.window = a.silence
	}
	a.timer = time.AfterFunc(a.silence, func() { a.cancel(errStalled) })
	a.timer.Stop()
}

// Read implements io.Reader. Only the time that it waits for the origin counts for the rate.
func (a *answer) Read(p []byte) (int, error) {
	a.timer.Reset(min(a.silence, a.window-a.waited))
	began := time.Now()
	n, err := a.body.Read(p)
	a.timer.Stop()
	if n > 0 && a.begun != nil {
		a.begun()
		a.begun = nil
	}
	a.waited += time.Since(began)
	a.read += int64(n)
	switch {
	case a.read >= int64(float64(a.rate)*a.window.Seconds()):
		a.waited, a.read = 0, 0
	case a.waited >= a.window:
		a.cancel(errStalled)
	}
	if err != nil {
		a.ended = true
		if err != io.EOF {
			err = a.explain(err)
		}
	}
	return n, err
}

const (
	maxErrorBody  = 64 << 10        // bytes of Error.Body
	errorBodyTime = 2 * time.Second // how long the body of an error may take
)

// errorBody returns the beginning of the body of a response that is an error, as far as it arrives soon.
func (a *answer) errorBody() []byte {
	a.silence, a.window = min(a.silence, errorBodyTime), min(a.window, errorBodyTime)
	body, _ := io.ReadAll(io.LimitReader(a, maxErrorBody))
	return body
}

// Close ends the request. Over HTTP it looks for the end of the answer first.
func (a *answer) Close() error {
	if !a.ended && a.response != nil {
		a.timer.Reset(drainTime)
		_, _ = io.CopyN(io.Discard, a.body, 4<<10)
	}
	a.timer.Stop()
	a.ended = true
	err := a.body.Close()
	a.cancel(context.Canceled)
	a.leave()
	return err
}

// wait ends a request whose answer does not begin in time. The time in which the client's body is awaited does not
// count.
type wait struct {
	timer   *time.Timer
	timeout time.Duration
	over    atomic.Bool
}

func newWait(timeout time.Duration, expired func()) *wait {
	w := &wait{timeout: timeout}
	w.timer = time.AfterFunc(timeout, func() {
		if !w.over.Load() {
			expired()
		}
	})
	return w
}

// end ends the wait.
func (w *wait) end() {
	w.over.Store(true)
	w.timer.Stop()
}

// upload is the body of a request that a client sends.
type upload struct {
	io.Reader
	wait *wait
	err  atomic.Pointer[error] // of Reader, except io.EOF
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	u.wait.timer.Stop()
	n, err := u.Reader.Read(p)
	u.wait.timer.Reset(u.wait.timeout)
	if err != nil && err != io.EOF {
		u.err.Store(&err)
	}
	return n, err
}

// Close implements io.Closer. The owner of the body closes it.
func (u *upload) Close() error { return nil }

// failure returns the error of the body, if it has one.
func (u *upload) failure() error {
	if err := u.err.Load(); err != nil {
		return *err
	}
	return nil
}
