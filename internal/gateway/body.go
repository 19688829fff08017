package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/fault"
)

// readFirst is how much of a body every request may have. Almost all bodies are shorter: they are received whole at once, and from
// then on the connection is watched for a client that goes away. The lanes bound how many there are. What goes beyond it counts
// against the budget that all requests share.
const readFirst = 64 << 10

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
	memory *admit.Budget
	held   int64 // bytes of the budget
	ahead  []*[readFirst]byte
	gzip   *gzip.Reader
	ended  bool
	broken error // what was wrong with the end of it
}

// maxStalls bounds the time for a whole body: a client that sends single bytes just in time is cut off too.
const maxStalls = 10

// limitBody bounds the wait for a body that is not read to its end: before it sends an answer, net/http reads what is left.
func (e *exchange) limitBody() {
	if e.r.Body != http.NoBody && e.ReadStall > 0 {
		_ = http.NewResponseController(e.w).SetReadDeadline(time.Now().Add(e.ReadStall))
	}
}

// body receives the beginning of the request's body, in almost all cases all of it.
func (e *exchange) body() (*body, error) {
	b := &body{memory: e.Memory}
	raw, err := b.receive(&patient{
		r: e.r.Body, control: http.NewResponseController(e.w), stall: e.ReadStall,
		end: time.Now().Add(maxStalls * e.ReadStall),
	})
	if err != nil {
		b.Close()
		return nil, err
	}
	switch encoding := strings.ToLower(e.r.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		z := gzipReaders.Get().(*gzip.Reader)
		if err := z.Reset(raw); err != nil {
			b.Close()
			return nil, fault.Wrap(fault.Invalid, "the request's body is no gzip stream", err)
		}
		b.gzip, raw = z, z
	default:
		b.Close()
		return nil, fault.New(fault.Invalid, "unknown content encoding %.40q; gzip is understood", encoding)
	}
	b.unpacked = unpacked{r: raw, left: e.MaxBody, limit: e.MaxBody, free: readFirst, take: b.take}
	return b, nil
}

// receive reads up to readAhead buffers and gives the whole stream, what it has read and what is still to come.
func (b *body) receive(in *patient) (io.Reader, error) {
	var parts []io.Reader
	for len(b.ahead) < readAhead {
		if len(b.ahead) > 0 {
			if err := b.take(readFirst); err != nil {
				return nil, err
			}
		}
		buf := firstBuffers.Get().(*[readFirst]byte)
		b.ahead = append(b.ahead, buf)
		n, err := 0, error(nil)
		for m := 0; n < readFirst && err == nil; n += m { // not io.ReadFull: it hides a body that was cut off
			m, err = in.Read(buf[n:])
		}
		parts = append(parts, bytes.NewReader(buf[:n]))
		switch {
		case err == io.EOF && len(parts) == 1:
			return parts[0], nil
		case err == io.EOF:
			return io.MultiReader(parts...), nil
		case err != nil:
			return nil, fault.Wrap(fault.Invalid, "the request's body was cut off or took too long", err)
		}
	}
	return io.MultiReader(append(parts, in)...), nil
}

// take counts n bytes against the budget until Close.
func (b *body) take(n int64) error {
	if err := b.memory.Take(n); err != nil {
		return err
	}
	b.held += n
	return nil
}

// end reads to the end of the body. What stands after the request is of no interest, but it has to be whole.
func (b *body) end() error {
	if b.ended {
		return b.broken
	}
	b.ended = true
	b.unpacked.take = func(int64) error { return nil } // nobody keeps what comes now
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
	b.memory.Give(b.held)
	b.held = 0
}

// patient reads from a client with a time limit for each step and one for all.
type patient struct {
	r       io.Reader
	control *http.ResponseController
	stall   time.Duration
	end     time.Time
}

func (p *patient) Read(b []byte) (int, error) {
	if p.stall > 0 {
		deadline := time.Now().Add(p.stall)
		if p.end.Before(deadline) {
			deadline = p.end
		}
		_ = p.control.SetReadDeadline(deadline)
	}
	n, err := p.r.Read(b)
	if err == io.EOF && p.stall > 0 {
		// The connection is watched during the answer, without a limit. After any other error the limit stays: net/http would
		// wait for the rest of the body before it sends an answer.
		_ = p.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// unpacked is what a session reads of a body. It is an error, not an end, beyond its limit or that of the memory.
type unpacked struct {
	r           io.Reader
	left, limit int64 // left is negative once there was too much
	free        int64 // bytes that are not counted
	take        func(n int64) error
	full        error // of take
}

func (u *unpacked) Read(p []byte) (int, error) {
	if u.full != nil {
		return 0, u.full
	}
	n, err := 0, error(nil)
	if u.left >= 0 {
		n, err = u.r.Read(p[:min(int64(len(p)), u.left+1)])
		u.left -= int64(n)
	}
	if u.left < 0 {
		return max(0, n-1), fault.New(fault.Invalid, "the request's body is longer than %d bytes", u.limit)
	}
	if u.free -= int64(n); u.free < 0 {
		if u.full = u.take(-u.free); u.full != nil {
			return 0, u.full
		}
		u.free = 0
	}
	return n, err
}
