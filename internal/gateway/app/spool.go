package app

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

const (
	spoolMemory = 128 << 10
	leastMemory = 16 << 10 // of a stream, of which little is stored, and when there is no more memory
)

// spool is the body of a long response. A goroutine reads it from the worker as fast as it comes; Read gives it to the
// client. Between them it is stored in memory and then, while that is full, in a file. If there is no room in either,
// the worker waits for the client.
type spool struct {
	p      *Proxy
	seat   *seat
	body   io.ReadCloser      // from the worker
	cancel context.CancelFunc // ends the request at the worker
	stop   func() bool        // of the call that ends it when the client leaves
	done   chan struct{}      // closed when the goroutine has ended
	step   int                // maximum number of bytes in a read from the worker

	mu       sync.Mutex
	changed  sync.Cond
	memory   []byte // of a fixed capacity
	from     int    // memory[from:] is stored
	file     file   // the following bytes
	read     int64  // where the next read of the file begins
	noFile   bool
	isEnded  bool
	err      error // after isEnded; io.EOF: the body is complete
	isClosed bool
	spooled  int64 // bytes that went through the file
}

// newSpool starts to read the body of a response.
func newSpool(e *exchange, s *seat, body io.ReadCloser, isStream bool) *spool {
	sp := &spool{p: e.p, seat: s, body: body, cancel: e.cancel, done: make(chan struct{}), file: file{p: e.p},
		noFile: e.p.Bodies.Dir == ""}
	sp.changed.L = &sp.mu
	size := leastMemory
	if !isStream && e.p.memory.reserve(spoolMemory) {
		size = spoolMemory
	}
	sp.memory, sp.step = make([]byte, 0, size), size/2
	sp.stop = context.AfterFunc(e.ctx, sp.abort)
	go sp.fill()
	return sp
}

// fill reads the body from the worker.
func (s *spool) fill() {
	defer close(s.done)
	buffer := s.p.buffers.Get()
	defer s.p.buffers.Put(buffer)
	var isStalled atomic.Bool
	stall := time.AfterFunc(s.p.StallTimeout, func() {
		isStalled.Store(true)
		s.cancel()
	})
	defer stall.Stop()
	var err error
	for err == nil && !s.closed() {
		n := 0
		stall.Reset(s.p.StallTimeout)
		n, err = s.body.Read(buffer[:s.step])
		stall.Stop()
		if err != nil && isStalled.Load() {
			err = errStalled
		}
		s.write(buffer[:n])
	}
	s.body.Close()
	switch {
	case err == io.EOF:
		s.seat.done(balance.OK)
	case s.closed() || s.p.running.Err() != nil:
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

// write stores b, which fits into an empty memory.
func (s *spool) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(b) > 0 && !s.isClosed {
		if s.file.size == s.read {
			if len(s.memory)+len(b) > cap(s.memory) { // move the stored bytes to the front
				s.memory, s.from = s.memory[:copy(s.memory, s.memory[s.from:])], 0
			}
			if len(s.memory)+len(b) <= cap(s.memory) {
				s.memory = append(s.memory, b...)
				s.changed.Broadcast()
				return
			}
		}
		if !s.noFile && s.file.size+int64(len(b)) <= s.p.Bodies.MaxResponse && s.writeFile(b) {
			return
		}
		s.changed.Wait()
	}
}

// writeFile stores b in the file. After an error, the file is not written any more. The caller holds mu.
func (s *spool) writeFile(b []byte) bool {
	if err := s.file.append(b); err != nil {
		s.noFile = true
		if err != errFull {
			s.p.logDiskError("application responses not stored: cannot write to disk", err)
		}
		return false
	}
	s.spooled += int64(len(b))
	s.changed.Broadcast()
	return true
}

// Read returns stored bytes, or waits for some.
func (s *spool) Read(b []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.from < len(s.memory):
			n = copy(b, s.memory[s.from:])
			if s.from += n; s.from == len(s.memory) {
				s.memory, s.from = s.memory[:0], 0
			}
			s.changed.Broadcast()
			return n, nil
		case s.read < s.file.size:
			if n, err = s.file.read(b, s.read); err != nil {
				return n, err
			}
			if s.read += int64(n); s.read == s.file.size {
				s.read = 0
				err = s.file.clear()
			}
			s.changed.Broadcast()
			return n, err
		case s.isEnded:
			return 0, s.err
		}
		s.changed.Wait()
	}
}

// abort ends the request at the worker.
func (s *spool) abort() {
	s.mu.Lock()
	s.isClosed = true
	s.changed.Broadcast()
	s.mu.Unlock()
	s.cancel()
}

// Close ends the request at the worker, if it runs, and releases memory and disk space.
func (s *spool) Close() error {
	s.stop()
	select {
	case <-s.done:
	default:
		s.abort()
		<-s.done
	}
	s.file.close()
	if cap(s.memory) == spoolMemory {
		s.p.memory.release(spoolMemory)
	}
	s.memory = nil
	return nil
}
