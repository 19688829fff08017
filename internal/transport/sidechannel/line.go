package sidechannel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// Reasons why a channel is closed: metric labels, and messages for its users.
type reason string

const (
	closeIdle       reason = "idle"
	closeSurplus    reason = "surplus"
	closePeer       reason = "peer"
	closeUnexpected reason = "unexpected"
	closeProtocol   reason = "protocol"
	closeStall      reason = "stall"
	closeBroken     reason = "broken"
	closeFailed     reason = "failed"
	closeUnfinished reason = "unfinished"
	closeCancelled  reason = "cancelled"
	closeShutdown   reason = "shutdown"
)

// owner keeps the lines: a Server or a Pool. Its methods are called with the line's lock held. It does not call methods
// of a line while it holds its own lock.
type owner interface {
	settled(l *line) (keep bool) // a transfer has ended well
	gone(l *line)                // the line is closed
}

// line is one connection between a gateway and a node, for many transfers.
//
// A goroutine (watch) reads the first header of each transfer. It waits for it also between transfers, so that it
// notices at once when the peer disconnects. The Receiver of the transfer reads everything after the first header,
// while watch waits for the end of the transfer.
type line struct {
	socket
	limits *limits
	owner  owner
	name   string
	caller string // authenticated by the node; "" at the gateway
	opener bool   // the gateway's end
	files  bool   // the node passes files to the gateway

	head []byte // bytes received with the handshake; for the reader
	buf  [headerSize]byte
	file *os.File // received with the last header; for the reader

	hindered func(error) // called if files do not arrive at the gateway; nil at the node

	resume chan struct{} // has a token when a transfer has ended, so that watch continues
	done   chan struct{} // closed when the line is closed

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced at each change that a waiter may need
	next     uint64        // number of the running or the next transfer
	opening  bool          // the peer may not know of it yet
	running  *Channel      // nil: idle
	first    *header       // the peer's first header of transfer next
	closed   bool
	cause    error // why it was closed
	timer    *time.Timer
	deadline time.Time // of timer; zero: none
}

func newLine(s socket, limits *limits, owner owner, name string) *line {
	l := &line{
		socket: s, limits: limits, owner: owner, name: name, next: 1,
		resume: make(chan struct{}, 1), done: make(chan struct{}), changed: make(chan struct{}),
	}
	l.deadline = time.Now().Add(limits.idle)
	l.timer = time.AfterFunc(limits.idle, l.expire)
	limits.metrics.idle.Inc()
	return l
}

// watch reads the first header of each transfer until the line is closed.
func (l *line) watch() {
	for {
		h, err := l.readHeader()
		l.dropFile() // a first header has no file
		if err == nil && h.kind == taken && !l.opener {
			if !l.fileProgress(h) {
				return
			}
			continue
		}
		if !l.arrived(h, err) {
			return
		}
		select {
		case <-l.resume:
		case <-l.done:
			return
		}
	}
}

// readHeader reads exactly one header. It waits for the first byte without a limit; the other bytes are due then.
func (l *line) readHeader() (h header, err error) {
	n := copy(l.buf[:], l.head)
	l.head = l.head[n:]
	if n == 0 {
		if l.files && l.opener {
			n, l.file, err = l.kernel.Take(l.buf[:])
		} else {
			n, err = l.Conn.Read(l.buf[:])
		}
		if n == 0 && err != nil {
			return header{}, l.fileLost(err)
		}
	}
	defer func() {
		if err != nil {
			l.dropFile()
			err = l.fileLost(err)
		}
	}()
	if n < headerSize {
		l.limitRead(l.limits.stall)
		if _, err := io.ReadFull(l.Conn, l.buf[n:]); err != nil {
			return header{}, unexpected(err)
		}
		l.limitRead(0)
	}
	if h, err = parseHeader(&l.buf); err == nil && h.kind == file && l.file == nil {
		return header{}, bulk.ErrFileLost
	} else if err == nil && h.kind != file && l.file != nil {
		return header{}, errHeader
	}
	return h, err
}

// fileLost reports an error about a file to the pool, and returns it.
func (l *line) fileLost(err error) error {
	if errors.Is(err, bulk.ErrFileLost) && l.hindered != nil {
		l.hindered(err)
	}
	return err
}

// dropFile closes the file that came with the last header.
func (l *line) dropFile() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

// limitRead sets the time limit for the due bytes of the peer; 0: no limit.
func (l *line) limitRead(d time.Duration) {
	var t time.Time
	if d > 0 {
		t = time.Now().Add(d)
	}
	_ = l.SetReadDeadline(t)
}

// readFull fills p with bytes that are due.
func (l *line) readFull(p []byte) error {
	n := copy(p, l.head)
	l.head = l.head[n:]
	if n == len(p) {
		return nil
	}
	l.limitRead(l.limits.stall)
	defer l.limitRead(0)
	_, err := io.ReadFull(l.Conn, p[n:])
	return unexpected(err)
}

// arrived processes the first header of a transfer. It reports whether the line is still open.
func (l *line) arrived(h header, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.running
	switch {
	case l.closed:
	case errors.Is(err, errHeader):
		l.close(closeProtocol, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		l.close(closeStall, err)
	case err != nil && c == nil:
		l.close(closePeer, err)
	case err != nil:
		l.close(closeBroken, err)
	case c == nil && (l.opener || h.kind == end):
		l.close(closeUnexpected, errors.New("unexpected bytes"))
	case h.transfer != l.next:
		l.close(closeProtocol, fmt.Errorf("a header of transfer %d in transfer %d", h.transfer, l.next))
	case h.kind != start && h.kind != end:
		l.close(closeProtocol, fmt.Errorf("%c without a START", h.kind))
	case c != nil && c.handed > 0:
		l.close(closeProtocol, fmt.Errorf("%c where TAKEN is due", h.kind))
	case h.kind == end && h.length != 0:
		l.close(closeProtocol, errors.New("END with a length, and no START"))
	default:
		l.first = &h
		if c != nil {
			c.firstArrived()
		}
		l.notify()
	}
	return !l.closed
}

// notify wakes the goroutines that wait for a change. The caller holds l.mu.
func (l *line) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// acquire begins the next transfer on an idle line. The caller holds l.mu.
func (l *line) acquire() *Channel {
	c := &Channel{line: l, transfer: l.next}
	c.sender.c, c.receiver.c = c, c
	l.running = c
	l.deadline = time.Time{}
	l.timer.Stop()
	l.limits.metrics.idle.Dec()
	l.limits.metrics.busy.Inc()
	if l.first != nil {
		c.firstArrived()
	}
	l.notify()
	return c
}

// settle ends the running transfer after its success. The caller holds l.mu.
func (l *line) settle() {
	l.limits.metrics.transfers.WithLabelValues("ok").Inc()
	l.limits.metrics.busy.Dec()
	l.limits.metrics.idle.Inc()
	l.running, l.first = nil, nil
	l.next++
	l.limit(l.limits.idle)
	l.notify()
	l.resume <- struct{}{}
	if !l.owner.settled(l) {
		l.close(closeSurplus, nil)
	}
}

// limit closes the line after d, unless that is cancelled before. The caller holds l.mu.
func (l *line) limit(d time.Duration) {
	l.deadline = time.Now().Add(d)
	l.timer.Reset(d)
}

// expire closes a line that was idle, or waited for its peer, for too long.
func (l *line) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed || l.deadline.IsZero():
	case time.Now().Before(l.deadline):
		l.timer.Reset(time.Until(l.deadline))
	case l.running != nil:
		l.close(closeStall, errors.New("the peer does not acknowledge the transfer or report its progress"))
	default:
		l.close(closeIdle, nil)
	}
}

// close closes the line. The caller holds l.mu.
func (l *line) close(why reason, cause error) {
	if l.closed {
		return
	}
	l.closed = true
	l.cause = closeError(why, cause)
	m := l.limits.metrics
	m.closed.WithLabelValues(string(why)).Inc()
	if l.running == nil {
		m.idle.Dec()
	} else {
		m.busy.Dec()
		m.transfers.WithLabelValues(string(why)).Inc()
	}
	level := slog.LevelDebug
	if why == closeProtocol || why == closeUnexpected {
		level = slog.LevelWarn
	}
	l.limits.log.Log(context.Background(), level, "side channel closed", "reason", string(why), "transfer", l.next,
		"caller", l.caller, "error", cause)
	l.timer.Stop()
	close(l.done)
	l.notify()
	l.owner.gone(l)
	_ = l.below.Close()
}

// shut closes the line for a caller that does not hold l.mu.
func (l *line) shut(why reason, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.close(why, cause)
}

// closeError returns the error for the users of a closed channel.
func closeError(why reason, cause error) error {
	switch why {
	case closeCancelled:
		return fault.Wrap(fault.Cancelled, "the transfer was cancelled",
			errors.Join(errors.New("side channel closed"), cause))
	case closeProtocol, closeUnexpected:
		return fault.Wrap(fault.Internal, "the side channel was used wrongly", cause)
	}
	return fault.Wrap(fault.Unavailable, "the side channel between gateway and node broke; try again",
		errors.Join(fmt.Errorf("side channel closed: %s", why), cause))
}
