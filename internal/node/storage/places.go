package storage

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs/locks"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Places finds and changes the repositories of a node whose directories are copies of those in a store. Paths have no
// ".git" at their end. It is safe for concurrent use.
type Places interface {
	// Acquire returns the Place of a repository, which the caller has to release. Its directory has HEAD, config and the
	// directory of objects then, but perhaps no packs. Acquire needs no I/O for a known path: the Place finds out whether
	// the repository still has this path. Its files may be of an earlier state until Layers returns. Errors: NotFound and
	// Unavailable.
	Acquire(ctx context.Context, path git.RepoPath) (Place, error)
	// List returns at most limit paths that begin with prefix and come after a path, in a fixed order.
	List(ctx context.Context, prefix, after string, limit int) ([]git.RepoPath, error)
	// Create creates an empty repository whose HEAD names a branch. Errors: Exists, Unavailable. If it exists and was
	// created with the same requestID, which is not empty, there is no error.
	Create(ctx context.Context, path git.RepoPath, format git.ObjectFormat, head git.RefName, requestID string) error
	// Import creates a repository from a bare repository in a directory, which it may change.
	Import(ctx context.Context, path git.RepoPath, dir string) error
	// Delete deletes a repository. If incarnation is not "", it must be the repository's ID; otherwise NotFound.
	Delete(ctx context.Context, path git.RepoPath, incarnation string) error
	// Rename gives a repository another path. Errors: NotFound, Exists, Unavailable.
	Rename(ctx context.Context, from, to git.RepoPath) error
	// Ready returns why repositories cannot be served: the store cannot be reached. Nil: they can.
	Ready() error
}

// Place is one repository of Places, with known refs. It is safe for concurrent use. If a check for changes finds that
// the repository was deleted or has another path, the error is NotFound, and Known returns nil from then on.
type Place interface {
	repo.Place
	Dir() string // the Git directory
	// Epoch is the same on every node. Repositories that get the path later have greater ones.
	Epoch() uint64
	// Push returns the shadow for a push.
	Push(ctx context.Context) (receivepack.Shadow, error)
	// Counts returns the objects and packs of the latest known state, whether they are here or not.
	Counts() pack.Counts
	// Maintain calls repack with a copy of the repository's directory that has all packs, and then replaces the packs of
	// the repository by those in the copy.
	Maintain(ctx context.Context, repack func(ctx context.Context, dir string) error) error
	// LFS returns the objects of Git LFS of the repository.
	LFS() objects.Remote
	// Locks returns the locks of files of the repository.
	Locks() locks.Files
	// SetHead sets HEAD to a branch, which need not exist.
	SetHead(ctx context.Context, branch git.RefName) error
	Release() // ends the use of the Place
}

// placeInterval is the interval of checks of watched repositories. Changes by this node, and those of which other nodes
// tell it, are found at once.
const placeInterval = 30 * time.Second

// nameOf returns the name of a repository in Places: the path without ".git".
func nameOf(path git.RepoPath) git.RepoPath {
	short, ok := strings.CutSuffix(path.String(), ".git")
	if !ok {
		return path
	}
	name, err := git.ParseRepoPath(short)
	if err != nil || strings.HasSuffix(short, ".git") { // "x/.git", "x.git.git": no repository has such a name
		return path
	}
	return name
}

// acquirePlace is acquire for a node with Places.
func (n *Node) acquirePlace(ctx context.Context, path git.RepoPath) (*handle, error) {
	name := nameOf(path)
	if h := n.handles.use(name); h != nil {
		if !h.isGone() {
			return h, nil
		}
		n.drop(name, h)
		n.release(h)
	}
	place, err := n.places.Acquire(ctx, name)
	if err != nil {
		return nil, err
	}
	options := n.options
	options.Place = place
	r, err := repo.Open(place.Dir(), options)
	if err != nil { // a later state may be in order
		if _, checkErr := place.Layers(ctx); checkErr == nil {
			r, err = repo.Open(place.Dir(), options)
		}
	}
	if err != nil {
		place.Release()
		return nil, err
	}
	h := &handle{openRepo: &openRepo{Repo: r, dir: place.Dir(), place: place, users: 1}, path: place.Dir(), users: 1}
	n.keep(name, h)
	return h, nil
}

// acquireCurrent is acquire after a check for changes by other nodes, so that the repository exists, and its latest
// known refs are current.
func (n *Node) acquireCurrent(ctx context.Context, path git.RepoPath) (*handle, error) {
	if n.places == nil {
		return n.acquire(ctx, path)
	}
	h, _, _, err := n.snapshot(ctx, path)
	return h, err
}

// acquireKnown is acquireCurrent if the store cannot be reached: it returns a repository that was known before, or else
// err. So fetches of known refs do not need the store.
func (n *Node) acquireKnown(ctx context.Context, path git.RepoPath, err error) (*handle, error) {
	if n.places == nil {
		return nil, err
	}
	h, acquireErr := n.acquirePlace(ctx, path)
	if acquireErr != nil {
		return nil, err
	}
	if h.isGone() {
		n.release(h)
		return nil, err
	}
	return h, nil
}

// isGone reports whether a check has found that the repository is not at its path any more.
func (o *openRepo) isGone() bool { return o.place != nil && o.place.Known() == nil }

// latestSnapshot is snapshot without a check for changes by other nodes.
func (n *Node) latestSnapshot(ctx context.Context, path git.RepoPath) (*handle, *refs.Snapshot, git.Version, error) {
	if n.places == nil {
		return n.snapshot(ctx, path)
	}
	return n.placeSnapshot(ctx, path, func(r *refs.Store) (*refs.Snapshot, error) { return r.SnapshotOf(ctx, nil) })
}

// placeSnapshot is snapshot for a node with Places. If the repository is gone, another one may have its path.
func (n *Node) placeSnapshot(ctx context.Context, path git.RepoPath,
	take func(*refs.Store) (*refs.Snapshot, error)) (*handle, *refs.Snapshot, git.Version, error) {
	for isLast := false; ; isLast = true {
		h, err := n.acquirePlace(ctx, path)
		if err != nil {
			return nil, nil, git.Version{}, err
		}
		snap, err := take(h.Refs)
		if err == nil {
			return h, snap, n.version(h.openRepo, snap), nil
		}
		isGone := h.isGone()
		n.release(h)
		if isLast || !isGone {
			return nil, nil, git.Version{}, err
		}
	}
}

// listPlaces is list for a node with Places.
func (n *Node) listPlaces(ctx context.Context, q ListQuery) (Page, error) {
	names, err := n.places.List(ctx, q.Prefix, q.After, q.Limit)
	if err != nil {
		return Page{}, err
	}
	page := Page{Paths: make([]string, len(names))}
	for i, name := range names {
		page.Paths[i] = name.String()
	}
	if len(names) == q.Limit {
		page.Next = page.Paths[q.Limit-1]
	}
	return page, nil
}

// createPlace creates a repository with create, and describes it. name is its path without what Places do not need.
func (n *Node) createPlace(ctx context.Context, path, name git.RepoPath, create func() error) (Description, error) {
	if err := create(); err != nil {
		return Description{}, err
	}
	n.RefsChanged(path)
	d, err := n.Describe(ctx, name)
	return d, fault.Wrap(fault.KindOf(err), "the repository was created, but cannot be described", err)
}

// importPlace has fill create a repository in a temporary directory, and imports that.
func (n *Node) importPlace(ctx context.Context, name git.RepoPath,
	fill func(ctx context.Context, dir string) error) error {
	dir, err := tempDir(filepath.Join(n.root, repo.PrivateDir))
	if err != nil {
		return writeError(err)
	}
	defer os.RemoveAll(filepath.Dir(dir))
	if err := fill(ctx, dir); err != nil {
		return err
	}
	return n.places.Import(ctx, nameOf(name), dir)
}

// deletePlace is Delete for a node with Places.
func (n *Node) deletePlace(ctx context.Context, path git.RepoPath, o DeleteOptions) error {
	name := nameOf(path)
	if err := n.places.Delete(ctx, name, o.Incarnation); err != nil {
		return err
	}
	n.dropPlace(name)
	n.RefsChanged(path)
	return nil
}

// dropPlace removes the handle of a name. Requests that use it continue.
func (n *Node) dropPlace(name git.RepoPath) {
	if h := n.handles.use(name); h != nil {
		n.drop(name, h)
		n.release(h)
	}
}

// Rename gives a repository in a store another path, with or without ".git". The error is Invalid for an invalid path,
// and Unavailable if the repositories are directories, which their administrator can rename.
func (n *Node) Rename(ctx context.Context, from, to git.RepoPath) (err error) {
	defer func() { n.changedRepository("rename", from, err, "to", to.String()) }()
	if n.places == nil {
		return fault.New(fault.Unavailable, "this node has no store: rename the repository's directory")
	}
	target, err := newPath(to, false)
	if err != nil {
		return err
	}
	if err := n.places.Rename(ctx, nameOf(from), nameOf(target)); err != nil {
		return err
	}
	n.dropPlace(nameOf(from))
	n.RefsChanged(from)
	n.RefsChanged(to)
	return nil
}

// Evicted closes the files of a repository's packs, after they were removed from this node. id is the ID of its Place.
func (n *Node) Evicted(id string) {
	t := &n.handles
	t.mu.Lock()
	var open []*handle
	for _, h := range t.byPath {
		if h.place != nil && h.place.ID() == id {
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
