package origin

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// sshIdle is the time after which a connection without a session is closed.
const sshIdle = 90 * time.Second

// sshPool has the connections to one host. Each has one session at a time, because servers limit sessions in different
// ways, and maybe others that the server has not ended yet. Safe for concurrent use.
type sshPool struct {
	dial    func(context.Context) (*ssh.Client, error)
	dialing chan struct{} // one caller dials at a time, because servers limit new connections

	mu     sync.Mutex
	conns  map[*ssh.Client]*time.Timer // closes an idle connection; nil: it is in use
	closed bool
}

func newSSHPool(dial func(context.Context) (*ssh.Client, error)) *sshPool {
	return &sshPool{dial: dial, dialing: make(chan struct{}, 1), conns: make(map[*ssh.Client]*time.Timer)}
}

// Close closes all connections.
func (p *sshPool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for c, idle := range p.conns {
		if idle != nil {
			idle.Stop()
		}
		_ = c.Close()
	}
	p.conns = nil
	return nil
}

// take returns a connection for a session, and whether it is new. The caller calls leave.
func (p *sshPool) take(ctx context.Context) (c *ssh.Client, isNew bool, err error) {
	if c = p.reuse(); c != nil {
		return c, false, nil
	}
	select {
	case p.dialing <- struct{}{}:
		defer func() { <-p.dialing }()
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	if c = p.reuse(); c != nil {
		return c, false, nil
	}
	if c, err = p.dial(ctx); err != nil {
		return nil, false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, errors.Join(errClosed, c.Close())
	}
	p.conns[c] = nil
	return c, true, nil
}

// reuse returns an idle connection, or nil.
func (p *sshPool) reuse() *ssh.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c, idle := range p.conns {
		if idle != nil && idle.Stop() {
			p.conns[c] = nil
			return c
		}
	}
	return nil
}

// leave ends a session. A connection that is not good is closed.
func (p *sshPool) leave(c *ssh.Client, isGood bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isGood && !p.closed {
		p.conns[c] = time.AfterFunc(sshIdle, func() { p.leave(c, false) })
		return
	}
	delete(p.conns, c)
	_ = c.Close()
}
