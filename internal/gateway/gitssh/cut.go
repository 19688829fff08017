package gitssh

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// cutReason is why the server ends a session before its command ends; a metric label.
type cutReason string

const (
	cutNoCommand   cutReason = "no_command"
	cutIdle        cutReason = "idle"
	cutReadStall   cutReason = "read_stall"
	cutWriteStall  cutReason = "write_stall"
	cutInterrupted cutReason = "interrupted"
	cutShutdown    cutReason = "shutdown"
)

// text returns the message for the client's user.
func (w cutReason) text(o *Options) string {
	switch w {
	case cutNoCommand:
		return fmt.Sprintf("no command was received for %v", o.Idle)
	case cutIdle:
		return fmt.Sprintf("nothing was received for %v", o.SessionIdle)
	case cutReadStall:
		return "the rest of the request was not received in time"
	case cutWriteStall:
		return fmt.Sprintf("the client did not read the answer for %v", o.WriteStall)
	case cutInterrupted:
		return "the storage node was lost; try again"
	}
	return "the server is shutting down; try again"
}

const (
	// cutPatience is how long a client may take to close a session that was cut, before its whole connection is closed.
	cutPatience = 5 * time.Second
	// sayPatience is how long cut waits for a client to read the message.
	sayPatience = time.Second
)

// cut ends a session whose client does not continue, and sends its user the reason. Reads and writes end when the
// client has closed the session too. cut returns after sayPatience at the latest.
func (s *session) cut(why cutReason) {
	if s.isCut.Swap(true) {
		return
	}
	time.AfterFunc(cutPatience, func() {
		if !s.ended.Load() {
			s.wire.Close()
		}
	})
	s.metrics.cut.WithLabelValues(string(why)).Inc()
	s.Log.Info("SSH session cut", slog.String("client", s.wire.RemoteAddr().String()),
		slog.String("user", s.user.id.Name),
		slog.String("reason", string(why)))
	told := make(chan struct{})
	go func() { // ends with the session at the latest
		defer close(told)
		s.say("packhorse: session closed: " + why.text(&s.Options))
	}()
	select {
	case <-told:
	case <-time.After(sayPatience): // its window has no room
	}
	s.exitStatus(1)
	s.channel.Close()
}

// cutAll cuts all sessions of a connection.
func (c *client) cutAll(why cutReason) {
	c.mu.Lock()
	var all sync.WaitGroup
	for s := range c.sessions {
		if s.channel != nil {
			all.Go(func() { s.cut(why) })
		}
	}
	c.mu.Unlock()
	all.Wait()
}
