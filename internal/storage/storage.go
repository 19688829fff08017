// Package storage is the node: it owns the repositories below a root and serves sessions on them.
//
// Repositories are found by their path on each request, and nothing is registered: one that appears is served, one that goes is
// gone, one that is made anew is a new one. Open handles are kept for the repositories in use.
package storage

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/lookup"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/packcache"
	"github.com/packhorse-git/packhorse/internal/receivepack"
	"github.com/packhorse-git/packhorse/internal/repo"
	"github.com/packhorse-git/packhorse/internal/uploadpack"
)

// Options says what a node serves.
type Options struct {
	Root   string   // the directory below which the repositories are
	Hidden []string // directories below it that hold none, as the state directory
	Open   int      // handles kept open; 0: 1,000

	// ReadOnly leaves what earlier nodes left below the root where it is. The caller changes nothing by the node.
	ReadOnly bool

	Policy *repo.Policy // what holds where a repository's config says nothing; nil: repo.DefaultPolicy
	Log    *slog.Logger // nil: none

	Epoch   uint64          // of versions, see NextEpoch; 0: the time now, in nanoseconds since 1970
	Runner  *process.Runner // makes and maintains repositories, with limits for ClassManage and ClassMaintain; nil: neither can be done
	Metrics *Metrics        // nil: not counted

	Upkeep *Upkeep // when repositories are maintained unasked; nil: never. Needs Runner.

	Watchers int           // calls of Watch at the same time; 0: 1,000
	Watched  int           // repositories watched at the same time; 0: 10,000
	Look     time.Duration // how often each of them is looked at; 0: one second

	Pushes  *receivepack.Server // nil: none are taken
	SetHead bool                // the first push to an empty repository has an unborn HEAD name a branch that was pushed
	// RepositoryHooks is what Describe says becomes of hooks on pushes, where Pushes is nil because others take them; "": no pushes are taken.
	RepositoryHooks receivepack.RepositoryHooks

	Packs    *packcache.Cache // which DropPacks drops from; nil: there is none
	Verifier *pack.Verifier   // forgets its verdicts when packs are dropped; nil: there is none

	Tables       *repo.Tables // lists refs in reftables; nil: repositories that have them are refused
	RefsMetrics  *refs.Metrics
	GraphMetrics *graph.Metrics
	Lookups      lookup.Options
}

// Node owns the repositories below a root. Safe for concurrent use.
type Node struct {
	root     string      // without symbolic links
	start    os.FileInfo // of the root, when the node was made
	open     int
	log      *slog.Logger
	options  repo.Options
	server   *uploadpack.Server
	pushes   *receivepack.Server
	setHead  bool
	packs    *packcache.Cache // nil: none
	verifier *pack.Verifier   // nil: none
	lookups  *lookup.Reader
	epoch    uint64
	runner   *process.Runner
	metrics  *Metrics
	hub      *hub
	told     atomic.Pointer[func(git.RepoPath)]
	walks    *balance.Slots // of those who wait
	upkeep   *upkeep        // nil: none
	warmer   *warmer        // nil: none
	trash    *trash
	sync     func(dir string) error // syncDir; another one in tests

	hooks         receivepack.RepositoryHooks // what becomes of repositories' own on a push; "": no pushes are taken
	background    context.Context             // of scanning
	endBackground context.CancelFunc
	scanning      sync.WaitGroup

	making    chan struct{}   // holds one token while a repository is put into place or taken from it
	elsewhere map[string]bool // own directories outside the root's; guarded by making

	searching       chan struct{} // holds one token while borrowers are searched for; taken before making
	borrowerEntries int           // maxBorrowerEntries; fewer in tests

	mu          sync.Mutex
	handles     map[git.RepoPath]*handle
	pinned      int    // handles that a watch keeps; they do not count as open
	clock       uint64 // rises with every use of a handle
	opened      map[string]*opened
	openings    uint64
	maintaining map[string]bool // by common directory
}

// opened is one open repository, shared by the handles of all paths that lead to it.
type opened struct {
	*repo.Repo
	dir     string // as it was opened: the real path of the git directory, or where its ".git" file is
	opening uint64 // of Node.openings: a later one has the greater number
	users   int    // handles; guarded by Node.mu

	last     atomic.Pointer[refs.Snapshot] // the latest that is known to be of this repository
	dangling atomic.Int64                  // when the log was told of a HEAD that names no branch, in nanoseconds since 1970; 0: never
}

// handle is an open repository by one of its paths, and who uses it.
type handle struct {
	*opened
	path   string   // where it was found; may lead to Repo.Dir by symbolic links, or be a ".git" file that names it
	before []string // where a repository of the same name would come first
	users  int      // guarded by Node.mu; the node itself is one while the handle is in its map
	used   uint64   // Node.clock at the last use
	pins   int      // watches that keep it
}

// New makes a node.
func New(server *uploadpack.Server, o Options) (*Node, error) {
	root, err := filepath.EvalSymlinks(o.Root)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "cannot find the root directory", err)
	}
	if root, err = filepath.Abs(root); err != nil {
		return nil, err
	}
	start, err := os.Stat(root)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "cannot find the root directory", err)
	}
	n := &Node{root: root, start: start, server: server, pushes: o.Pushes, setHead: o.SetHead, packs: o.Packs, verifier: o.Verifier, open: o.Open, log: o.Log, epoch: o.Epoch, runner: o.Runner, metrics: o.Metrics,
		sync: syncDir, making: make(chan struct{}, 1), searching: make(chan struct{}, 1), borrowerEntries: maxBorrowerEntries, elsewhere: make(map[string]bool), handles: make(map[git.RepoPath]*handle), opened: make(map[string]*opened),
		maintaining: make(map[string]bool), lookups: lookup.New(o.Lookups),
		options: repo.Options{Root: root, Tables: o.Tables, Policy: o.Policy, RefsMetrics: o.RefsMetrics, GraphMetrics: o.GraphMetrics}}
	if n.open == 0 {
		n.open = 1000
	}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	for _, dir := range o.Hidden {
		if dir, err = realPath(dir); err != nil {
			return nil, fault.Wrap(fault.Invalid, "cannot find a hidden directory", err)
		}
		n.options.Hidden = append(n.options.Hidden, dir)
	}
	if n.epoch == 0 {
		n.epoch = uint64(time.Now().UnixNano())
	}
	if n.metrics == nil {
		n.metrics = NewMetrics()
	}
	if n.hooks = o.RepositoryHooks; n.pushes != nil {
		n.hooks = n.pushes.RepositoryHooks()
		if err := n.pushes.Start(n.claim); err != nil {
			return nil, fault.Wrap(fault.Unavailable, "cannot read what pushes have left", err)
		}
	}
	n.hub = newHub(n, o)
	n.walks = newWalks(2 * n.hub.maxSubs) // of those who have begun to wait, and those who only look
	n.trash = newTrash(n.log, n.metrics)
	if server != nil && server.WarmsUp() {
		n.warmer = newWarmer(n)
	}
	if o.Upkeep != nil && o.Runner != nil {
		n.upkeep = newUpkeep(n, *o.Upkeep)
	}
	if !o.ReadOnly {
		n.sweepAll()
	}
	n.startTellHooks()
	return n, nil
}

// realPath is an absolute path without symbolic links; the directory itself and those above it need not exist yet.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) || filepath.Dir(path) == path {
		return real, err
	}
	parent, err := realPath(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}

// Advertise begins a session on a repository. Each has a session ID of its own (gitprotocol-v2(5), "session-id").
func (n *Node) Advertise(ctx context.Context, path git.RepoPath, session node.Session, reply node.ResponseWriter) (node.Outcome, error) {
	h, err := n.acquire(path)
	if err != nil {
		return node.Outcome{}, err
	}
	defer n.release(h)
	if session.Service == protocol.ReceivePack {
		return n.advertisePush(ctx, h, session, reply)
	}
	outcome, err := n.server.Advertise(ctx, h.Repo, session, rand.Text(), reply)
	if outcome.Dangling {
		n.noteDangling(h, path)
	}
	return outcome, err
}

// packetReaders keeps the buffers that requests are read into.
var packetReaders = sync.Pool{New: func() any { return pktline.NewReader(nil) }}

// UploadPack answers one request of a session.
func (n *Node) UploadPack(ctx context.Context, path git.RepoPath, session node.Session, request io.Reader, reply node.ResponseWriter) (
	outcome node.Outcome, err error) {
	h, err := n.acquire(path)
	if err != nil {
		return node.Outcome{}, err
	}
	defer n.release(h)
	ctx, span := inflight.Trace(ctx, "upload-pack")
	defer func() { traceOutcome(span, &outcome, err) }()
	packets := packetReaders.Get().(*pktline.Reader)
	packets.Reset(request)
	defer func() {
		packets.Reset(nil)
		packetReaders.Put(packets)
	}()
	outcome, err = n.server.Serve(ctx, h.Repo, session, packets, reply)
	if outcome.Dangling {
		n.noteDangling(h, path)
	}
	return outcome, err
}

// acquire opens a repository or finds it open. The caller releases it.
func (n *Node) acquire(path git.RepoPath) (*handle, error) {
	n.mu.Lock()
	h := n.handles[path]
	if h != nil {
		h.users++
		n.clock++
		h.used = n.clock
	}
	n.mu.Unlock()
	if h != nil {
		if h.Fresh(h.path) && !slices.ContainsFunc(h.before, isRepository) {
			return h, nil
		}
		n.drop(path, h)
		n.release(h)
	}
	found, before, err := n.find(path)
	if err != nil {
		return nil, err
	}
	dir, err := n.inside(found)
	if err != nil {
		return nil, err
	}
	if repo.IsGitFile(dir) {
		dir = found // what it says is relative to where it is found, as for git
	}
	o, err := n.openDir(dir)
	if err != nil {
		return nil, err
	}
	h = &handle{opened: o, path: found, before: before, users: 1}
	n.keep(path, h)
	return h, nil
}

// openDir opens the repository in a directory, or finds it open by another path. The caller is one of its users.
func (n *Node) openDir(dir string) (*opened, error) {
	n.mu.Lock()
	o := n.opened[dir]
	if o != nil {
		o.users++
	}
	n.mu.Unlock()
	if o != nil {
		if o.Fresh(dir) {
			return o, nil
		}
		n.leave(o)
	}
	r, err := repo.Open(dir, n.options)
	if err != nil {
		return nil, err
	}
	if err := r.Policy().Bundles.Err; err != nil {
		n.log.Warn("a repository's bundles are not offered to clients", "dir", dir, "error", err)
	}
	fresh := &opened{Repo: r, dir: dir, users: 1}
	n.mu.Lock()
	n.openings++
	fresh.opening = n.openings
	if there := n.opened[dir]; there == nil || there == o {
		n.opened[dir] = fresh
	} // else another request was faster: this one is for its request alone
	n.mu.Unlock()
	return fresh, nil
}

// leave ends one use of an open repository; the last one closes it.
func (n *Node) leave(o *opened) {
	n.mu.Lock()
	o.users--
	last := o.users == 0
	if last && n.opened[o.dir] == o {
		delete(n.opened, o.dir)
	}
	n.mu.Unlock()
	if last {
		_ = o.Close()
	}
}

// keep puts a handle into the map for the next request, unless another request was faster, and drops the ones that were not
// used for longest if there are too many.
func (n *Node) keep(path git.RepoPath, h *handle) {
	n.mu.Lock()
	var dropped []*handle
	if n.handles[path] == nil {
		n.clock++
		h.used = n.clock
		h.users++
		n.handles[path] = h
		for len(n.handles)-n.pinned > n.open {
			oldest := n.removeOldest()
			if oldest == nil {
				break
			}
			dropped = append(dropped, oldest)
		}
	}
	n.mu.Unlock()
	for _, oldest := range dropped {
		n.release(oldest)
	}
}

// removeOldest takes the least recently used handle out of the map, of those that nobody uses now: the others are open anyway. Nil if
// there is none. n.mu is held.
func (n *Node) removeOldest() *handle {
	var oldest git.RepoPath
	var least *handle
	for path, h := range n.handles {
		if h.users == 1 && (least == nil || h.used < least.used) {
			oldest, least = path, h
		}
	}
	if least != nil {
		n.remove(oldest, least)
	}
	return least
}

// remove takes a handle out of the map; the caller releases it. n.mu is held.
func (n *Node) remove(path git.RepoPath, h *handle) {
	delete(n.handles, path)
	if h.pins > 0 {
		n.pinned--
	}
}

// drop takes a handle out of the map if it still is there.
func (n *Node) drop(path git.RepoPath, h *handle) {
	n.mu.Lock()
	there := n.handles[path] == h
	if there {
		n.remove(path, h)
	}
	n.mu.Unlock()
	if there {
		n.release(h)
	}
}

// release ends one use of a handle; the last one closes it.
func (n *Node) release(h *handle) {
	n.mu.Lock()
	h.users--
	last := h.users == 0
	n.mu.Unlock()
	if last {
		n.leave(h.opened)
	}
}

// find tells where the repository is that a path names: DIR/.git, DIR itself, DIR.git/.git, or DIR.git, in git's own order; and as much
// for the path without its ".git". It is a git directory or a file that names one. Before is where none was found.
func (n *Node) find(path git.RepoPath) (found string, before []string, err error) {
	names := []string{path.String()}
	if short, ok := strings.CutSuffix(path.String(), ".git"); ok && short != "" && !strings.HasSuffix(short, "/") {
		names = append(names, short)
	}
	var denied error
	for _, name := range names {
		for _, candidate := range []string{name + "/.git", name, name + ".git/.git", name + ".git"} {
			found := filepath.Join(n.root, filepath.FromSlash(candidate))
			is, err := looksLikeRepository(found)
			if is {
				return found, before, nil
			}
			before = append(before, found)
			if err = cmp.Or(err, unreadable(found)); err != nil {
				denied = err
			}
		}
	}
	if denied != nil {
		return "", nil, fault.Wrap(fault.Unavailable, "the repository cannot be read", denied)
	}
	return "", nil, fault.New(fault.NotFound, "no repository %s here", path)
}

// unreadable is the error if there might be a repository at path, but it is not for us to read, or cannot be read now.
func unreadable(path string) error {
	for _, file := range []string{path, filepath.Join(path, "HEAD")} {
		f, err := disk.Open(file)
		if err == nil {
			f.Close()
		} else if errors.Is(err, fs.ErrPermission) || repo.CannotTell(err) != nil {
			return err
		}
	}
	return nil
}

// isRepository tells whether there is a git directory, or a file that names one, at path. Mostly it costs one system call to say no.
func isRepository(path string) bool {
	is, _ := looksLikeRepository(path)
	return is
}

// looksLikeRepository is isRepository, with an error where that could not be found out.
func looksLikeRepository(path string) (bool, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return false, nil
	case info.IsDir():
		return repo.LooksLikeGitDir(path)
	}
	return info.Mode().IsRegular() && repo.IsGitFile(path), nil
}

// inside gives the real path of a git directory or a ".git" file, and refuses one that lies outside the root, in a hidden directory, or
// in another repository's git directory: what lies there (of linked worktrees, submodules, pushes on their way) is for who finds it by the
// files that name it, not by its path.
func (n *Node) inside(dir string) (string, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fault.Wrap(fault.NotFound, "no such repository", err)
	}
	outside := fault.New(fault.NotFound, "no such repository")
	if !n.options.Allows(real) || isOwn(real[len(n.root):]) {
		return "", outside
	}
	for parent := real; parent != n.root; {
		parent = filepath.Dir(parent)
		is, err := repo.LooksLikeGitDir(parent)
		if err != nil {
			return "", fault.Wrap(fault.Unavailable, "the repository cannot be read", err)
		}
		if is {
			return "", outside
		}
	}
	return real, nil
}

// Rest ends what the node does unasked, with its git commands. Called once what changes repositories has ended, before the Runner and the
// source of packs are closed.
func (n *Node) Rest() {
	n.endBackground()
	n.scanning.Wait()
	if n.warmer != nil {
		n.warmer.close()
	}
	if n.upkeep != nil {
		n.upkeep.close()
	}
}

// Close ends watches and what runs in the background, and lets go of all repositories. No other request may be running.
func (n *Node) Close() error {
	n.Rest()
	if n.pushes != nil {
		n.pushes.Close()
	}
	n.hub.close()
	n.trash.close()
	n.mu.Lock()
	handles := n.handles
	n.handles = make(map[git.RepoPath]*handle)
	n.pinned = 0
	n.mu.Unlock()
	for _, h := range handles {
		n.release(h)
	}
	return nil
}

// Ready returns why repositories cannot be read: the root is gone or unreadable, or its file system is not mounted any
// more; nil if they can.
func (n *Node) Ready() error {
	info, err := os.Stat(n.root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.Unavailable, "the root directory is gone")
	case err != nil:
		return fault.Wrap(fault.Unavailable, "cannot read the root directory", err)
	case !info.IsDir():
		return fault.New(fault.Unavailable, "the root is no directory")
	}
	dir, err := os.Open(n.root)
	if err != nil {
		return fault.Wrap(fault.Unavailable, "cannot read the root directory", err)
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	switch {
	case err == io.EOF && !os.SameFile(info, n.start):
		return fault.New(fault.Unavailable, "the root directory is empty, and another one than at the start: is its file system mounted?")
	case err != nil && err != io.EOF:
		return fault.Wrap(fault.Unavailable, "cannot read the root directory", err)
	}
	return nil
}
