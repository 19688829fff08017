package gitssh

import (
	"maps"
	"slices"

	"golang.org/x/crypto/ssh"
)

// A connection has places for so many sessions. What the client has closed takes none, however far this side is with
// it: a client hears of a session's end before anybody else can note it, and may begin the next one at once.

// open takes a session, or refuses what is none. Calls come one after the other, each after all that the client sent
// before.
func (c *client) open(one ssh.NewChannel) {
	if one.ChannelType() != "session" {
		_ = one.Reject(ssh.Prohibited, "nothing is forwarded here")
		return
	}
	if !c.room() {
		_ = one.Reject(ssh.ResourceShortage, "too many sessions on one connection")
		return
	}
	s := newSession(c)
	c.mu.Lock()
	c.sessions[s], c.used = struct{}{}, true
	c.wire.sessions.Add(1)
	c.idle.Stop()
	c.mu.Unlock()
	channel, requests, err := one.Accept()
	if err != nil {
		c.leave(s)
		return
	}
	c.mu.Lock()
	s.channel = channel
	c.mu.Unlock()
	c.Watch.running.Inc()
	c.running.Go(func() {
		defer c.leave(s)
		defer c.Watch.running.Dec()
		s.run(requests)
	})
}

// room tells whether there is a place for another session. It waits for one that the client has closed to be over: its
// command may still run.
func (c *client) room() bool {
	for {
		c.mu.Lock()
		sessions := slices.Collect(maps.Keys(c.sessions))
		c.mu.Unlock()
		if len(sessions) < c.Sessions {
			return true
		}
		if !slices.ContainsFunc(sessions, (*session).isClosed) {
			return false
		}
		<-c.left
	}
}

// leave ends a session.
func (c *client) leave(s *session) {
	c.wire.sessions.Add(-1)
	c.wire.backlog.ended()
	c.mu.Lock()
	delete(c.sessions, s)
	select {
	case c.left <- struct{}{}:
	default:
	}
	last := len(c.sessions) == 0
	if last {
		c.idle.Reset(c.Idle)
	}
	c.mu.Unlock()
	if last && c.isEnding() { // asked after the session has left: a Shutdown that comes now sees an idle connection
		c.endIfIdle()
	}
}

// commandRuns counts the commands that run: a connection with one is not closed for another.
func (c *client) commandRuns(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.commands += n; {
	case c.commands == 0:
		c.counted.Idle()
	case n > 0:
		c.counted.Running()
	}
}

// wasUsed reports whether the connection has had a session.
func (c *client) wasUsed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// endIfIdle ends a connection that nobody uses.
func (c *client) endIfIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sessions) == 0 {
		c.wire.Close()
	}
}

// isClosed tells whether the client has closed the session. The library notes that in the order in which messages came,
// by closing the session's requests; only who receives them can see it.
func (s *session) isClosed() bool {
	open := make(chan struct{}, 1)
	select {
	case s.asked <- open:
	case <-s.closed:
		return true
	}
	select {
	case <-open:
		return false
	case <-s.closed:
		return true
	}
}

// next waits for the client's next request about the session; nil once the client has closed it.
func (s *session) next(requests <-chan *ssh.Request) *ssh.Request {
	for {
		if s.asker == nil {
			select {
			case r := <-requests:
				return r
			case s.asker = <-s.asked:
			}
		}
		select {
		case r := <-requests:
			return r
		default:
			s.asker <- struct{}{}
			s.asker = nil
		}
	}
}
