package gateway

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
)

// bufferSize is the size of the pieces in which a body is read, in bytes. Almost all bodies are shorter. After the end
// of the body the connection is watched for a client that disconnects.
const bufferSize = 64 << 10

// freeMemory is the number of bytes of memory that each request may use for its body and its session. The concurrency
// limits bound the number of requests. Further memory counts against the budget that all requests share.
const freeMemory = bufferSize

// maxBuffers is the maximum number of buffers of a body that are read before the request is admitted. Reading first
// keeps slow clients from using up the concurrency limits.
const maxBuffers = 4

var (
	buffers     = sync.Pool{New: func() any { return new([bufferSize]byte) }}
	gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}
)

// Source is the source of a request's body.
type Source struct {
	Reader      io.Reader
	SetDeadline func(time.Time) error // for a Read; the zero time means none
	Encoding    string                // Content-Encoding; "": none
	Stall       time.Duration         // 0: BodyLimit.Stall
	// Stateful means that the client does not end the request: it ends when the node has read enough.
	Stateful bool
}

// Body is a request's body, unpacked, with limits on its length, its memory, and the time that the client takes to send
// it.
type Body struct {
	limitedReader
	memory   admit.Holding
	ahead    []*[bufferSize]byte
	last     int            // bytes in the last buffer; the others are full
	rest     *patientReader // the body after the buffers; nil: there is none
	gzip     *gzip.Reader
	finished bool
	damage   error // of the end of the body
}

// EmptyBody returns the body of a request without one.
func EmptyBody() *Body { return &Body{finished: true} }

// ReadBody reads the beginning of the request's body. In almost all cases this is the whole body.
func (r *Request) ReadBody(from Source) (*Body, error) {
	limit := r.Op.Limit(r.Gateway)
	b := &Body{memory: r.Memory.Hold(r.Caller(), freeMemory)}
	in := newPatientReader(from, limit)
	in.step = bufferSize
	if err := b.receive(in); err != nil {
		b.Close()
		return nil, err
	}
	return b.open(from, limit)
}

// StreamBody returns the request's body without reading from it.
func (r *Request) StreamBody(from Source) (*Body, error) {
	limit := r.Op.Limit(r.Gateway)
	b := &Body{memory: r.Memory.Hold(r.Caller(), freeMemory), rest: newPatientReader(from, limit),
		finished: from.Stateful}
	return b.open(from, limit)
}

// LimitTo lowers the maximum size of the unpacked body to n bytes, before the first Read.
func (b *Body) LimitTo(n int64) { b.limitedReader.left, b.limitedReader.limit = n, n }

// open unpacks the body.
func (b *Body) open(from Source, limit BodyLimit) (*Body, error) {
	b.limitedReader.limit = limit.Size
	switch encoding := strings.ToLower(from.Encoding); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		b.gzip = gzipReaders.Get().(*gzip.Reader)
	default:
		b.Close()
		return nil, fault.New(fault.Invalid, "unknown content encoding %.40q; gzip is supported", encoding)
	}
	if err := b.begin(); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// begin prepares to read the body from its first byte.
func (b *Body) begin() error {
	raw := b.raw()
	if b.gzip != nil {
		if err := b.gzip.Reset(raw); err != nil {
			return fault.Wrap(fault.Invalid, "the request's body is not a gzip stream", err)
		}
		raw = b.gzip
	}
	limit := b.limitedReader.limit
	b.limitedReader = limitedReader{r: raw, left: limit, limit: limit}
	return nil
}

// raw returns the body as the client sends it: the buffers, and the part after them.
func (b *Body) raw() io.Reader {
	switch {
	case len(b.ahead) == 1 && b.rest == nil:
		return bytes.NewReader(b.ahead[0][:b.last])
	case len(b.ahead) == 0 && b.rest != nil:
		return b.rest
	}
	parts := make([]io.Reader, len(b.ahead), maxBuffers+1)
	for i, buf := range b.ahead {
		n := bufferSize
		if i == len(b.ahead)-1 {
			n = b.last
		}
		parts[i] = bytes.NewReader(buf[:n])
	}
	if b.rest != nil {
		parts = append(parts, b.rest)
	}
	return io.MultiReader(parts...)
}

// rewind returns to the first byte for another node, if the body is not damaged. No other goroutine may read. It
// reports false if bytes were read that are not in the buffers.
func (b *Body) rewind() bool {
	if b.rest != nil && (b.rest.used || b.rest.interrupted.Load()) {
		return false
	}
	if len(b.ahead) == 0 {
		return b.rest != nil || b.finished
	}
	b.memory.Shrink(b.received()) // the session that used the rest has ended
	b.finished = false
	return b.begin() == nil
}

// receive reads up to maxBuffers buffers.
func (b *Body) receive(in *patientReader) error {
	for len(b.ahead) < maxBuffers {
		if len(b.ahead) > 0 {
			if err := b.memory.Grow(bufferSize); err != nil {
				return err
			}
		}
		buf := buffers.Get().(*[bufferSize]byte)
		b.ahead = append(b.ahead, buf)
		n, err := 0, error(nil)
		for m := 0; n < bufferSize && err == nil; n += m { // not io.ReadFull, which hides an interrupted body
			m, err = in.Read(buf[n:])
		}
		if b.last = n; len(b.ahead) == 1 {
			_ = b.memory.Grow(int64(n)) // within freeMemory
		}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return fault.Wrap(fault.Invalid, "the request's body was cut off or took too long", err)
		}
	}
	b.rest, in.used = in, false
	return nil
}

// received returns how many bytes of memory are counted for the buffers.
func (b *Body) received() int64 {
	if len(b.ahead) == 1 {
		return int64(b.last)
	}
	return int64(len(b.ahead)) * bufferSize
}

// finish reads to the end of the body. It ignores bytes after the request, but the body must be complete.
func (b *Body) finish() error {
	if b.finished {
		return b.damage
	}
	b.finished = true
	if _, err := io.Copy(io.Discard, &b.limitedReader); err != nil {
		b.damage = err
		if _, ok := errors.AsType[*fault.Error](err); !ok {
			b.damage = fault.Wrap(fault.Invalid, "the request's body was cut off, damaged, or took too long", err)
		}
	}
	return b.damage
}

// failed reports whether a Read has failed.
func (b *Body) failed() bool { return b.limitedReader.failed.Load() }

// Close returns the buffers and the memory. No other goroutine may read.
func (b *Body) Close() {
	if b.gzip != nil {
		gzipReaders.Put(b.gzip)
		b.gzip = nil
	}
	for _, buf := range b.ahead {
		buffers.Put(buf)
	}
	b.ahead, b.limitedReader = nil, limitedReader{}
	b.ReleaseMemory()
}

// ReleaseMemory returns the memory of a body that a node may still read from.
func (b *Body) ReleaseMemory() { b.memory.Shrink(0) }

// Interrupt ends a Read that waits for the client, and makes later ones fail. It is called when a node was lost during
// a push.
func (b *Body) Interrupt() {
	if b.rest != nil {
		b.rest.interrupted.Store(true)
		_ = b.rest.setDeadline(time.Unix(1, 0))
	}
}

// patientReader reads from a client with a time limit for each step and one for the whole body.
type patientReader struct {
	r           io.Reader
	setDeadline func(time.Time) error
	stall       time.Duration // for each step; 0: no limit
	step        int           // bytes of a step; 0: each Read is a step
	end         time.Time
	used        bool // something was read

	left     int           // remaining bytes of the step
	patience time.Duration // remaining time of the step

	interrupted atomic.Bool
}

func newPatientReader(from Source, limit BodyLimit) *patientReader {
	stall := cmp.Or(from.Stall, limit.Stall)
	return &patientReader{r: from.Reader, setDeadline: from.SetDeadline, stall: stall, end: time.Now().Add(limit.Total)}
}

// errInterrupted is the error of a Read of a body that was interrupted.
var errInterrupted = errors.New("the rest of the request is no longer needed")

func (p *patientReader) Read(b []byte) (int, error) {
	p.used = true
	begun := time.Now()
	if p.stall > 0 {
		if p.left <= 0 {
			p.left, p.patience = p.step, p.stall
		}
		deadline := begun.Add(p.patience)
		if p.end.Before(deadline) {
			deadline = p.end
		}
		_ = p.setDeadline(deadline)
	}
	if p.interrupted.Load() {
		return 0, errInterrupted
	}
	n, err := p.r.Read(b)
	p.left -= n
	p.patience -= time.Since(begun)
	if err == io.EOF && p.stall > 0 {
		// The connection is watched during the response, without a limit. After any other error the limit stays:
		// net/http would wait for the rest of the body before it sends a response.
		_ = p.setDeadline(time.Time{})
	}
	return n, err
}

// limitedReader reads a body up to a limit. Beyond it a Read fails.
type limitedReader struct {
	r           io.Reader
	left, limit int64       // left is negative after the limit was exceeded
	failed      atomic.Bool // a Read has failed
}

func (l *limitedReader) Read(p []byte) (int, error) {
	n, err := 0, error(nil)
	if l.left >= 0 {
		n, err = l.r.Read(p[:min(int64(len(p)), l.left+1)])
		l.left -= int64(n)
	}
	if err != nil && err != io.EOF {
		l.failed.Store(true)
	}
	if l.left < 0 {
		l.failed.Store(true)
		return max(0, n-1), fault.New(fault.Invalid, "the request's body is longer than %d bytes", l.limit)
	}
	return n, err
}
