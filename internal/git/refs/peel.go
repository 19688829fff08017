package refs

import (
	"sync"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Peeled returns the object that a ref's annotated tag peels to, or zero if the ref is not a tag. If packed-refs does
// not have it, Peeled calls peel with the ID and caches the result for all Snapshots, because it depends only on the
// ID. The function peel returns a zero ID if the object is not a tag. Errors are not cached. Peeled is safe for
// concurrent use if peel is.
func (s *Store) Peeled(ref Ref, peel func(git.ObjectID) (git.ObjectID, error)) (git.ObjectID, error) {
	if ref.PeelKnown {
		return ref.Peeled, nil
	}
	if peeled, ok := s.memo.get(ref.ID); ok {
		return peeled, nil
	}
	peeled, err := peel(ref.ID)
	if err != nil {
		return git.ObjectID{}, err
	}
	s.memo.put(ref.ID, peeled)
	return peeled, nil
}

// memo caches at least the size most recent results, and fewer than twice as many: when young is full it becomes old,
// and the previous old is dropped.
type memo struct {
	mu         sync.Mutex
	size       int
	young, old map[git.ObjectID]git.ObjectID
}

// minMemo is the number of results that are kept for repositories with few loose refs.
const minMemo = 256

// limit sets the size for a number of loose refs, with room for their earlier values.
func (m *memo) limit(loose int) {
	m.mu.Lock()
	m.size = minMemo + loose
	m.mu.Unlock()
}

func (m *memo) get(id git.ObjectID) (git.ObjectID, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if peeled, ok := m.young[id]; ok {
		return peeled, true
	}
	peeled, ok := m.old[id]
	if ok {
		m.add(id, peeled)
	}
	return peeled, ok
}

func (m *memo) put(id, peeled git.ObjectID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.add(id, peeled)
}

func (m *memo) add(id, peeled git.ObjectID) {
	if len(m.young) >= max(m.size, minMemo) {
		m.young, m.old = nil, m.young
	}
	if m.young == nil {
		m.young = make(map[git.ObjectID]git.ObjectID)
	}
	m.young[id] = peeled
}
