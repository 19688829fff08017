package uploadpack

import (
	"sync"
	"weak"

	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// memoEntries is the maximum number of live snapshots in a memo.
const memoEntries = 256

// memo caches one value for each of the latest ref snapshots. Snapshots are immutable, so the value never goes stale.
// They are held weakly, so that the cache keeps no old snapshot alive. The value of a collected snapshot is dropped
// when the next value is added. Safe for concurrent use.
type memo[T any] struct {
	mu      sync.Mutex
	entries map[weak.Pointer[refs.Snapshot]]T
}

// get returns the value of a snapshot, and computes it if it is not cached. whole reports whether it may be cached.
func (m *memo[T]) get(snapshot *refs.Snapshot, compute func() (value T, whole bool, err error)) (value T, whole bool,
	err error) {
	key := weak.Make(snapshot)
	m.mu.Lock()
	value, ok := m.entries[key]
	m.mu.Unlock()
	if ok {
		return value, true, nil
	}
	value, whole, err = compute()
	if err != nil || !whole {
		return value, whole, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.entries {
		if k.Value() == nil {
			delete(m.entries, k)
		}
	}
	if len(m.entries) >= memoEntries {
		clear(m.entries)
	}
	if m.entries == nil {
		m.entries = make(map[weak.Pointer[refs.Snapshot]]T)
	}
	m.entries[key] = value
	return value, true, nil
}
