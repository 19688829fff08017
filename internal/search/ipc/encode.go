package ipc

import (
	"encoding/binary"
	"errors"
)

// A Request and an End are numbers and strings in the order of their fields: a number as a varint, a string as its length and its bytes, several bools as
// one number. Each search sends one of both; as JSON they cost the server a tenth of its part.

const (
	bitLimited = 1 << iota
	bitTimedOut
	bitCrashed
	bitLoaded
)

func bit(set bool, b uint64) uint64 {
	if set {
		return b
	}
	return 0
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Append adds the request to b.
func (q *Request) Append(b []byte) []byte {
	b = appendString(b, q.Query)
	for _, n := range []int{q.Format, q.Limit, q.Timeout} {
		b = binary.AppendVarint(b, int64(n))
	}
	return binary.AppendUvarint(b, bit(q.Limited, bitLimited)|bit(q.Loaded, bitLoaded))
}

// ParseRequest reads what Append wrote.
func ParseRequest(b []byte) (Request, error) {
	f := fields{rest: b}
	q := Request{Query: f.text(), Format: f.int(), Limit: f.int(), Timeout: f.int()}
	bits := f.uint()
	q.Limited, q.Loaded = bits&bitLimited != 0, bits&bitLoaded != 0
	return q, f.end()
}

// Append adds the end of an answer to b.
func (e *End) Append(b []byte) []byte {
	b = appendString(b, e.Error)
	b = binary.AppendUvarint(b, uint64(e.Kind))
	b = binary.AppendUvarint(b, bit(e.Limited, bitLimited)|bit(e.TimedOut, bitTimedOut)|bit(e.Crashed, bitCrashed))
	for _, n := range []int{e.Results, e.Matches, e.Searched, int(e.Took), len(e.Repositories)} {
		b = binary.AppendVarint(b, int64(n))
	}
	for i := range e.Repositories {
		r := &e.Repositories[i]
		b = binary.AppendVarint(binary.AppendUvarint(b, uint64(r.ID)), int64(r.Shards))
		b = appendString(appendString(b, r.Commit), r.Branch)
	}
	return b
}

// ParseEnd reads what Append wrote.
func ParseEnd(b []byte) (End, error) {
	f := fields{rest: b}
	e := End{Error: f.text(), Kind: uint8(f.uint())}
	bits := f.uint()
	e.Limited, e.TimedOut, e.Crashed = bits&bitLimited != 0, bits&bitTimedOut != 0, bits&bitCrashed != 0
	e.Results, e.Matches, e.Searched, e.Took = f.int(), f.int(), f.int(), int64(f.int())
	n := f.int()
	if n < 0 || n > len(f.rest) { // each takes some bytes
		return e, errFields
	}
	if n > 0 {
		e.Repositories = make([]Found, 0, n)
	}
	for range n {
		e.Repositories = append(e.Repositories, Found{ID: uint32(f.uint()), Shards: f.int(), Commit: f.text(), Branch: f.text()})
	}
	return e, f.end()
}

var errFields = errors.New("a frame whose fields cannot be read")

// fields reads what a frame consists of; after a failure, zeros.
type fields struct {
	rest []byte
	bad  bool
}

func (f *fields) uint() uint64 {
	n, size := binary.Uvarint(f.rest)
	return n * f.take(size)
}

func (f *fields) int() int {
	n, size := binary.Varint(f.rest)
	return int(n) * int(f.take(size))
}

// take goes on behind a number of so many bytes; 0 if there was none.
func (f *fields) take(size int) uint64 {
	if size <= 0 {
		f.rest, f.bad = nil, true
		return 0
	}
	f.rest = f.rest[size:]
	return 1
}

func (f *fields) text() string {
	n := f.uint()
	if n > uint64(len(f.rest)) {
		f.rest, f.bad = nil, true
		return ""
	}
	s := string(f.rest[:n])
	f.rest = f.rest[n:]
	return s
}

// end tells whether all was read, and nothing is left.
func (f *fields) end() error {
	if f.bad || len(f.rest) > 0 {
		return errFields
	}
	return nil
}
