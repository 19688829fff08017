package app

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/origin"
)

// checkUpgrade finds the protocol that a client wants to switch to (RFC 9110, section 7.8). HTTP/2 it may ask for, and is not given: the worker
// would be asked for more than one thing on the connection, behind our back.
func (e *exchange) checkUpgrade() *refusal {
	r := e.r
	bad := func(text string) *refusal { return &refusal{http.StatusBadRequest, text} }
	wanted := origin.List(r.Header["Upgrade"])
	if !r.ProtoAtLeast(1, 1) || e.p.MaxUpgrades < 0 || len(wanted) == 1 && strings.EqualFold(wanted[0], "h2c") {
		return nil // it goes no further than here
	}
	protocol := wanted[0]
	name, _, _ := strings.Cut(protocol, "/")
	switch {
	case !hasToken(r.Header["Connection"], "upgrade"):
		return bad("Upgrade, without Connection: Upgrade")
	case len(wanted) > 1 || !validName(strings.Replace(protocol, "/", "", 1)):
		return bad("bad Upgrade: name one protocol")
	case strings.EqualFold(name, "h2c") || strings.EqualFold(name, "h2") || strings.EqualFold(name, "HTTP") || strings.EqualFold(name, "TLS"):
		return bad("this protocol is not switched to")
	case r.Method != http.MethodGet:
		return bad("Upgrade is for GET")
	case r.ContentLength != 0:
		return bad("Upgrade, with a body")
	}
	e.upgrade = protocol
	return nil
}

// switchProtocols lets client and worker talk in another protocol, until one of them ends it. The worker is free for other requests meanwhile.
func (c *call) switchProtocols(a *answer) error {
	e := c.e
	if e.upgrade == "" || !strings.EqualFold(a.upgrade, e.upgrade) || a.chunked || a.length > 0 {
		return bad("it switched to a protocol that nobody asked for")
	}
	worker := c.cn
	if !e.p.outlives.begin(worker) {
		return errClosed
	}
	defer e.p.outlives.end(worker)
	client, buffered, err := http.NewResponseController(e.w).Hijack()
	if err != nil {
		return err
	}
	defer client.Close()
	e.began, e.Status, e.Upgraded = true, a.status, true
	if !e.p.outlives.begin(client) { // a tunnel that waits for a client which reads nothing would not see its worker's end
		return errClosed
	}
	defer e.p.outlives.end(client)
	worker.watch.end()
	c.mu.Lock()
	c.over = true // Proxy.Close and the tunnel itself end it from now on
	c.mu.Unlock()
	c.took = time.Since(c.began)
	conns := c.s.worker.conns
	conns.release(worker)
	defer worker.Close()
	c.s.Done(balance.Cut)

	head := []byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n")
	head = appendField(head, "Upgrade", a.upgrade)
	for _, f := range a.fields {
		head = appendField(head, f.name, f.value)
	}
	head = append(head, "\r\n"...)
	announced := int64(len(head))
	head = append(head, worker.buf[worker.at:worker.end]...)
	early := make([]byte, buffered.Reader.Buffered())
	if _, err := io.ReadFull(buffered.Reader, early); err != nil {
		return err
	}
	t := &tunnel{idle: e.p.UpgradeIdle}
	t.heard.Store(time.Now().UnixNano())
	var both sync.WaitGroup
	both.Go(func() { e.In = t.copy(worker.Conn, client, early) })
	e.Out = max(t.copy(client, worker.Conn, head)-announced, 0)
	both.Wait()
	if err, ok := t.err.Load().(error); ok {
		e.Err = fault.Wrap(fault.KindOf(err), "the connection ended", err)
	}
	return nil
}

const (
	tunnelBuffer = 8 << 10
	halfClosed   = 30 * time.Second // how long one side may be silent after the other has ended
)

// tunnel is two connections whose bytes go to each other.
type tunnel struct {
	idle  time.Duration
	heard atomic.Int64 // when anything came last: ns since 1970
	half  atomic.Bool  // one side has ended
	err   atomic.Value // what it ended with, if not with an end
}

// copy relays one direction, first what was there already, and gives the bytes that went.
func (t *tunnel) copy(to, from net.Conn, first []byte) (sent int64) {
	buf := make([]byte, max(tunnelBuffer, len(first)))
	n := copy(buf, first)
	for {
		if n > 0 {
			t.heard.Store(time.Now().UnixNano())
			if err := to.SetWriteDeadline(time.Now().Add(t.idle)); err != nil {
				return t.cut(to, from, sent, err)
			}
			n, err := to.Write(buf[:n])
			if sent += int64(n); err != nil {
				return t.cut(to, from, sent, err)
			}
		}
		idle := t.idle
		if t.half.Load() {
			idle = min(idle, halfClosed)
		}
		if err := from.SetReadDeadline(time.Unix(0, t.heard.Load()).Add(idle)); err != nil {
			return t.cut(to, from, sent, err)
		}
		var err error
		n, err = from.Read(buf)
		switch {
		case n > 0 || err == nil:
		case err == io.EOF:
			half, ok := to.(interface{ CloseWrite() error })
			if t.half.Swap(true) || !ok || half.CloseWrite() != nil {
				to.Close()
				from.Close()
				return sent
			}
			t.heard.Store(time.Now().UnixNano())
			_ = to.SetReadDeadline(time.Now().Add(min(t.idle, halfClosed)))
			return sent
		case isTimeout(err) && time.Now().UnixNano() < t.heard.Load()+int64(idle): // the other side has spoken
		default:
			return t.cut(to, from, sent, err)
		}
	}
}

func (t *tunnel) cut(to, from net.Conn, sent int64, err error) int64 {
	if !errors.Is(err, net.ErrClosed) { // by the other direction
		t.err.CompareAndSwap(nil, error(fault.Wrap(kindOfTunnel(err), "one side was cut off", err)))
	}
	to.Close()
	from.Close()
	return sent
}

func kindOfTunnel(err error) fault.Kind {
	if isTimeout(err) {
		return fault.Deadline
	}
	return fault.Cancelled
}
