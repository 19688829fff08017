package app

import (
	"context"
	"io"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// budget bounds the bytes of all requests together.
type budget struct {
	limit int64
	used  atomic.Int64
}

// reserve takes n bytes, or none.
func (b *budget) reserve(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) release(n int64) { b.used.Add(-n) }

const copySize = 64 << 10

// bufferPool holds buffers of copySize bytes. It implements httputil.BufferPool.
type bufferPool struct{ pool sync.Pool }

// Get returns a buffer.
func (b *bufferPool) Get() []byte {
	if buffer, ok := b.pool.Get().(*[copySize]byte); ok {
		return buffer[:]
	}
	return make([]byte, copySize)
}

// Put gives a buffer back.
func (b *bufferPool) Put(buffer []byte) { b.pool.Put((*[copySize]byte)(buffer)) }

const firstSpool = 16 << 10 // is not counted in Proxy.memory

// spool is the body of a long response. A goroutine reads it from the worker as fast as it comes; Read gives it to the
// client. Up to maxStored bytes of it wait in memory. Then the worker waits for the client.
type spool struct {
	e        *exchange
	seat     *seat
	received *http.Response
	sent     http.Response // its trailer is set by Close
	stop     func() bool   // of the call that ends the request when the client disconnects
	done     chan struct{} // closed when the goroutine has ended

	mu       sync.Mutex
	changed  sync.Cond
	memory   []byte
	from     int // memory[from:] is stored
	isEnded  bool
	err      error // after isEnded; io.EOF: the body is complete
	isClosed bool
}

// spool returns the response for the client and starts to read its body from the worker.
func (e *exchange) spool(s *seat, response *http.Response) *http.Response {
	sp := &spool{e: e, seat: s, received: response, sent: *response, done: make(chan struct{}),
		memory: make([]byte, 0, firstSpool)}
	// The goroutine writes to the trailer of the received response while ReverseProxy reads that of the other one.
	sp.sent.Trailer, sp.sent.Body = maps.Clone(response.Trailer), sp
	sp.changed.L = &sp.mu
	sp.stop = context.AfterFunc(e.ctx, sp.abort)
	e.spooled, e.proxy.FlushInterval = sp, -1
	go sp.fill()
	return &sp.sent
}

// fill reads the body from the worker.
func (s *spool) fill() {
	defer close(s.done)
	p := s.e.p
	buffer := p.buffers.Get()
	defer p.buffers.Put(buffer)
	var isStalled atomic.Bool
	stall := time.AfterFunc(p.StallTimeout, func() {
		isStalled.Store(true)
		s.e.cancel()
	})
	defer stall.Stop()
	var err error
	for err == nil && !s.closed() {
		n := 0
		stall.Reset(p.StallTimeout)
		n, err = s.received.Body.Read(buffer)
		stall.Stop()
		if err != nil && isStalled.Load() {
			err = errStalled
		}
		s.write(buffer[:n])
	}
	s.received.Body.Close()
	switch {
	case err == io.EOF:
		s.seat.done(balance.OK)
	case s.closed() || p.running.Err() != nil:
		s.seat.done(balance.Cut)
	default:
		s.seat.done(balance.Failed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isEnded, s.err = true, err
	s.changed.Broadcast()
}

func (s *spool) closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isClosed
}

// write stores b. It waits for the client when the memory is full.
func (s *spool) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(b) > 0 && !s.isClosed {
		if s.from > 0 && len(s.memory)+len(b) > cap(s.memory) { // move the stored bytes to the front
			s.memory, s.from = s.memory[:copy(s.memory, s.memory[s.from:])], 0
		}
		size := cap(s.memory)
		switch n := min(len(b), size-len(s.memory)); {
		case n > 0:
			s.memory, b = append(s.memory, b[:n]...), b[n:]
			s.changed.Broadcast()
		case size < maxStored && s.e.p.memory.reserve(int64(size)):
			s.memory = append(make([]byte, 0, 2*size), s.memory...)
		default:
			s.changed.Wait()
		}
	}
}

// Read returns stored bytes, or waits for some. It records why the body was not sent in full.
func (s *spool) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.from == len(s.memory) && !s.isEnded {
		s.changed.Wait()
	}
	if s.from < len(s.memory) {
		n := copy(b, s.memory[s.from:])
		if s.from += n; s.from == len(s.memory) {
			s.memory, s.from = s.memory[:0], 0
		}
		s.changed.Broadcast()
		return n, nil
	}
	if e := s.e; s.err != io.EOF && e.Err == nil {
		e.Cut, e.Err = true, e.explain(s.err)
		if e.ctx.Err() != nil {
			e.Err = fault.Wrap(fault.Cancelled, "the client disconnected", e.ctx.Err())
		}
	}
	return 0, s.err
}

// abort ends the request at the worker.
func (s *spool) abort() {
	s.mu.Lock()
	s.isClosed = true
	s.changed.Broadcast()
	s.mu.Unlock()
	s.e.cancel()
}

// Close ends the request at the worker, if it runs, and releases memory. Further calls do nothing.
func (s *spool) Close() error {
	if s.e.spooled == nil {
		return nil
	}
	s.e.spooled = nil
	s.stop()
	select {
	case <-s.done:
	default:
		s.abort()
		<-s.done
	}
	s.e.p.memory.release(int64(cap(s.memory) - firstSpool))
	s.e.Service += s.seat.took
	s.sent.Trailer = s.received.Trailer
	maps.DeleteFunc(s.sent.Trailer, func(name string, _ []string) bool { return !mayReachClient(name) })
	return nil
}
