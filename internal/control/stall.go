package control

import (
	"net/http"
	"time"
)

// impatientFrom is from which length on a write has a time limit: flow control lets shorter ones pass, or the connection's end does.
const impatientFrom = 16 << 10

// impatient is the response of an HTTP/2 stream whose reader has a time limit for each long write. Without it a reader that takes nothing
// would hold its transfer, and what that holds, for as long as its connection lives.
type impatient struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
}

func (w *impatient) Write(p []byte) (int, error) {
	if len(p) < impatientFrom {
		return w.ResponseWriter.Write(p)
	}
	_ = w.control.SetWriteDeadline(time.Now().Add(w.stall))
	n, err := w.ResponseWriter.Write(p)
	_ = w.control.SetWriteDeadline(time.Time{})
	return n, err
}

// Flush is what Connect looks for in a response that streams.
func (w *impatient) Flush() { _ = w.control.Flush() }

func (w *impatient) Unwrap() http.ResponseWriter { return w.ResponseWriter }
