package control

import (
	"log/slog"
	"net"
	"sync"
	"time"
)

// The log has a line for each address once in complainEvery, and for maxComplaints addresses.
const (
	complainEvery = time.Minute
	maxComplaints = 1000
)

// complaints writes refused callers into the log: who calls and calls again does not fill it. Safe for concurrent use.
type complaints struct {
	log *slog.Logger
	now func() time.Time

	mu     sync.Mutex
	said   map[string]time.Time // by address, without the port
	unsaid int                  // since the last line
}

func newComplaints(log *slog.Logger) *complaints {
	return &complaints{log: log, now: time.Now, said: map[string]time.Time{}}
}

// refused tells of a caller.
func (c *complaints) refused(client string, why error) {
	host, _, err := net.SplitHostPort(client)
	if err != nil {
		host = client // a Unix socket's
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if !c.due(host, now) {
		c.unsaid++
		return
	}
	c.said[host] = now
	c.log.Warn("caller refused", "client", client, "reason", why.Error(), "more_since_last", c.unsaid)
	c.unsaid = 0
}

// due reports whether it is time for a line about an address.
func (c *complaints) due(host string, now time.Time) bool {
	if last, ok := c.said[host]; ok {
		return now.Sub(last) >= complainEvery
	}
	if len(c.said) >= maxComplaints {
		for h, last := range c.said {
			if now.Sub(last) >= complainEvery {
				delete(c.said, h)
			}
		}
	}
	return len(c.said) < maxComplaints
}
