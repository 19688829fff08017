// Package bulk moves bulk data into connections by the kernel: parts of files, and bytes from other connections. Copies
// take turns.
//
// A Conn wraps a TCP connection or a Unix socket and implements io.ReaderFrom. A *Section is sent by sendfile(2) at the
// section's own offset, never through user space. (Go's sendfile moves the file's shared offset, and holds the file's
// lock while a socket is full, so that two connections cannot send one open file. It does not support Unix sockets.) A
// *Stream is sent from socket to socket by splice(2), through a pipe that it holds only while the pipe has bytes. A
// wrapper between the writer and the Conn silently disables both. KernelBytes returns the number of bytes that the
// kernel copied.
//
// All Conns of a process share a Pump. A copy takes a turn for one step, and returns it before it waits for a full
// socket. So the limit counts running copies, not transfers. On 2 cores with 30 readers, a small request's p99 is 82 ms
// without a limit, 37 ms with two turns, and 5 ms with one. One turn costs up to half of the throughput. So the pump
// allows few turns while there are small requests, pauses briefly while one is answered, and allows many turns
// otherwise. docs/decisions/0002 has the numbers.
package bulk

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Maximum number of bytes of one turn. Small requests need short turns (narrowStep). Otherwise long turns (wideStep)
// save up to a third of the CPU time, depending on the room in the socket's buffer.
const (
	narrowStep = 256 << 10
	wideStep   = 4 << 20
)

// smallWindow is how long after a small request the pump stays narrow.
const smallWindow = 100 * time.Millisecond

// PumpOptions tunes a Pump. Zero values mean the defaults.
type PumpOptions struct {
	Width  int // concurrent turns without small requests. Default four for each CPU.
	Narrow int // concurrent turns with small requests. Default one less than the CPUs, at least 1.

	Registerer prometheus.Registerer // of metrics; may be nil
}

// Pump hands out turns for bulk copies. Safe for concurrent use.
type Pump struct {
	width, narrow int
	epoch         time.Time
	lastSmall     atomic.Int64 // time of the last small request, in ns since epoch

	mu      sync.Mutex
	running int
	waiting list
	own     list // waiters of takeOwn during a pause; they are started first
	pause   pause

	pipes   *pipes
	metrics *metrics
	buffers sync.Pool // of *[copyBuffer]byte
}

// copyBuffer is the size of the buffer of a copy through user space.
const copyBuffer = 64 << 10

// NewPump returns a Pump.
func NewPump(o PumpOptions) *Pump {
	if o.Width <= 0 {
		o.Width = 4 * runtime.GOMAXPROCS(0)
	}
	if o.Narrow <= 0 {
		o.Narrow = max(1, runtime.GOMAXPROCS(0)-1)
	}
	p := &Pump{width: o.Width, narrow: min(o.Narrow, o.Width), epoch: time.Now(), pipes: newPipes()}
	p.metrics = newMetrics(o.Registerer)
	p.buffers.New = func() any { return new([copyBuffer]byte) }
	runtime.AddCleanup(p, (*pipes).close, p.pipes)
	p.lastSmall.Store(-int64(smallWindow))
	return p
}

// now returns the time since the pump's epoch.
func (p *Pump) now() time.Duration { return time.Since(p.epoch) }

// Served records that a small request is being answered, or was. Do not call it for requests that get a pack, because
// the next step of a clone would not become faster.
func (p *Pump) Served() { p.lastSmall.Store(int64(p.now())) }

// small reports whether there are small requests.
func (p *Pump) small() bool {
	return int64(p.now())-p.lastSmall.Load() < int64(smallWindow)
}

// Width returns the current maximum number of concurrent turns.
func (p *Pump) Width() int {
	if p.small() {
		return p.narrow
	}
	return p.width
}

// step returns the current maximum number of bytes of a turn.
func (p *Pump) step() int64 {
	if p.small() {
		return narrowStep
	}
	return wideStep
}

// Running returns the number of running turns.
func (p *Pump) Running() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running
}

// waiter is one goroutine in the queue. It is pooled in its Conn, so that waiting allocates nothing.
type waiter struct {
	ready chan struct{} // capacity 1
	next  *waiter
}

// list is a FIFO queue of waiters.
type list struct{ head, tail *waiter }

func (l *list) push(w *waiter) {
	w.next = nil
	if l.tail == nil {
		l.head = w
	} else {
		l.tail.next = w
	}
	l.tail = w
}

func (l *list) pop() *waiter {
	w := l.head
	l.head = w.next
	if l.head == nil {
		l.tail = nil
	}
	return w
}

// take waits for a turn, in the order of the calls. A turn lasts microseconds and is never held while a socket is full,
// so the wait needs no cancellation.
func (p *Pump) take(w *waiter) {
	p.mu.Lock()
	if p.running < p.Width() && p.waiting.head == nil && !p.isPaused(p.now()) {
		p.running++
		p.mu.Unlock()
		return
	}
	p.queue(w)
}

// takeOwn waits for a turn for bytes that are in memory. It does not wait for the end of a pause, because the bytes may
// belong to the answer for which the pump pauses.
func (p *Pump) takeOwn(w *waiter) {
	p.mu.Lock()
	still := p.isPaused(p.now())
	if p.running < p.Width() && (still || p.waiting.head == nil) {
		p.running++
		p.mu.Unlock()
		return
	}
	if !still {
		p.queue(w)
		return
	}
	p.own.push(w)
	p.mu.Unlock()
	<-w.ready
}

// queue waits for a turn. The caller holds the lock, and queue releases it.
func (p *Pump) queue(w *waiter) {
	p.waiting.push(w)
	p.awaitPause()
	p.mu.Unlock()
	<-w.ready
}

// give returns a turn and starts as many waiters as the width allows.
func (p *Pump) give() {
	p.mu.Lock()
	p.running--
	p.begin()
	p.mu.Unlock()
}

// begin starts the waiters that may start now. The caller holds the lock.
func (p *Pump) begin() {
	p.start(&p.own)
	if p.waiting.head == nil {
		return
	}
	if p.isPaused(p.now()) {
		p.awaitPause()
		return
	}
	p.start(&p.waiting)
}

// start starts waiters of a queue, as many as the width allows. The caller holds the lock.
func (p *Pump) start(l *list) {
	for l.head != nil && p.running < p.Width() {
		p.running++
		l.pop().ready <- struct{}{}
	}
}
