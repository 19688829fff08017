package origin

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	sshSessions = 8                // maximum number in one connection; sshd allows 10
	sshIdle     = 90 * time.Second // after which a connection without sessions is closed
)

// sshPool has the connections to one host. Safe for concurrent use.
type sshPool struct {
	dial    func(context.Context) (*ssh.Client, error)
	dialing chan struct{} // one caller dials at a time, because servers limit new connections
	slots   chan struct{} // one for each session, so that the connections are bounded

	mu     sync.Mutex
	conns  []*sshConn
	limit  int // maximum number of sessions in one connection
	closed bool
}

// sshConn is a connection of a pool. Its fields are guarded by the lock of the pool.
type sshConn struct {
	pool     *sshPool
	client   *ssh.Client
	sessions int
	idle     *time.Timer // closes the connection
}

// newSSHPool returns a pool of at most conns connections.
func newSSHPool(dial func(context.Context) (*ssh.Client, error), conns int) *sshPool {
	return &sshPool{dial: dial, dialing: make(chan struct{}, 1), slots: make(chan struct{}, conns*sshSessions),
		limit: sshSessions}
}

// Close closes all connections.
func (p *sshPool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.conns {
		c.idle.Stop()
		_ = c.client.Close()
	}
	p.conns = nil
	return nil
}

// take returns a connection for a session, and whether it is new. The caller calls leave.
func (p *sshPool) take(ctx context.Context) (c *sshConn, isNew bool, err error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	if c = p.reuse(); c == nil {
		if c, isNew, err = p.connect(ctx); err != nil {
			<-p.slots
		}
	}
	return c, isNew, err
}

// reuse returns a connection with room for another session, or nil.
func (p *sshPool) reuse() *sshConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		if c.sessions < p.limit {
			c.sessions++
			c.idle.Stop()
			return c
		}
	}
	return nil
}

// connect makes a connection, or returns one that another caller has made meanwhile.
func (p *sshPool) connect(ctx context.Context) (c *sshConn, isNew bool, err error) {
	select {
	case p.dialing <- struct{}{}:
		defer func() { <-p.dialing }()
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	if c = p.reuse(); c != nil {
		return c, false, nil
	}
	client, err := p.dial(ctx)
	if err != nil {
		return nil, false, err
	}
	c = &sshConn{pool: p, client: client, sessions: 1}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, errors.Join(errClosed, client.Close())
	}
	c.idle = time.AfterFunc(sshIdle, c.expire)
	c.idle.Stop()
	p.conns = append(p.conns, c)
	return c, true, nil
}

// learnLimit lowers the limit of the pool because the server has refused a session. It returns false if the connection
// had no other session, so that there is another reason.
func (c *sshConn) learnLimit() bool {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if c.sessions < 2 {
		return false
	}
	c.pool.limit = min(c.pool.limit, c.sessions-1)
	return true
}

// leave ends a session. A connection that is not good gets no more sessions, and is closed after its last one.
func (c *sshConn) leave(isGood bool) {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	<-p.slots
	c.sessions--
	if !isGood {
		p.remove(c)
	}
	switch {
	case c.sessions > 0:
	case slices.Contains(p.conns, c):
		c.idle.Reset(sshIdle)
	default:
		_ = c.client.Close()
	}
}

// expire closes the connection if it is still idle.
func (c *sshConn) expire() {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if c.sessions == 0 {
		c.pool.remove(c)
		_ = c.client.Close()
	}
}

// remove removes a connection from the pool. The lock is held.
func (p *sshPool) remove(c *sshConn) {
	p.conns = slices.DeleteFunc(p.conns, func(other *sshConn) bool { return other == c })
}
