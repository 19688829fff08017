package loadgen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

func (s *Sender) run(ctx context.Context, out *Sent) error {
	if s.Target.TLS != nil {
		return s.goroutines(ctx, out)
	}
	addr, err := s.resolve(ctx)
	if err != nil {
		return err
	}
	loop := &sendLoop{Sender: s, ctx: ctx, addr: socketAddress(addr), out: out}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread keeps its other priority
		if s.Urgent {
			out.Urgent = Urgent()
		}
		err = loop.run()
	}()
	<-done
	return err
}

// socketAddress returns addr in the form of system calls.
func socketAddress(addr net.Addr) unix.Sockaddr {
	switch a := addr.(type) {
	case *net.UnixAddr:
		return &unix.SockaddrUnix{Name: a.Name}
	case *net.TCPAddr:
		if ip := a.IP.To4(); ip != nil {
			return &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(ip)}
		}
		return &unix.SockaddrInet6{Port: a.Port, Addr: [16]byte(a.IP.To16())}
	}
	panic(fmt.Sprintf("an address of type %T", addr))
}

// sendLoop is one run. One thread uses it.
type sendLoop struct {
	*Sender
	ctx   context.Context
	addr  unix.Sockaddr
	out   *Sent
	start time.Time
	begun int     // requests so far
	next  Arrival // in an open loop: the next request to send

	active []*sendConn // waiting for a connection or a response
	poll   []unix.PollFd
	idle   []*sendConn // kept connections, the last used one at the end
	spare  []*sendConn // closed connections, kept for their buffers
	looked time.Time   // time of the last search for responses that are overdue
	rests  []time.Time // ends of the pauses after failures, the earliest first
	ts     unix.Timespec
}

// sendConn is one connection with its request.
type sendConn struct {
	Exchange
	fd      int
	request int
	due     time.Duration
	sent    time.Time
	used    bool   // it was idle, so the server may have closed it
	left    []byte // unwritten bytes of the request
}

func (l *sendLoop) run() error {
	defer l.close()
	if l.Connect {
		for range l.Conns {
			c := &sendConn{fd: -1}
			l.idle = append(l.idle, c)
			if err := c.connect(l.addr, 0); err != nil {
				return err
			}
			c.used = true
		}
	}
	l.start = time.Now()
	if l.Open {
		l.next = l.Arrivals.Next()
	}
	for l.ctx.Err() == nil {
		wait, more := l.begin()
		if !more && len(l.active) == 0 {
			break
		}
		l.ts = unix.NsecToTimespec(int64(max(min(wait, 100*time.Millisecond), 0)))
		n, err := unix.Ppoll(l.poll, &l.ts, nil)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("ppoll: %w", err)
		}
		for i := len(l.poll) - 1; i >= 0 && n > 0; i-- { // from the end: a finished connection is replaced by the last one
			if l.poll[i].Revents != 0 {
				n--
				l.ready(i)
			}
		}
		if now := time.Now(); now.Sub(l.looked) > min(time.Second, l.Timeout) {
			l.looked = now
			l.expire(now)
		}
	}
	l.out.Elapsed = time.Since(l.start)
	return l.ctx.Err()
}

// begin sends the requests that are due. It returns the time until the next one, and whether the run has more requests.
func (l *sendLoop) begin() (wait time.Duration, more bool) {
	for {
		now := time.Now()
		at := now.Sub(l.start)
		if l.Open {
			at = l.next.Due
		}
		if !l.more(l.begun, at) {
			return time.Hour, false
		}
		if wait = l.start.Add(max(at, 0)).Sub(now); wait > 0 {
			return wait, true
		}
		for len(l.rests) > 0 && !l.rests[0].After(now) {
			l.rests = l.rests[1:]
		}
		if len(l.active)+len(l.rests) >= l.Conns {
			if len(l.rests) > 0 {
				return l.rests[0].Sub(now), true
			}
			return time.Hour, true // a response will wake the loop
		}
		l.begun++
		if l.Open {
			l.out.Dues = append(l.out.Dues, at)
			l.out.Late = append(l.out.Late, now.Sub(l.start.Add(at)))
			l.send(l.connection(), l.next.Request, at)
			l.next = l.Arrivals.Next()
		} else {
			l.send(l.connection(), l.Arrivals.Pick(), now.Sub(l.start))
		}
	}
}

// connection returns a kept connection, or one that is not open.
func (l *sendLoop) connection() *sendConn {
	from := &l.idle
	if len(*from) == 0 {
		from = &l.spare
	}
	n := len(*from)
	if n == 0 {
		return &sendConn{fd: -1}
	}
	c := (*from)[n-1]
	*from = (*from)[:n-1]
	return c
}

// send starts a request.
func (l *sendLoop) send(c *sendConn, request int, due time.Duration) {
	c.Exchange.begin()
	c.request, c.due, c.left, c.sent = request, due, l.Requests[request], time.Now()
	var err error
	if c.fd < 0 {
		err = c.connect(l.addr, unix.SOCK_NONBLOCK)
	}
	l.active = append(l.active, c)
	l.poll = append(l.poll, unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN})
	if i := len(l.active) - 1; err != nil {
		l.fail(i, err)
	} else {
		l.write(i)
	}
}

// connect opens a socket that the Go runtime's poller does not watch, because the poller would wake for every response.
// With mode 0 it waits until the socket is connected.
func (c *sendConn) connect(to unix.Sockaddr, mode int) error {
	family := unix.AF_INET
	switch to.(type) {
	case *unix.SockaddrInet6:
		family = unix.AF_INET6
	case *unix.SockaddrUnix:
		family = unix.AF_UNIX
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|mode|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket: %w", err)
	}
	c.fd, c.used = fd, false
	if family != unix.AF_UNIX {
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) //nolint:errcheck // requests are one write
	}
	if err := unix.Connect(fd, to); err != nil && err != unix.EINPROGRESS {
		return fmt.Errorf("connecting: %w", err)
	}
	return unix.SetNonblock(fd, true)
}

// write sends the remaining bytes of the request, as many as the socket accepts. On loopback a new connection accepts
// them at once.
func (l *sendLoop) write(i int) {
	c := l.active[i]
	l.poll[i].Fd = int32(c.fd)
	for len(c.left) > 0 {
		n, err := unix.Write(c.fd, c.left)
		switch {
		case err == unix.EAGAIN:
			l.poll[i].Events = unix.POLLIN | unix.POLLOUT
			return
		case err == unix.EINTR:
		case err != nil && l.again(i):
			return
		case err != nil:
			l.fail(i, fmt.Errorf("sending the request: %w", err))
			return
		default:
			c.left = c.left[n:]
		}
	}
	l.poll[i].Events = unix.POLLIN
}

// again repeats a request after the server has closed a kept connection without a response (RFC 9110, section 9.2.2).
func (l *sendLoop) again(i int) bool {
	c := l.active[i]
	if !c.used || c.n > 0 {
		return false
	}
	c.drop()
	c.left = l.Requests[c.request]
	if err := c.connect(l.addr, unix.SOCK_NONBLOCK); err != nil {
		l.fail(i, err)
	} else {
		l.write(i)
	}
	return true
}

// ready handles an event of a connection.
func (l *sendLoop) ready(i int) {
	c := l.active[i]
	if len(c.left) > 0 {
		if l.write(i); i >= len(l.active) || l.active[i] != c || len(c.left) > 0 {
			return
		}
	}
	n, err := unix.Read(c.fd, c.space())
	done := false
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return
	case err != nil || n == 0 && c.n == 0:
		if l.again(i) {
			return
		}
		if err == nil {
			err = errors.New("the server closed the connection without an answer")
		}
	case n == 0:
		done, err = true, c.ended()
		c.Head.Close = true
	default:
		done, err = c.took(n)
	}
	switch {
	case err != nil:
		l.fail(i, err)
	case done:
		l.answered(i)
	}
}

// answered ends a request with a complete response.
func (l *sendLoop) answered(i int) {
	c := l.active[i]
	took := time.Since(l.start) - c.due
	if err := l.Check(&c.Exchange); err != nil {
		l.fail(i, err)
		return
	}
	l.out.Answers = append(l.out.Answers, Answer{c.request, c.due, took})
	l.out.Bytes += int64(c.n)
	l.remove(i)
	l.keep(c)
}

// keep stores a connection for later requests, or closes it.
func (l *sendLoop) keep(c *sendConn) {
	if !l.Keep || c.Head.Close {
		c.drop()
		l.spare = append(l.spare, c)
		return
	}
	c.used = true
	l.idle = append(l.idle, c)
}

// fail ends a failed request. Its connection is kept if the response was complete.
func (l *sendLoop) fail(i int, err error) {
	c := l.active[i]
	l.out.Failures.Add(err)
	l.out.Failed[c.request]++
	l.remove(i)
	if l.Pause > 0 {
		l.rests = append(l.rests, time.Now().Add(l.Pause))
	}
	if _, whole := errors.AsType[*HTTPError](err); !whole {
		c.Head.Close = true
	}
	l.keep(c)
}

func (l *sendLoop) remove(i int) {
	last := len(l.active) - 1
	l.active[i], l.poll[i] = l.active[last], l.poll[last]
	l.active[last] = nil
	l.active, l.poll = l.active[:last], l.poll[:last]
}

// expire fails the requests that are overdue.
func (l *sendLoop) expire(now time.Time) {
	for i := len(l.active) - 1; i >= 0; i-- {
		if now.Sub(l.active[i].sent) > l.Timeout {
			l.fail(i, fmt.Errorf("no answer within %v", l.Timeout))
		}
	}
}

func (c *sendConn) drop() {
	if c.fd >= 0 {
		unix.Close(c.fd)
		c.fd = -1
	}
}

func (l *sendLoop) close() {
	for _, c := range append(l.idle, l.active...) {
		c.drop()
	}
}
