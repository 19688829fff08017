package loadgen

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

// Pings sends one small request again and again and compares every answer with the first.
type Pings struct {
	Target   *Target
	Request  []byte
	Want     []byte // the body that every answer has to have
	Conns    int
	Rate     float64 // requests a second in all, due at fixed times (open loop); zero: each connection asks as soon as it can
	Duration time.Duration
	Timeout  time.Duration
	Urgent   bool             // run the generator at a higher priority, where that is permitted
	StartAt  func() time.Time // when a run begins, asked once its connections are made; nil: then
}

// starting is when the run begins, by our clock and by the one that processes have in common.
func (p *Pings) starting() (start time.Time, began time.Duration) {
	start = time.Now()
	if p.StartAt != nil {
		start = p.StartAt()
	}
	return start, Monotonic() + time.Until(start)
}

// Exchange is one connection's running request and what has come of its answer.
type Exchange struct {
	Due  time.Time // when the request was due, in a closed loop: when it was sent
	buf  []byte
	N    int
	Head Head
	at   int // length of the head, 0 until it is complete
	Body []byte

	chunks []byte // holds the body where it came chunked
}

// MaxSmall bounds a small answer.
const MaxSmall = 256 << 20

// Begin gets ready for the next answer.
func (x *Exchange) Begin(due time.Time) { x.Due, x.N, x.at = due, 0, 0 }

// Space is where to read on.
func (x *Exchange) Space() []byte {
	if x.N == len(x.buf) {
		grown := make([]byte, max(2*len(x.buf), 16<<10))
		copy(grown, x.buf)
		x.buf = grown
	}
	return x.buf[x.N:]
}

// Took says that n bytes were read into space. It is done when the answer is complete; then body holds it until begin.
func (x *Exchange) Took(n int) (done bool, err error) {
	x.N += n
	if x.at == 0 {
		for {
			h, at, err := parseHead(x.buf[:x.N])
			if err != nil {
				return false, err
			}
			if at == 0 {
				if x.N > ConnBuffer {
					return false, errors.New("response head too long")
				}
				return false, nil
			}
			if h.Status < 200 {
				x.N = copy(x.buf, x.buf[at:x.N])
				continue
			}
			x.Head, x.at = h, at
			break
		}
	}
	rest := x.buf[x.at:x.N]
	switch {
	case x.Head.chunked:
		if !bytes.HasSuffix(rest, []byte("0\r\n\r\n")) {
			return false, x.bounded()
		}
		return x.dechunk(rest)
	case x.Head.Length < 0:
		return false, x.bounded() // until the connection ends
	case int64(len(rest)) > x.Head.Length:
		return false, errors.New("bytes after the end of the response")
	case int64(len(rest)) == x.Head.Length:
		x.Body = rest
		return true, nil
	}
	return false, x.bounded()
}

func (x *Exchange) bounded() error {
	if x.N > MaxSmall {
		return errors.New("response too long")
	}
	return nil
}

// Ended says that the connection has ended.
func (x *Exchange) Ended() error {
	if x.at > 0 && !x.Head.chunked && x.Head.Length < 0 {
		x.Body = x.buf[x.at:x.N]
		return nil
	}
	return io.ErrUnexpectedEOF
}

// dechunk reads a chunked body that seems complete.
func (x *Exchange) dechunk(b []byte) (bool, error) {
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
			x.Body = x.chunks
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
func (p *Pings) verify(x *Exchange) error {
	if x.Head.Status != 200 {
		return &HTTPError{Status: x.Head.Status, Text: Clean(x.Body[:min(len(x.Body), 200)])}
	}
	if p.Want != nil && !bytes.Equal(x.Body, p.Want) {
		return &HTTPError{Status: 200, Text: fmt.Sprintf("an answer of %d bytes differs from the first one of %d", len(x.Body), len(p.Want))}
	}
	return nil
}

// First asks once and returns the answer's body.
func (p *Pings) First(ctx context.Context) ([]byte, error) {
	one := Pings{Target: p.Target, Request: p.Request, Conns: 1, Timeout: p.Timeout}
	w := &Pinger{Pings: &one, Failures: &Failures{}}
	defer w.Close()
	if err := w.Once(ctx, time.Time{}); err != nil {
		return nil, err
	}
	return bytes.Clone(w.x.Body), nil
}

// Pinger is one connection with a goroutine: the portable form of the generator, also for TLS.
type Pinger struct {
	*Pings
	c        net.Conn
	release  func() bool // ends the connection's tie to the context
	x        Exchange
	samples  Samples
	timed    []Answered
	bytes    int64
	Failures *Failures
}

func (w *Pinger) Close() {
	if w.c != nil {
		w.release()
		w.c.Close()
		w.c = nil
	}
}

func (w *Pinger) connect(ctx context.Context) error {
	if w.c != nil {
		return nil
	}
	c, err := w.Target.dial(ctx)
	if err != nil {
		return err
	}
	w.c = c
	w.release = context.AfterFunc(ctx, func() { c.Close() })
	return nil
}

// Once sends the request and waits for its whole answer; a zero time stands for now.
func (w *Pinger) Once(ctx context.Context, due time.Time) error {
	if err := w.connect(ctx); err != nil {
		return err
	}
	c := w.c
	now := time.Now()
	if due.IsZero() {
		due = now
	}
	c.SetDeadline(now.Add(w.Timeout)) //nolint:errcheck // the next call fails too
	w.x.Begin(due)
	if _, err := c.Write(w.Request); err != nil {
		return err
	}
	for {
		n, err := c.Read(w.x.Space())
		done := false
		if n > 0 {
			var bad error
			if done, bad = w.x.Took(n); bad != nil {
				return bad
			}
		}
		if err == io.EOF && !done {
			if err = w.x.Ended(); err == nil {
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
	w.bytes += int64(w.x.N)
	if w.x.Head.Close {
		w.Close()
	}
	return w.verify(&w.x)
}

// runGoroutines is the portable generator: one goroutine for each connection. Where it is urgent, the whole process is: a goroutine runs on any of its threads.
func (p *Pings) runGoroutines(ctx context.Context) (*Outcome, error) {
	out := &Outcome{Failures: &Failures{}}
	workers := make([]*Pinger, p.Conns)
	for i := range workers {
		w := &Pinger{Pings: p, Failures: out.Failures}
		workers[i] = w
		defer w.Close()
		if err := w.connect(ctx); err != nil {
			return nil, err
		}
	}
	if p.Urgent {
		if out.Urgent = ProcessNice(UrgentNice); out.Urgent {
			defer ProcessNice(0)
		}
	}
	var start time.Time
	start, out.Began = p.starting()
	if !Sleep(ctx, time.Until(start)) {
		return nil, ctx.Err()
	}
	schedule := &replayRun{Replay: &Replay{Rate: p.Rate, Duration: p.Duration}, start: start}
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() { w.work(ctx, schedule) })
	}
	wg.Wait()
	out.Elapsed = time.Since(start)
	for _, w := range workers {
		out.Latency = append(out.Latency, w.samples...)
		out.Timed = append(out.Timed, w.timed...)
		out.Bytes += w.bytes
	}
	out.Requests = len(out.Latency)
	return out, ctx.Err()
}

// work sends what is due.
func (w *Pinger) work(ctx context.Context, schedule *replayRun) {
	for {
		due, ok := schedule.slot(ctx)
		if !ok {
			return
		}
		if err := w.Once(ctx, due); err != nil {
			if ctx.Err() != nil {
				return
			}
			w.Failures.Add(err)
			if _, whole := errors.AsType[*HTTPError](err); !whole {
				w.Close()
				Sleep(ctx, RetryAfter)
			}
			continue
		}
		took := time.Since(w.x.Due)
		w.samples = append(w.samples, took)
		if w.Rate > 0 {
			w.timed = append(w.timed, Answered{w.x.Due.Sub(schedule.start), took})
		}
	}
}

// ProbeConns is on how many connections: a late answer does not delay the next request.
const ProbeConns = 16

// ProbeRate is how many small requests a second the neighbour sends: enough for a p99 in half a minute, too few to be
// a load.
const ProbeRate = 50

const LoadNice = 5

// UrgentNice and loadNice are the priorities of the two generators. Clients are other machines in real life; here they
// share the CPUs with the server, and without priorities a small request waits behind the receiving end of the clones.
// Measured on two CPUs with a plain sendfile server and 30 clones at full speed, medians of three runs: clones in the same
// process p50 10 ms; in a child process 9 ms; in a child at nice 5 4 ms; always at 8 to 9 GB/s.
const UrgentNice = -5
