package gitssh

import (
	"maps"
	"slices"

	"golang.org/x/crypto/ssh"
)

// The number of sessions on a connection is limited. A session that the client has closed does not count, even if this
// side has not ended it yet. The client learns of a session's end first, and may open the next one at once.

// open accepts a session, or refuses other channels. Calls come one after the other, each after all earlier messages of
// the client.
func (c *client) open(one ssh.NewChannel) {
	if one.ChannelType() != "session" {
		_ = one.Reject(ssh.Prohibited, "forwarding is not supported")
		return
	}
	if !c.hasRoom() {
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
	c.metrics.running.Inc()
	c.running.Go(func() {
		defer c.leave(s)
		defer c.metrics.running.Dec()
		s.run(requests)
	})
}

// hasRoom reports whether another session may be opened. It waits for the end of sessions that the client has closed:
// their commands may still run.
func (c *client) hasRoom() bool {
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
	if last && c.isEnding() { // checked after leaving: a Shutdown from now on sees an idle connection
		c.endIfIdle()
	}
}

// addCommand counts the running commands: a connection with one is not closed for another connection.
func (c *client) addCommand(n int) {
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

// endIfIdle closes a connection without sessions.
func (c *client) endIfIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sessions) == 0 {
		c.wire.Close()
	}
}

// isClosed reports whether the client has closed the session. The library records that in the order of the messages, by
// closing the channel of the session's requests. Only its receiver, next, can see that.
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

// next waits for the client's next request about the session. It returns nil after the client has closed the session.
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
