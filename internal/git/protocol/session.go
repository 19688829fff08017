package protocol

import (
	"io"
	"time"
)

// Reply takes a server's answer. Writes come one at a time. If it is also an io.ReaderFrom, parts of files are handed to it
// whole, so that the kernel can copy them.
type Reply interface {
	io.Writer
	// Length announces the length in bytes of the whole answer. It is called at most once, before the first Write; an answer
	// whose length was announced and is not reached must not look whole to the client. Where answers follow each other on one
	// stream it means nothing.
	Length(n int64)
	// Bulk says that a pack is about to be opened for this answer, or that it is too long to be sent at once. Cold: the pack has to be
	// made, for all that is known; otherwise the answer only has to be sent. It is called at most
	// once for an answer, before the first Write. In a session with state the advertisement is one answer and all that follows is another, of
	// which it comes before the pack. An error is a refusal, and ends the session.
	Bulk(cold bool) error
	// Flush sends what is buffered.
	Flush() error
	// Hold counts n more bytes of memory that the session takes for its request, until the session ends. Sessions count what grows with
	// the request's length. An error is a refusal, and ends the session.
	Hold(n int64) error
}

// BrokenReply is an error of the connection to the client: there is nobody to tell it to.
type BrokenReply struct{ Err error }

func (e *BrokenReply) Error() string { return "send the answer: " + e.Err.Error() }
func (e *BrokenReply) Unwrap() error { return e.Err }

// ToldClient is an error that the client has been told in the answer itself, which ends as usual.
type ToldClient struct{ Err error }

func (e *ToldClient) Error() string { return e.Err.Error() }
func (e *ToldClient) Unwrap() error { return e.Err }

// StaleRoad is an error of a connection that was kept from an earlier answer and turned out to be dead. The client has seen nothing; the same
// node may be asked once more.
type StaleRoad struct{ Err error }

func (e *StaleRoad) Error() string { return e.Err.Error() }
func (e *StaleRoad) Unwrap() error { return e.Err }

// Outcome tells what a session did, for the log and the metrics.
type Outcome struct {
	Command  Command // "" if the request was none
	Agent    string  // the client's name for itself, fit for a log
	Session  string  // the client's session ID, fit for a log; "" for none
	Refs     int     // refs listed
	Dangling bool    // HEAD names a branch that does not exist, and there are others; of a node in this process alone
	Wants    int
	Haves    int
	Common   int    // haves that exist here
	Pack     string // where the pack came from: hit, miss, follow, uncached; "" if none was sent
	Key      string // the pack's key
	Objects  uint32 // objects in the pack
	Bytes    int64  // bytes of the pack, framed

	// Stages of the session.
	Parse, Negotiate, Wait, FirstByte, Copy time.Duration

	ChildCPU    time.Duration // CPU time of the git process that this request started
	ChildMaxRSS int64         // bytes

	Reason  string      // why a push failed, as a word for logs and metrics; "" if it did not
	Updates []RefUpdate // what a push asked for and what became of it, in the client's order
}
