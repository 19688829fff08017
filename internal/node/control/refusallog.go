package control

import (
	"log/slog"
	"net"
	"sync"
	"time"
)

// Limits of log lines about refused callers: one for each address in an interval, and a number of addresses.
const (
	refusalInterval     = time.Minute
	maxRefusalAddresses = 1000
)

// refusalLog logs refused callers, at a limited rate. It is safe for concurrent use.
type refusalLog struct {
	log *slog.Logger
	now func() time.Time

	mu      sync.Mutex
	last    map[string]time.Time // by address, without the port
	omitted int                  // since the last line
}

func newRefusalLog(log *slog.Logger) *refusalLog {
	return &refusalLog{log: log, now: time.Now, last: map[string]time.Time{}}
}

// record logs a refused caller.
func (c *refusalLog) record(client string, reason error) {
	host, _, err := net.SplitHostPort(client)
	if err != nil {
		host = client // of a Unix socket
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if !c.due(host, now) {
		c.omitted++
		return
	}
	c.last[host] = now
	c.log.Warn("caller refused", "client", client, "reason", reason.Error(), "more_since_last", c.omitted)
	c.omitted = 0
}

// due reports whether it is time for a line about an address.
func (c *refusalLog) due(host string, now time.Time) bool {
	if last, ok := c.last[host]; ok {
		return now.Sub(last) >= refusalInterval
	}
	if len(c.last) >= maxRefusalAddresses {
		for h, last := range c.last {
			if now.Sub(last) >= refusalInterval {
				delete(c.last, h)
			}
		}
	}
	return len(c.last) < maxRefusalAddresses
}
