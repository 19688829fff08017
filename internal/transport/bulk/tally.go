package bulk

import (
	"fmt"
	"io"
)

// Tally counts the bytes of one answer, and compares their number with the announced length. Not safe for concurrent
// use.
type Tally struct {
	Sent   int64 // bytes
	Kernel int64 // the part of Sent that the kernel copied

	announced bool
	length    int64
}

// Announce records that the answer will have n bytes.
func (t *Tally) Announce(n int64) { t.announced, t.length = true, n }

// Retract cancels Announce.
func (t *Tally) Retract() { t.announced, t.length = false, 0 }

// Announced returns the announced length; ok is false if there is none.
func (t *Tally) Announced() (n int64, ok bool) { return t.length, t.announced }

// Add counts n bytes that went through user space.
func (t *Tally) Add(n int64) { t.Sent += n }

// AddFrom counts all n bytes that were sent from src.
func (t *Tally) AddFrom(src io.Reader, n int64) {
	t.Sent += n
	if s, ok := src.(interface{ KernelBytes() int64 }); ok {
		t.Kernel += s.KernelBytes()
	}
}

// Counter is called with the number of further bytes while a response is sent.
type Counter interface{ Sent(n int64) }

// CountTo sets a counter for the bytes of src, and reports whether src supports that. Otherwise the caller counts them
// at the end.
func CountTo(src io.Reader, c Counter) bool {
	s, ok := src.(interface{ CountTo(Counter) })
	if ok {
		s.CountTo(c)
	}
	return ok
}

// Check returns an error if an answer with pending further bytes does not have the announced length.
func (t *Tally) Check(pending int64) error {
	if n := t.Sent + pending; t.announced && n != t.length {
		return fmt.Errorf("the answer has %d bytes, but %d were announced", n, t.length)
	}
	return nil
}
