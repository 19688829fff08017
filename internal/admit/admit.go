// Package admit decides which requests may run now: by lanes, so that one kind of work does not queue behind another.
//
// A lane is a bound on how many requests of one kind are served at the same time. A request that finds its lane full is refused
// at once, with advice when to come back; cold work, which is worth waiting for, queues for its own slots at the git
// processes. A budget bounds what all requests together hold, where one may be a thousand times as large as another. Later rules of
// fairness among callers belong here.
package admit

import (
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Lane is a kind of work.
type Lane struct {
	name    string
	limit   int64
	running atomic.Int64
	refused atomic.Int64
}

// retryAfter is when a refused caller may come back: such lanes empty quickly.
const retryAfter = time.Second

// NewLane makes a lane that lets limit requests run at the same time.
func NewLane(name string, limit int) *Lane { return &Lane{name: name, limit: int64(limit)} }

// Enter lets a request in or refuses it with an error of kind Exhausted. Whoever was let in calls Leave when done. Safe for
// concurrent use.
func (l *Lane) Enter() error {
	for n := l.running.Load(); n < l.limit; n = l.running.Load() {
		if l.running.CompareAndSwap(n, n+1) { // not Add: one that is refused must not take another's place for a moment
			return nil
		}
	}
	l.refused.Add(1)
	return fault.Retry(fault.Exhausted, retryAfter, "too many %s requests at the same time; try again", l.name)
}

// Leave ends what Enter began.
func (l *Lane) Leave() { l.running.Add(-1) }
