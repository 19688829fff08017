package clients

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	logShare   = 8       // all addresses together have this many times the lines of one
	logSources = 1 << 12 // maximum number of addresses in memory
)

// LogLimit limits how many lines about clients are logged. Safe for concurrent use.
type LogLimit struct {
	burst int
	pause time.Duration
	now   func() time.Time
	all   *rate.Limiter

	mu         sync.Mutex
	sources    map[netip.Prefix]*rate.Limiter
	suppressed int
}

// NewLogLimit makes a LogLimit. About one address burst lines are logged at once, and then one each pause.
func NewLogLimit(burst int, pause time.Duration) *LogLimit {
	return &LogLimit{burst: burst, pause: pause, now: time.Now, sources: map[netip.Prefix]*rate.Limiter{},
		all: rate.NewLimiter(rate.Every(pause/logShare), burst*logShare)}
}

// Take reports whether a line about an address should be logged, and how many were suppressed since the last logged
// one.
func (l *LogLimit) Take(source netip.Prefix) (ok bool, suppressed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sources) >= logSources {
		clear(l.sources) // the limit of all addresses still holds
	}
	own := l.sources[source]
	if own == nil {
		own = rate.NewLimiter(rate.Every(l.pause), l.burst)
		l.sources[source] = own
	}
	now := l.now()
	if own.TokensAt(now) < 1 || !l.all.AllowN(now, 1) {
		l.suppressed++
		return false, 0
	}
	own.AllowN(now, 1)
	suppressed, l.suppressed = l.suppressed, 0
	return true, suppressed
}
