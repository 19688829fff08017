package store

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// knownTable has the repositories in memory: those in use, and a limited number of idle ones.
type knownTable struct {
	mu    sync.Mutex
	byID  map[string]*repository
	idle  *simplelru.LRU[string, struct{}] // without users, the least recently used first
	limit int                              // of idle
}

func newKnownTable(limit int) knownTable {
	idle, err := simplelru.NewLRU[string, struct{}](limit+1, nil)
	if err != nil {
		panic(err) // a bug: the size is positive
	}
	return knownTable{byID: make(map[string]*repository), idle: idle, limit: limit}
}

// acquire returns the repository with an ID, which need not exist. The caller has to release it.
func (s *Store) acquire(id string) *repository {
	t := &s.known
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byID[id]
	if r == nil {
		r = newRepository(s, id)
		t.byID[id] = r
	} else if r.users == 0 {
		t.idle.Remove(id)
	}
	r.users++
	return r
}

// release ends the use of a repository.
func (s *Store) release(r *repository) {
	t := &s.known
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.users--; r.users > 0 {
		return
	}
	t.idle.Add(r.id, struct{}{})
	for t.idle.Len() > t.limit {
		oldest, _, _ := t.idle.RemoveOldest()
		t.byID[oldest].local.Unload()
		delete(t.byID, oldest)
	}
}
