package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/connlimit"
	"github.com/packhorse-git/packhorse/internal/fault"
)

// readFirst is how much of a body is received at once, in bytes. Almost all bodies are shorter, and from then on the connection is watched for a
// client that goes away.
const readFirst = 64 << 10

// freeMemory is how many bytes of memory every request may have: for its body, and for what a session makes of it. The lanes bound how many
// requests there are. What goes beyond it counts against the budget that all requests share.
const freeMemory = readFirst

// readAhead is how many buffers of readFirst bytes are received before the request enters its lane, so that slow senders do not
// fill it.
const readAhead = 4

var (
	firstBuffers = sync.Pool{New: func() any { return new([readFirst]byte) }}
	gzipReaders  = sync.Pool{New: func() any { return new(gzip.Reader) }}
)

// body is a request's body, unpacked, with limits on its length, on the memory that it takes, and on the time that the client
// takes to send it.
type body struct {
	unpacked
	memory admit.Holding
	ahead  []*[readFirst]byte
	last   int      // bytes in the last of them; the others are full
	rest   *patient // what comes after them; nil if that is all
	gzip   *gzip.Reader
	ended  bool
	broken error // what was wrong with the end of it
}

// maxStalls bounds the time for a whole body.
const maxStalls = 10

// limitBody bounds the wait for a body that is not read to its end: before it sends an answer, net/http reads what is left.
func (e *exchange) limitBody() {
	if e.r.Body != http.NoBody && e.ReadStall > 0 {
		_ = http.NewResponseController(e.w).SetReadDeadline(time.Now().Add(e.ReadStall))
	}
}

// body receives the beginning of the request's body, in almost all cases all of it.
func (e *exchange) body() (*body, error) {
	b := &body{memory: e.Memory.Hold(e.caller(), freeMemory)}
	conn := connlimit.From(e.r.Context())
	conn.Receiving()
	defer conn.Running()
	err := b.receive(&patient{
		r: e.r.Body, limit: http.NewResponseController(e.w).SetReadDeadline, stall: e.ReadStall, step: readFirst,
		end: time.Now().Add(maxStalls * e.ReadStall),
	})
	if err != nil {
		b.Close()
		return nil, err
	}
	b.unpacked.limit = e.MaxBody
	switch encoding := strings.ToLower(e.r.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		b.gzip = gzipReaders.Get().(*gzip.Reader)
	default:
		b.Close()
		return nil, fault.New(fault.Invalid, "unknown content encoding %.40q; gzip is understood", encoding)
	}
	if err := b.begin(); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// begin makes what a session reads: from the first byte on.
func (b *body) begin() error {
	raw := b.raw()
	if b.gzip != nil {
		if err := b.gzip.Reset(raw); err != nil {
			return fault.Wrap(fault.Invalid, "the request's body is no gzip stream", err)
		}
		raw = b.gzip
	}
	limit := b.unpacked.limit
	b.unpacked = unpacked{r: raw, left: limit, limit: limit}
	return nil
}

// raw is the body as it was sent: what was received, and what is still to come.
func (b *body) raw() io.Reader {
	if len(b.ahead) == 1 && b.rest == nil {
		return bytes.NewReader(b.ahead[0][:b.last])
	}
	parts := make([]io.Reader, len(b.ahead), readAhead+1)
	for i, buf := range b.ahead {
		n := readFirst
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

// rewind goes back to the first byte, for another session, once nobody reads any more and if nothing was wrong with the body. It reports
// false if bytes were read that are not held.
func (b *body) rewind() bool {
	if len(b.ahead) == 0 {
		return b.ended || b.rest != nil && !b.rest.used && !b.rest.interrupted.Load() // there is none, or it was not begun
	}
	if b.rest != nil && b.rest.used {
		return false
	}
	b.memory.Shrink(b.received()) // the session that held the rest has ended
	b.ended = false
	return b.begin() == nil
}

// receive reads up to readAhead buffers.
func (b *body) receive(in *patient) error {
	for len(b.ahead) < readAhead {
		if len(b.ahead) > 0 {
			if err := b.memory.Grow(readFirst); err != nil {
				return err
			}
		}
		buf := firstBuffers.Get().(*[readFirst]byte)
		b.ahead = append(b.ahead, buf)
		n, err := 0, error(nil)
		for m := 0; n < readFirst && err == nil; n += m { // not io.ReadFull: it hides a body that was cut off
			m, err = in.Read(buf[n:])
		}
		if b.last = n; len(b.ahead) == 1 {
			_ = b.memory.Grow(int64(n)) // which is free
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

// received is how many bytes are counted for what was received.
func (b *body) received() int64 {
	if len(b.ahead) == 1 {
		return int64(b.last)
	}
	return int64(len(b.ahead)) * readFirst
}

// end reads to the end of the body. What stands after the request is of no interest, but it has to be whole.
func (b *body) end() error {
	if b.ended {
		return b.broken
	}
	b.ended = true
	if _, err := io.Copy(io.Discard, &b.unpacked); err != nil {
		b.broken = err
		if _, told := errors.AsType[*fault.Error](err); !told {
			b.broken = fault.Wrap(fault.Invalid, "the request's body was cut off, damaged, or took too long", err)
		}
	}
	return b.broken
}

// Close gives the buffers and the memory back.
func (b *body) Close() {
	if b.gzip != nil {
		gzipReaders.Put(b.gzip)
		b.gzip = nil
	}
	for _, buf := range b.ahead {
		firstBuffers.Put(buf)
	}
	b.ahead, b.unpacked = nil, unpacked{}
	b.memory.Shrink(0)
}

// patient reads from a client with a time limit for each step and one for all.
type patient struct {
	r     io.Reader
	limit func(time.Time) error // ends what waits at that time; the zero time: never
	stall time.Duration         // for each step
	step  int                   // bytes of a step, which may come one by one; 0: any number is one
	end   time.Time
	used  bool // was read from

	left     int           // bytes of the step that are still to come
	patience time.Duration // for how long they may be waited for

	interrupted atomic.Bool
}

// errInterrupted is the error of a body that nobody wants any more.
var errInterrupted = errors.New("the rest of the request is not waited for")

func (p *patient) Read(b []byte) (int, error) {
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
		_ = p.limit(deadline)
	}
	if p.interrupted.Load() {
		return 0, errInterrupted
	}
	n, err := p.r.Read(b)
	p.left -= n
	p.patience -= time.Since(begun)
	if err == io.EOF && p.stall > 0 {
		// The connection is watched during the answer, without a limit. After any other error the limit stays: net/http would
		// wait for the rest of the body before it sends an answer.
		_ = p.limit(time.Time{})
	}
	return n, err
}

// Interrupt ends a Read that waits for the client, and those after it: for a node that was lost in the middle of a push.
func (b *body) Interrupt() {
	if b.rest != nil {
		b.rest.interrupted.Store(true)
		_ = b.rest.limit(time.Unix(1, 0))
	}
}

// unpacked is what a session reads of a body. It is an error, not an end, beyond its limit.
type unpacked struct {
	r           io.Reader
	left, limit int64       // left is negative once there was too much
	failed      atomic.Bool // there was an error
}

func (u *unpacked) Read(p []byte) (int, error) {
	n, err := 0, error(nil)
	if u.left >= 0 {
		n, err = u.r.Read(p[:min(int64(len(p)), u.left+1)])
		u.left -= int64(n)
	}
	if err != nil && err != io.EOF {
		u.failed.Store(true)
	}
	if u.left < 0 {
		u.failed.Store(true)
		return max(0, n-1), fault.New(fault.Invalid, "the request's body is longer than %d bytes", u.limit)
	}
	return n, err
}
