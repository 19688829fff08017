package app

import (
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
)

// outlives are the connections to workers that nothing else keeps account of, for Proxy.Close to end: those that speak another protocol, whatever has become of
// their worker, and those on which a worker still answers a client that has left. Safe for concurrent use.
type outlives struct {
	mu      sync.Mutex
	closed  bool
	conns   map[io.Closer]struct{}
	running sync.WaitGroup
}

// begin takes one in, unless the proxy was closed.
func (o *outlives) begin(cn io.Closer) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	if o.conns == nil {
		o.conns = map[io.Closer]struct{}{}
	}
	o.conns[cn] = struct{}{}
	o.running.Add(1)
	return true
}

func (o *outlives) end(cn io.Closer) {
	o.mu.Lock()
	delete(o.conns, cn)
	o.mu.Unlock()
	o.running.Done()
}

// close closes them all, waits for who uses them, and lets none begin any more.
func (o *outlives) close() {
	o.mu.Lock()
	o.closed = true
	for cn := range o.conns {
		cn.Close()
	}
	o.mu.Unlock()
	o.running.Wait()
}

// leave lets the worker end what a client wanted that has left: most work on when the connection is cut, and another request would come to a busy worker, past
// the queue and its bounds. Until it is through it has its connection and its slot. Workers that look are told by the end of what we send. It does nothing,
// and says so, if the worker has not got all of the request, or its answer has begun: that cannot go unnoticed.
func (c *call) leave() bool {
	c.mu.Lock()
	busy := c.interrupted && !c.answering && c.reached && (c.sender != nil || c.sent == nil)
	c.mu.Unlock()
	if !busy || c.e.ctx.Err() == nil {
		return false
	}
	if c.sender != nil {
		select {
		case <-c.sender:
		default:
			return false
		}
		if c.sent != nil {
			return false
		}
	}
	if !c.e.p.outlives.begin(c.cn) {
		return false
	}
	c.cn.watch.end()
	c.mu.Lock()
	c.over, c.left = true, true
	c.mu.Unlock()
	go c.finish()
	return true
}

// finish waits until the worker is through with a request whose client has left.
func (c *call) finish() {
	defer c.e.p.outlives.end(c.cn)
	how := balance.Failed
	defer func() {
		if cause := recover(); cause != nil {
			_ = c.e.p.panicked(cause)
		}
		c.s.worker.conns.drop(c.cn)
		c.s.Done(how)
	}()
	_ = c.cn.SetDeadline(time.Now().Add(c.e.p.HeaderTime)) // for all of the answer
	if half, ok := c.cn.Conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	how = c.hearOut()
}

// hearOut reads an answer that nobody wants.
func (c *call) hearOut() balance.Outcome {
	for range maxInform {
		head, err := c.cn.readHead()
		if isTimeout(err) {
			return balance.Failed
		} else if err != nil { // it has seen that the client is gone
			return balance.Cut
		}
		a, err := parseAnswer(head, c.e.p.FileHeader, nil)
		switch {
		case err != nil:
			return balance.Failed
		case a.status == http.StatusSwitchingProtocols || a.unbuffered: // it may go on for ever, and meets a closed connection soon
			return balance.Cut
		case a.status < 200:
			continue
		case !a.hasBody(c.e.r.Method):
			return balance.OK
		}
		buffer := c.e.p.buffer()
		defer c.e.p.giveBuffer(buffer)
		for in := a.incoming(c); err == nil; {
			_, err = in.read(buffer[:], true)
		}
		if err == io.EOF {
			return balance.OK
		}
		return balance.Cut // where it has not failed, but takes longer than anybody waits here
	}
	return balance.Failed
}
