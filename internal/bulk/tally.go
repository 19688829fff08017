package bulk

import (
	"fmt"
	"io"
)

// Tally counts the bytes of one answer by the way they took, and holds them against the length that was announced. Not
// safe for concurrent use.
type Tally struct {
	Sent   int64 // bytes
	Kernel int64 // of them, those that the kernel moved

	announced bool
	length    int64
}

// Announce notes that the answer will have n bytes.
func (t *Tally) Announce(n int64) { t.announced, t.length = true, n }

// Retract takes that back.
func (t *Tally) Retract() { t.announced, t.length = false, 0 }

// Announced returns the announced length; ok is false if there is none.
func (t *Tally) Announced() (n int64, ok bool) { return t.length, t.announced }

// Add counts n bytes that went through user space.
func (t *Tally) Add(n int64) { t.Sent += n }

// AddFrom counts the n bytes of src, all that were sent of it.
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

// Check finds that an answer which is whole with pending more bytes has not the length that was announced.
func (t *Tally) Check(pending int64) error {
	if n := t.Sent + pending; t.announced && n != t.length {
		return fmt.Errorf("the answer has %d bytes where %d were announced", n, t.length)
	}
	return nil
}
