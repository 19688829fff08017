// Package bulk moves bulk data into connections by the kernel: parts of files, and bytes from other connections. Copies
// take turns.
//
// A Conn wraps a TCP connection or a Unix socket and implements io.ReaderFrom. A *Section is sent by sendfile(2) at the
// section's own offset, never through user space. (Go's own path moves the file's shared offset, and holds the file's
// lock while a socket is full, so that two connections could not send one open file. It has none for Unix sockets.) A
// *Stream goes from socket to socket by splice(2), through a pipe that it has only while there are bytes in it. Any
// wrapper between the writer and the Conn silently disables that: KernelBytes reports what happened.
//
// All Conns of a process share a Pump: a copy takes a turn for one step, and returns it before it waits for a full
// socket. The limit counts running copies, not transfers. On 2 cores with 30 readers, a small request's p99 is 82 ms
// without a limit, 37 ms with two turns, and 5 ms with one. One turn costs up to half of the throughput. So the pump is
// narrow while there are small requests, pauses for a moment while one is answered, and is wide otherwise:
// docs/decisions/0002 has the widths.
package bulk

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Maximum number of bytes of one turn. Small requests need short turns. Without them, long turns save a third of the
// CPU time, as far as the socket's buffer has room.
const (
	narrowStep = 256 << 10
	wideStep   = 4 << 20
)

// smallWindow is how long after a small request the pump stays narrow.
const smallWindow = 100 * time.Millisecond

// PumpOptions tunes a Pump; zero values choose the defaults.
type PumpOptions struct {
	Width  int // turns at once while no small request is about; 0: four for each CPU
	Narrow int // turns at once while one is; 0: one less than the CPUs, at least 1
}

// Pump hands out turns for bulk copies. Safe for concurrent use.
type Pump struct {
	width, narrow int
	epoch         time.Time
	lastSmall     atomic.Int64 // time of the last small request, in ns since epoch

	mu      sync.Mutex
	running int
	waiting list
	own     list // those of takeOwn that came in a pause: they go first
	pause   pause

	pipes   *pipes
	metrics metrics
	buffers sync.Pool // of *[copyBuffer]byte
}

// copyBuffer is the size of the buffer of a copy through user space.
const copyBuffer = 64 << 10

// NewPump makes a Pump.
func NewPump(o PumpOptions) *Pump {
	if o.Width <= 0 {
		o.Width = 4 * runtime.GOMAXPROCS(0)
	}
	if o.Narrow <= 0 {
		o.Narrow = max(1, runtime.GOMAXPROCS(0)-1)
	}
	p := &Pump{width: o.Width, narrow: min(o.Narrow, o.Width), epoch: time.Now(), pipes: newPipes()}
	p.metrics = newMetrics(p.pipes)
	p.buffers.New = func() any { return new([copyBuffer]byte) }
	runtime.AddCleanup(p, (*pipes).close, p.pipes)
	p.lastSmall.Store(-int64(smallWindow))
	return p
}

// now is the time since the pump's epoch.
func (p *Pump) now() time.Duration { return time.Since(p.epoch) }

// Served says that a small request is being answered, or was. Those that turn out to want a pack do not count: the next
// step of a clone would not be any quicker.
func (p *Pump) Served() { p.lastSmall.Store(int64(p.now())) }

// small reports whether there are small requests.
func (p *Pump) small() bool {
	return int64(p.now())-p.lastSmall.Load() < int64(smallWindow)
}

// Width is how many turns may run now.
func (p *Pump) Width() int {
	if p.small() {
		return p.narrow
	}
	return p.width
}

// step is how many bytes a turn may move now.
func (p *Pump) step() int64 {
	if p.small() {
		return narrowStep
	}
	return wideStep
}

// Running is how many turns are taken now.
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

// take waits for a turn, first come first served. A turn lasts microseconds and is never held while a socket is full,
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

// takeOwn is take for bytes that are in memory. They may be of the very answer for which the pump stands still, and do
// not wait for the end of a pause.
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

// queue waits for a turn. The lock is held, and is not after it.
func (p *Pump) queue(w *waiter) {
	p.hold()
	p.waiting.push(w)
	p.awaitPause()
	p.mu.Unlock()
	<-w.ready
}

// give returns a turn and starts as many waiters as the width now allows.
func (p *Pump) give() {
	p.mu.Lock()
	p.running--
	p.begin()
	p.mu.Unlock()
}

// begin starts those who wait, as far as they may now. The lock is held.
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

// start starts those of a queue, as many as the width allows. The lock is held.
func (p *Pump) start(l *list) {
	for l.head != nil && p.running < p.Width() {
		p.running++
		l.pop().ready <- struct{}{}
	}
}
