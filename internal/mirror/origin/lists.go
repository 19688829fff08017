package origin

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

const (
	listMemory = 1 << 30 // bytes, the default of NewListMemory
	listCost   = 5       // bytes of memory for each byte of a list: it is copied while it grows, and parsed
	listStep   = 1 << 20 // bytes of memory that a list takes at once
	freeList   = 64 << 10
	listWait   = 5 * time.Second
)

// ListMemory bounds the memory that the lists of refs of several origins take together. Lists of less than 64 KiB do
// not count. Safe for concurrent use.
type ListMemory struct {
	limit int64
	wait  time.Duration
	used  atomic.Int64

	collecting sync.Mutex // held while garbage is collected
	collected  time.Time  // when it was collected for the last time
}

// NewListMemory returns a bound in bytes. Zero means 1 GiB, and at most a quarter of the memory limit of the process
// (GOMEMLIMIT).
func NewListMemory(limit int64) *ListMemory {
	return &ListMemory{limit: cmp.Or(limit, min(listMemory, debug.SetMemoryLimit(-1)/4)), wait: listWait}
}

// listCharge is the memory of one list, which is given back when neither a listing nor Refs refer to it any more.
type listCharge struct {
	m     *ListMemory
	taken *atomic.Int64
}

func (m *ListMemory) newCharge() *listCharge {
	c := &listCharge{m: m, taken: new(atomic.Int64)}
	runtime.AddCleanup(c, func(taken *atomic.Int64) { m.used.Add(-taken.Load()) }, c.taken)
	return c
}

// grow takes memory for a list of n bytes. Without free memory it waits a while for the end of other lists. A nil
// charge has no bound.
func (c *listCharge) grow(n int) error {
	if c == nil || n <= freeList || int64(n)*listCost <= c.taken.Load() {
		return nil
	}
	more := max(int64(n)*listCost-c.taken.Load(), listStep)
	for end := time.Now().Add(c.m.wait); !c.m.take(more); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return fault.Retry(fault.Unavailable, fault.RetryMuchLater,
				"the lists of refs of all mirrors need more than %d MiB of memory: mirror fewer refs (refs)",
				c.m.limit>>20)
		}
		c.m.collect(more)
	}
	c.taken.Add(more)
	return nil
}

func (m *ListMemory) take(n int64) bool {
	if m.used.Add(n) <= m.limit {
		return true
	}
	m.used.Add(-n)
	return false
}

// collect collects garbage, because only that gives memory back. It does so at most once a second, because each time
// takes the CPU.
func (m *ListMemory) collect(n int64) {
	m.collecting.Lock()
	defer m.collecting.Unlock()
	if m.used.Load()+n > m.limit && time.Since(m.collected) > time.Second {
		runtime.GC()
		m.collected = time.Now()
	}
}
