package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// pings sends one small request again and again and compares every answer with the first.
type pings struct {
	target   *target
	request  []byte
	want     []byte // the body that every answer has to have
	conns    int
	rate     float64 // requests a second in all, due at fixed times (open loop); zero: each connection asks as soon as it can
	duration time.Duration
	timeout  time.Duration
	urgent   bool             // run the generator at a higher priority, where that is permitted
	startAt  func() time.Time // when a run begins, asked once its connections are made; nil: then
}

// starting is when the run begins, by our clock and by the one that processes have in common.
func (p *pings) starting() (start time.Time, began time.Duration) {
	start = time.Now()
	if p.startAt != nil {
		start = p.startAt()
	}
	return start, monotonic() + time.Until(start)
}

// exchange is one connection's running request and what has come of its answer.
type exchange struct {
	due  time.Time // when the request was due, in a closed loop: when it was sent
	buf  []byte
	n    int
	head head
	at   int // length of the head, 0 until it is complete
	body []byte

	chunks []byte // holds the body where it came chunked
}

// maxSmall bounds a small answer.
const maxSmall = 256 << 20

// begin gets ready for the next answer.
func (x *exchange) begin(due time.Time) { x.due, x.n, x.at = due, 0, 0 }

// space is where to read on.
func (x *exchange) space() []byte {
	if x.n == len(x.buf) {
		grown := make([]byte, max(2*len(x.buf), 16<<10))
		copy(grown, x.buf)
		x.buf = grown
	}
	return x.buf[x.n:]
}

// took says that n bytes were read into space. It is done when the answer is complete; then body holds it until begin.
func (x *exchange) took(n int) (done bool, err error) {
	x.n += n
	if x.at == 0 {
		for {
			h, at, err := parseHead(x.buf[:x.n])
			if err != nil {
				return false, err
			}
			if at == 0 {
				if x.n > connBuffer {
					return false, errors.New("response head too long")
				}
				return false, nil
			}
			if h.status < 200 {
				x.n = copy(x.buf, x.buf[at:x.n])
				continue
			}
			x.head, x.at = h, at
			break
		}
	}
	rest := x.buf[x.at:x.n]
	switch {
	case x.head.chunked:
		if !bytes.HasSuffix(rest, []byte("0\r\n\r\n")) {
			return false, x.bounded()
		}
		return x.dechunk(rest)
	case x.head.length < 0:
		return false, x.bounded() // until the connection ends
	case int64(len(rest)) > x.head.length:
		return false, errors.New("bytes after the end of the response")
	case int64(len(rest)) == x.head.length:
		x.body = rest
		return true, nil
	}
	return false, x.bounded()
}

func (x *exchange) bounded() error {
	if x.n > maxSmall {
		return errors.New("response too long")
	}
	return nil
}

// ended says that the connection has ended.
func (x *exchange) ended() error {
	if x.at > 0 && !x.head.chunked && x.head.length < 0 {
		x.body = x.buf[x.at:x.n]
		return nil
	}
	return io.ErrUnexpectedEOF
}

// dechunk reads a chunked body that seems complete.
func (x *exchange) dechunk(b []byte) (bool, error) {
	x.chunks = x.chunks[:0]
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return false, x.bounded()
		}
		n, err := parseChunkSize(b[:i])
		if err != nil {
			return false, err
		}
		b = b[i+1:]
		if n == 0 {
			x.body = x.chunks
			return true, nil
		}
		if int64(len(b)) < n+2 {
			return false, x.bounded() // the data only looked like the end
		}
		if b[n] != '\r' || b[n+1] != '\n' {
			return false, errors.New("bad chunked body: a chunk is longer than it said")
		}
		x.chunks = append(x.chunks, b[:n]...)
		b = b[n+2:]
	}
}

// verify compares a complete answer. An answer that is wrong leaves the connection fit for use.
func (p *pings) verify(x *exchange) error {
	if x.head.status != 200 {
		return &httpError{status: x.head.status, text: clean(x.body[:min(len(x.body), 200)])}
	}
	if p.want != nil && !bytes.Equal(x.body, p.want) {
		return &httpError{status: 200, text: fmt.Sprintf("an answer of %d bytes differs from the first one of %d", len(x.body), len(p.want))}
	}
	return nil
}

// first asks once and returns the answer's body.
func (p *pings) first(ctx context.Context) ([]byte, error) {
	one := pings{target: p.target, request: p.request, conns: 1, timeout: p.timeout}
	w := &pinger{pings: &one, failures: &failures{}}
	defer w.close()
	if err := w.once(ctx, time.Time{}); err != nil {
		return nil, err
	}
	return bytes.Clone(w.x.body), nil
}

// pinger is one connection with a goroutine: the portable form of the generator, also for TLS.
type pinger struct {
	*pings
	c        net.Conn
	release  func() bool // ends the connection's tie to the context
	x        exchange
	samples  samples
	timed    []answered
	bytes    int64
	failures *failures
}

func (w *pinger) close() {
	if w.c != nil {
		w.release()
		w.c.Close()
		w.c = nil
	}
}

func (w *pinger) connect(ctx context.Context) error {
	if w.c != nil {
		return nil
	}
	c, err := w.target.dial(ctx)
	if err != nil {
		return err
	}
	w.c = c
	w.release = context.AfterFunc(ctx, func() { c.Close() })
	return nil
}

// once sends the request and waits for its whole answer; a zero time stands for now.
func (w *pinger) once(ctx context.Context, due time.Time) error {
	if err := w.connect(ctx); err != nil {
		return err
	}
	c := w.c
	now := time.Now()
	if due.IsZero() {
		due = now
	}
	c.SetDeadline(now.Add(w.timeout)) //nolint:errcheck // the next call fails too
	w.x.begin(due)
	if _, err := c.Write(w.request); err != nil {
		return err
	}
	for {
		n, err := c.Read(w.x.space())
		done := false
		if n > 0 {
			var bad error
			if done, bad = w.x.took(n); bad != nil {
				return bad
			}
		}
		if err == io.EOF && !done {
			if err = w.x.ended(); err == nil {
				done = true
			}
		}
		if done {
			break
		}
		if err != nil {
			return err
		}
	}
	w.bytes += int64(w.x.n)
	if w.x.head.close {
		w.close()
	}
	return w.verify(&w.x)
}

// runGoroutines is the portable generator: one goroutine for each connection. Where it is urgent, the whole process is: a goroutine runs on any of its threads.
func (p *pings) runGoroutines(ctx context.Context) (*outcome, error) {
	out := &outcome{failures: &failures{}}
	workers := make([]*pinger, p.conns)
	for i := range workers {
		w := &pinger{pings: p, failures: out.failures}
		workers[i] = w
		defer w.close()
		if err := w.connect(ctx); err != nil {
			return nil, err
		}
	}
	if p.urgent {
		if out.urgent = processNice(urgentNice); out.urgent {
			defer processNice(0)
		}
	}
	var start time.Time
	start, out.began = p.starting()
	if !sleep(ctx, time.Until(start)) {
		return nil, ctx.Err()
	}
	schedule := &replayRun{replay: &replay{rate: p.rate, duration: p.duration}, start: start}
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() { w.work(ctx, schedule) })
	}
	wg.Wait()
	out.elapsed = time.Since(start)
	for _, w := range workers {
		out.latency = append(out.latency, w.samples...)
		out.timed = append(out.timed, w.timed...)
		out.bytes += w.bytes
	}
	out.requests = len(out.latency)
	return out, ctx.Err()
}

// work sends what is due.
func (w *pinger) work(ctx context.Context, schedule *replayRun) {
	for {
		due, ok := schedule.slot(ctx)
		if !ok {
			return
		}
		if err := w.once(ctx, due); err != nil {
			if ctx.Err() != nil {
				return
			}
			w.failures.add(err)
			if _, whole := errors.AsType[*httpError](err); !whole {
				w.close()
				sleep(ctx, retryAfter)
			}
			continue
		}
		took := time.Since(w.x.due)
		w.samples = append(w.samples, took)
		if w.rate > 0 {
			w.timed = append(w.timed, answered{w.x.due.Sub(schedule.start), took})
		}
	}
}
