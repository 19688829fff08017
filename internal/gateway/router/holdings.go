package router

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/git"
)

// maxHoldings is the maximum number of holdings in memory, about 200 bytes each. The least recently used one is
// forgotten first.
const maxHoldings = 100_000

// holding is a repository that a node has on its disk, so that it answers fetches without the object store.
type holding struct{ node, repo string }

// holdings are what nodes have reported in their responses. A missing one costs time and nothing else. Safe for
// concurrent use.
type holdings struct {
	mu    sync.Mutex
	known *simplelru.LRU[holding, struct{}]
	count map[string]int // by node
}

func newHoldings(size int) *holdings {
	h := &holdings{count: map[string]int{}}
	h.known, _ = simplelru.NewLRU(size, func(k holding, _ struct{}) { h.count[k.node]-- }) // fails only without a size
	return h
}

// NoteHolding notes whether a node has a repository on its disk, as it reported in a response.
func (r *Router) NoteHolding(a *Assignment, repo git.RepoPath, isHeld bool) {
	r.holdings.note(holding{a.Name, trimPrefix(repo.String())}, isHeld)
}

func (h *holdings) note(k holding, isHeld bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch isKnown := h.known.Contains(k); {
	case !isHeld:
		h.known.Remove(k)
	case isKnown:
		h.known.Get(k)
	default:
		h.count[k.node]++
		h.known.Add(k, struct{}{})
	}
}

// among returns the part of a route whose nodes are ready and have a repository, or nil.
func (h *holdings) among(all *route, repo git.RepoPath) *route {
	path := trimPrefix(repo.String())
	h.mu.Lock()
	defer h.mu.Unlock()
	var found *route
	for i, m := range all.members {
		if _, isHeld := h.known.Get(holding{m.Name, path}); !isHeld || !m.isReady() {
			continue
		}
		if found == nil {
			found = &route{}
		}
		found.members, found.workers = append(found.members, m), append(found.workers, all.workers[i])
	}
	return found
}

// of returns how many holdings of a node are known.
func (h *holdings) of(node string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count[node]
}

// forget forgets the holdings of a node that is gone.
func (h *holdings) forget(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.known.Keys() {
		if k.node == node {
			h.known.Remove(k)
		}
	}
	delete(h.count, node)
}
