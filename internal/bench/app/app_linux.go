package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// run drives all connections from one thread with ppoll(2), as pings do (ping_linux.go): its timers are exact, and a request costs a few
// system calls. Other than there connections come and go, and only those that wait for an answer are looked at.
func (l *appLoad) run(ctx context.Context) (*appOutcome, error) {
	addr, err := socketAddress(l.target.Addr)
	if err != nil {
		return nil, err
	}
	loop := &appLoop{appLoad: l, ctx: ctx, addr: addr, out: l.outcome()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: a thread with another priority is not given back
		loadgen.Urgent()       // if it may not, it waits for CPU as others do, which is seen in late
		err = loop.run()
	}()
	<-done
	return loop.out, err
}

// socketAddress is where to connect to; resolve has seen to it that no name is left.
func socketAddress(addr string) (unix.Sockaddr, error) {
	a, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}, nil
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}, nil
}

// appLoop is one run; one thread uses it.
type appLoop struct {
	*appLoad
	ctx   context.Context
	addr  unix.Sockaddr
	out   *appOutcome
	start time.Time
	begun int     // requests so far
	next  arrival // in an open loop: the one that is not yet sent

	active []*appConn // wait for an answer, or to be connected
	poll   []unix.PollFd
	idle   []*appConn // kept connections, the one last used at the end
	spare  []*appConn // closed ones, for their buffers
	looked time.Time  // for answers that do not come
	ts     unix.Timespec
}

// appConn is one connection with its request.
type appConn struct {
	loadgen.Exchange
	fd   int
	path int
	sent time.Time
	used bool   // it has answered a request before
	left []byte // of the request: to be written
}

func (l *appLoop) run() error {
	defer l.close()
	l.start = time.Now()
	l.next = l.arrivals.next()
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
		for i := len(l.poll) - 1; i >= 0 && n > 0; i-- { // from the end: one that is done changes places with the last
			if l.poll[i].Revents != 0 {
				n--
				l.ready(i)
			}
		}
		if now := time.Now(); now.Sub(l.looked) > time.Second {
			l.looked = now
			l.expire(now)
		}
	}
	l.out.elapsed = time.Since(l.start)
	return l.ctx.Err()
}

// begin sends what is due. It returns how long until something else is, and whether anything is to come at all.
func (l *appLoop) begin() (wait time.Duration, more bool) {
	for {
		now := time.Now()
		at := now.Sub(l.start)
		if l.open {
			at = l.next.due
		}
		if !l.more(l.begun, at) {
			return time.Hour, false
		}
		if wait = l.start.Add(at).Sub(now); wait > 0 {
			return wait, true
		}
		if len(l.active) >= l.clients {
			return time.Hour, true // an answer will wake it
		}
		l.begun++
		if l.open {
			l.out.due = append(l.out.due, at)
			l.out.late = append(l.out.late, now.Sub(l.start.Add(at)))
			l.send(l.connection(), l.next.path, l.start.Add(at))
			l.next = l.arrivals.next()
		} else {
			l.send(l.connection(), l.arrivals.pick(), now)
		}
	}
}

// connection is a kept one, or one that is not open yet.
func (l *appLoop) connection() *appConn {
	from := &l.idle
	if len(*from) == 0 {
		from = &l.spare
	}
	n := len(*from)
	if n == 0 {
		return &appConn{fd: -1}
	}
	c := (*from)[n-1]
	*from = (*from)[:n-1]
	return c
}

// send begins a request.
func (l *appLoop) send(c *appConn, path int, due time.Time) {
	c.Exchange.Begin(due)
	c.path, c.left, c.sent = path, l.requests[path], time.Now()
	var err error
	if c.fd < 0 {
		err = c.connect(l.addr)
	}
	l.active = append(l.active, c)
	l.poll = append(l.poll, unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN})
	if i := len(l.active) - 1; err != nil {
		l.fail(i, err)
	} else {
		l.write(i)
	}
}

// connect opens a socket that the Go runtime's poller does not know: it would wake for every answer.
func (c *appConn) connect(to unix.Sockaddr) error {
	family := unix.AF_INET
	if _, six := to.(*unix.SockaddrInet6); six {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket: %w", err)
	}
	c.fd, c.used = fd, false
	unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) //nolint:errcheck // requests are one write
	if err := unix.Connect(fd, to); err != nil && err != unix.EINPROGRESS {
		return fmt.Errorf("connecting: %w", err)
	}
	return nil
}

// write sends what is left of the request, as far as the socket takes it. On loopback a connection that was just begun takes it at once.
func (l *appLoop) write(i int) {
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

// again repeats a request for which a kept connection was closed before any of its answer came (RFC 9110, section 9.2.2).
func (l *appLoop) again(i int) bool {
	c := l.active[i]
	if !c.used || c.N > 0 {
		return false
	}
	c.drop()
	c.left = l.requests[c.path]
	if err := c.connect(l.addr); err != nil {
		l.fail(i, err)
	} else {
		l.write(i)
	}
	return true
}

// ready goes on with a connection on which something happened.
func (l *appLoop) ready(i int) {
	c := l.active[i]
	if len(c.left) > 0 {
		if l.write(i); i >= len(l.active) || l.active[i] != c || len(c.left) > 0 {
			return
		}
	}
	n, err := unix.Read(c.fd, c.Space())
	done := false
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return
	case err != nil || n == 0 && c.N == 0:
		if l.again(i) {
			return
		}
		if err == nil {
			err = errors.New("the server closed the connection without an answer")
		}
	case n == 0:
		done, err = true, c.Ended()
		c.Head.Close = true
	default:
		done, err = c.Took(n)
	}
	switch {
	case err != nil:
		l.fail(i, err)
	case done:
		l.answered(i)
	}
}

// answered ends a request whose answer is whole.
func (l *appLoop) answered(i int) {
	c := l.active[i]
	now := time.Now()
	if err := l.check(&c.Exchange); err != nil {
		l.fail(i, err)
		return
	}
	l.out.latency[c.path] = append(l.out.latency[c.path], now.Sub(c.Due))
	l.remove(i)
	if !l.keep || c.Head.Close {
		c.drop()
		l.spare = append(l.spare, c)
		return
	}
	c.used = true
	l.idle = append(l.idle, c)
}

// fail ends a request that went wrong, and its connection.
func (l *appLoop) fail(i int, err error) {
	c := l.active[i]
	l.out.failures.Add(err)
	l.out.failed[c.path]++
	l.remove(i)
	c.drop()
	l.spare = append(l.spare, c)
}

func (l *appLoop) remove(i int) {
	last := len(l.active) - 1
	l.active[i], l.poll[i] = l.active[last], l.poll[last]
	l.active[last] = nil
	l.active, l.poll = l.active[:last], l.poll[:last]
}

// expire gives up requests whose answer does not come.
func (l *appLoop) expire(now time.Time) {
	for i := len(l.active) - 1; i >= 0; i-- {
		if now.Sub(l.active[i].sent) > l.timeout {
			l.fail(i, fmt.Errorf("no answer within %v", l.timeout))
		}
	}
}

func (c *appConn) drop() {
	if c.fd >= 0 {
		unix.Close(c.fd)
		c.fd = -1
	}
}

func (l *appLoop) close() {
	for _, c := range append(l.idle, l.active...) {
		c.drop()
	}
}
