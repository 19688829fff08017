package storage

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// openRepo is one open repository, shared by the handles of all paths that lead to it.
type openRepo struct {
	*repo.Repo
	place   places.Place // by which it was opened
	key     string       // of the place
	opening uint64       // number of this opening: later ones have greater numbers
	users   int          // handles; guarded by handleTable.mu

	last     atomic.Pointer[refs.Snapshot] // the latest snapshot that is known to be of this repository
	dangling atomic.Int64                  // when a dangling HEAD was logged, in nanoseconds since 1970; 0: never
}

// handle is an open repository under one of its paths.
type handle struct {
	*openRepo
	found places.Place // by its path
	users int          // guarded by handleTable.mu; the table itself is one of them
	used  uint64       // handleTable.clock at the last use
	pins  int          // watches that keep it open
}

// isFresh reports whether the repository is still at its path, as far as is known.
func (h *handle) isFresh() bool { return h.found.IsFresh(h.Repo) }

// handleTable keeps the repositories in use open.
type handleTable struct {
	limit int // handles that are not pinned

	mu       sync.Mutex
	byPath   map[git.RepoPath]*handle
	pinned   int    // handles that a watch keeps open
	clock    uint64 // increases with every use of a handle
	byKey    map[string]*openRepo
	openings uint64
}

// newHandleTable creates a table. The limit zero means 1,000.
func newHandleTable(limit int) handleTable {
	if limit == 0 {
		limit = 1000
	}
	return handleTable{limit: limit, byPath: make(map[git.RepoPath]*handle), byKey: make(map[string]*openRepo)}
}

// acquire opens a repository, unless it is open. The caller has to release it. A mirror that must not be read is
// refused.
func (n *Node) acquire(ctx context.Context, path git.RepoPath) (*handle, error) {
	h, err := n.acquireAny(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := n.checkMirror(path, h.place.MirrorMarks()); err != nil {
		n.release(h)
		return nil, err
	}
	return h, nil
}

// acquireAny is acquire for uses that show nothing of the repository: also a mirror that must not be read is opened.
func (n *Node) acquireAny(ctx context.Context, path git.RepoPath) (*handle, error) {
	name := n.places.Name(path)
	if h := n.handles.use(name); h != nil {
		if h.isFresh() {
			return h, nil
		}
		n.drop(name, h)
		n.release(h)
	}
	place, err := n.places.Acquire(ctx, name)
	if err != nil {
		return nil, err
	}
	o, err := n.open(ctx, place)
	if err != nil {
		place.Release()
		return nil, err
	}
	h := &handle{openRepo: o, found: place, users: 1}
	n.keep(name, h)
	return h, nil
}

// acquireCurrent is acquire after a check for changes by other nodes, so that the repository exists, and its latest
// known refs are current. If the repository is gone, another one may have its path.
func (n *Node) acquireCurrent(ctx context.Context, path git.RepoPath) (*handle, error) {
	for isLast := false; ; isLast = true {
		h, err := n.acquire(ctx, path)
		if err == nil {
			if err = h.place.Check(ctx); err == nil {
				return h, nil
			}
			isLast = isLast || h.isFresh()
			n.release(h)
		}
		if err != nil && (isLast || h == nil) {
			return nil, err
		}
	}
}

// acquireKnown is acquireCurrent if the repository cannot be checked: it returns a repository that was known before, or
// else err. So fetches of known refs do not need a store.
func (n *Node) acquireKnown(ctx context.Context, path git.RepoPath, err error) (*handle, error) {
	h, acquireErr := n.acquire(ctx, path)
	if acquireErr != nil {
		return nil, err
	}
	if !h.isFresh() {
		n.release(h)
		return nil, err
	}
	return h, nil
}

// use returns the handle of a path, which the caller has to release; nil: there is none.
func (t *handleTable) use(path git.RepoPath) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.byPath[path]
	if h != nil {
		h.users++
		t.clock++
		h.used = t.clock
	}
	return h
}

// open opens the repository of a place, unless it is open. The caller becomes one of its users.
func (n *Node) open(ctx context.Context, place places.Place) (*openRepo, error) {
	t, key := &n.handles, place.Key()
	t.mu.Lock()
	o := t.byKey[key]
	if o != nil {
		o.users++
	}
	t.mu.Unlock()
	if o != nil {
		if place.IsFresh(o.Repo) {
			return o, nil
		}
		n.closeUnused(o)
	}
	r, err := place.Open(ctx, n.options)
	if err != nil {
		return nil, err
	}
	if err := r.Policy().Bundles.Err; err != nil {
		n.log.Warn("a repository's bundles are not offered to clients", "dir", r.Dir, "error", err)
	}
	n.dropPurged(r)
	fresh := &openRepo{Repo: r, place: place, key: key, users: 1}
	t.mu.Lock()
	t.openings++
	fresh.opening = t.openings
	if other := t.byKey[key]; other == nil || other == o {
		t.byKey[key] = fresh
	} // otherwise another request was faster, and only this request uses fresh
	t.mu.Unlock()
	return fresh, nil
}

// closeUnused ends one use of an open repository. The last one closes it.
func (n *Node) closeUnused(o *openRepo) {
	t := &n.handles
	t.mu.Lock()
	o.users--
	last := o.users == 0
	if last && t.byKey[o.key] == o {
		delete(t.byKey, o.key)
	}
	t.mu.Unlock()
	if last {
		_ = o.Close()
		o.place.Release()
	}
}

// keep adds a handle to the table, unless another request was faster. If there are too many, it drops the least
// recently used ones.
func (n *Node) keep(path git.RepoPath, h *handle) {
	t := &n.handles
	t.mu.Lock()
	var dropped []*handle
	if t.byPath[path] == nil {
		t.clock++
		h.used = t.clock
		h.users++
		t.byPath[path] = h
		for len(t.byPath)-t.pinned > t.limit {
			oldest := t.removeOldest()
			if oldest == nil {
				break
			}
			dropped = append(dropped, oldest)
		}
	}
	t.mu.Unlock()
	for _, oldest := range dropped {
		n.release(oldest)
	}
}

// removeOldest removes the least recently used handle that is not in use. It returns nil if there is none. The caller
// holds t.mu.
func (t *handleTable) removeOldest() *handle {
	var path git.RepoPath
	var oldest *handle
	for p, h := range t.byPath {
		if h.users == 1 && (oldest == nil || h.used < oldest.used) {
			path, oldest = p, h
		}
	}
	if oldest != nil {
		t.remove(path, oldest)
	}
	return oldest
}

// remove removes a handle, which the caller has to release. The caller holds t.mu.
func (t *handleTable) remove(path git.RepoPath, h *handle) {
	delete(t.byPath, path)
	if h.pins > 0 {
		t.pinned--
	}
}

// drop removes a handle from the table if it is still there.
func (n *Node) drop(path git.RepoPath, h *handle) {
	t := &n.handles
	t.mu.Lock()
	found := t.byPath[path] == h
	if found {
		t.remove(path, h)
	}
	t.mu.Unlock()
	if found {
		n.release(h)
	}
}

// dropKey removes all handles of a repository. Requests that use one continue, but do not find its files.
func (n *Node) dropKey(key string) {
	t := &n.handles
	t.mu.Lock()
	delete(t.byKey, key)
	var dropped []*handle
	for path, h := range t.byPath {
		if h.key == key {
			t.remove(path, h)
			dropped = append(dropped, h)
		}
	}
	t.mu.Unlock()
	for _, h := range dropped {
		n.release(h)
	}
}

// release ends one use of a handle. The last one closes it.
func (n *Node) release(h *handle) {
	n.handles.mu.Lock()
	h.users--
	last := h.users == 0
	n.handles.mu.Unlock()
	if last {
		if h.found != h.place {
			h.found.Release()
		}
		n.closeUnused(h.openRepo)
	}
}

// Evicted closes the files of a repository's packs, after they were removed from this node.
func (n *Node) Evicted(incarnation string) {
	t := &n.handles
	t.mu.Lock()
	var open []*handle
	for _, h := range t.byPath {
		if h.Incarnation == incarnation {
			h.users++
			open = append(open, h)
		}
	}
	t.mu.Unlock()
	for _, h := range open {
		_ = h.Refresh() // the next request repeats it
		n.release(h)
	}
}

func (n *Node) closeHandles() {
	t := &n.handles
	t.mu.Lock()
	handles := t.byPath
	t.byPath, t.pinned = make(map[git.RepoPath]*handle), 0
	t.mu.Unlock()
	for _, h := range handles {
		n.release(h)
	}
}

// pin adds to the watches that keep a handle open.
func (t *handleTable) pin(path git.RepoPath, h *handle, watches int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := h.pins > 0
	h.pins += watches
	switch isPinned := h.pins > 0; {
	case isPinned == before || t.byPath[path] != h:
	case isPinned:
		t.pinned++
	default:
		t.pinned--
	}
}
