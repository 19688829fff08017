package router

import (
	"context"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	// hintedNodes is the number of nodes, the first in a repository's order, that are kept close to its newest record.
	hintedNodes = 2
	// maxHints is the maximum number of repositories with a pending hint to one node. Further hints are dropped.
	maxHints = 1000
	// hintTimeout is the timeout of one hint.
	hintTimeout = 2 * time.Second
)

// hints are the pending hints to a node. They are sent one after the other by a goroutine that uses the node.
type hints struct {
	mu        sync.Mutex
	pending   map[git.RepoPath]uint64 // the newest record of each repository
	isSending bool
}

// Hint announces to the first nodes in a repository's order that another one, from, has written a record of it. They
// can fetch it before a client asks. Hint does not block, and hints may be lost.
func (r *Router) Hint(from *Assignment, repo git.RepoPath, record uint64) {
	found := r.routing.Load().find(repo)
	if found == nil {
		return
	}
	_, store := found.sharing()
	if store == "" {
		return
	}
	hinted := 0
	for _, m := range found.in(store).order(repo).members {
		if hinted == hintedNodes {
			return
		}
		hinted++
		if m.Name != from.Name && m.Hint != nil && m.isReady() {
			r.hint(m, repo, record)
		}
	}
}

func (r *Router) hint(m *member, repo git.RepoPath, record uint64) {
	h := m.hints
	h.mu.Lock()
	defer h.mu.Unlock()
	known, isPending := h.pending[repo]
	if !isPending && len(h.pending) >= maxHints {
		return
	}
	h.pending[repo] = max(known, record)
	if !h.isSending && m.acquire() {
		h.isSending = true
		go r.sendHints(m)
	}
}

// sendHints sends pending hints until there are none, or until one fails: then the node is probably away.
func (r *Router) sendHints(m *member) {
	defer m.release()
	for {
		repo, record, ok := m.hints.next()
		if !ok {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), hintTimeout)
		isHeld, err := m.Hint(ctx, repo, record)
		cancel()
		if err != nil {
			m.hints.drop()
			continue
		}
		r.holdings.note(holding{m.Name, trimPrefix(repo.String())}, isHeld)
	}
}

// next takes a pending hint. Without one, the sender ends.
func (h *hints) next() (repo git.RepoPath, record uint64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for repo, record = range h.pending {
		delete(h.pending, repo)
		return repo, record, true
	}
	h.isSending = false
	return repo, 0, false
}

// drop drops all pending hints.
func (h *hints) drop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.pending)
}
