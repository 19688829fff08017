// Package storage is the storage node: it keeps repositories open and serves sessions on them.
//
// Repositories are found by their path on each request, and are not registered anywhere. A new repository is served at
// once, a removed one is not served any more, and one that was replaced is a new one. Repositories in use stay open.
package storage

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/archive"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/gc"
	"github.com/packhorse-git/packhorse/internal/node/inspect"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/merge"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
	"github.com/packhorse-git/packhorse/internal/node/watch"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// Options configure a Node.
type Options struct {
	Root   string   // directory below which the repositories are
	Hidden []string // directories below the root without repositories, such as the state directory
	// Places has the repositories if the directories below the root are copies. Nil: they are the repositories.
	Places places.Places
	// MaxOpen is the maximum number of repositories that are kept open without a watch. Zero means 1,000.
	MaxOpen int

	// ReadOnly disables the removal of leftovers of earlier nodes. The caller must not change repositories.
	ReadOnly bool

	Policy *repo.Policy // applies to keys that a repository does not configure; nil: repo.DefaultPolicy
	Log    *slog.Logger // nil: not logged

	// Epoch is that of versions, see NextEpoch. Zero means the time in nanoseconds since 1970. With Places it is not used.
	Epoch      uint64
	Runner     *process.Runner       // runs the Git commands of the node's classes (ClassManage, ...). Nil refuses them.
	Registerer prometheus.Registerer // of metrics; may be nil

	Maintenance *Maintenance // when repositories are maintained automatically; nil: never. It needs Runner.
	TipPack     bool         // maintenance keeps tip packs, see places.UpdateTip; otherwise it removes them

	MaxWatches    int           // concurrent calls of Watch. Zero means 1,000.
	MaxWatched    int           // repositories watched at the same time. Zero means 10,000.
	CheckInterval time.Duration // of watched repositories. Zero means that of Places: mostly one second.

	Pushes *receivepack.Server // nil: pushes are not accepted
	Events *event.Journal      // of changes that are not pushes; nil: not recorded here
	// RepositoryHooks is the policy for hooks that Describe reports if Pushes is nil because another process serves
	// pushes. "" means that pushes are not accepted.
	RepositoryHooks receivepack.RepositoryHooks

	Signer  *edit.Signer // signs commits of callers that ask for it; nil: they are refused
	Scratch string       // directory for the content of large changes; "": that of the system

	// LFS configures objects of Git LFS. Copies has to be set with Places. The node sets Dir, Log and ReadOnly. Nil:
	// requests for them are refused.
	LFS *objects.Options
	// LFSSchedule configures how LFS garbage is collected, and what happens to LFS objects without a request. Its File is
	// not used with ReadOnly.
	LFSSchedule gc.Schedule

	Packs    *packcache.Cache // for DropPacks; may be nil
	Verifier *pack.Verifier   // forgets its results when packs are dropped; may be nil

	Archives *archive.Maker // nil: requests for archives are refused

	Tables  *repo.Tables // lists refs in reftables; nil: repositories with reftables are refused
	Lookups lookup.Options
	Merger  *merge.Merger // merges for callers; nil: they are refused. The node closes it.
	// Space is where Git compares and changes files for calls. Nil: they are refused.
	Space *scratch.Space
}

// Node owns the repositories below a root. It is safe for concurrent use.
type Node struct {
	root    string      // without symbolic links
	start   os.FileInfo // of the root when the node was created
	log     *slog.Logger
	metrics *metrics
	options repo.Options
	places  places.Places
	// startPlaces and stopPlaces begin and end the background work of the directories.
	startPlaces, stopPlaces func()
	mirrors                 atomic.Pointer[places.MirrorCheck]
	// refusedMirrors has the directories of mirrors whose refusal was logged.
	refusedMirrors sync.Map

	server   *uploadpack.Server
	pushes   *receivepack.Server
	events   *event.Journal              // may be nil
	hooks    receivepack.RepositoryHooks // "": pushes are not accepted
	signer   *edit.Signer                // may be nil
	lfs      *objects.Store              // may be nil
	keeper   *gc.Keeper                  // of lfs; may be nil
	packs    *packcache.Cache            // may be nil
	verifier *pack.Verifier              // may be nil
	lookups  *lookup.Reader
	archives *archive.Maker // may be nil
	runner   *process.Runner
	merger   *merge.Merger // may be nil
	scratch  string
	keys     *edit.Keys

	inspector *inspect.Inspector

	handles    handleTable
	purged     sync.Map // by repo.PackScope: the purged objects for which cached packs were dropped, as a text
	summaries  summaries
	writes     writeTable
	stopWrites func()
	locks      lfs.LockServer
	hub        *watch.Hub
	walks      *balance.Slots                     // walks through history for callers of Wait
	listener   atomic.Pointer[func(git.RepoPath)] // see OnChange
	index      Index                              // may be nil
	claims     places.Claims
	maintainer *maintainer // may be nil
	tipPack    bool        // see Options
	warmer     *warmer     // may be nil
}

// New creates a Node.
func New(server *uploadpack.Server, o Options) (*Node, error) {
	options, err := repo.OptionsBelow(o.Root, o.Hidden...)
	if err != nil {
		return nil, err
	}
	options.Tables, options.Policy = o.Tables, o.Policy
	options.RefsMetrics, options.GraphMetrics = refs.NewMetrics(o.Registerer), graph.NewMetrics(o.Registerer)
	root := options.Root
	start, err := os.Stat(root)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "cannot find the root directory", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	n := &Node{
		root: root, start: start, log: o.Log, metrics: newMetrics(o.Registerer),
		options: options, places: o.Places, server: server, pushes: o.Pushes, events: o.Events,
		hooks: o.RepositoryHooks, signer: o.Signer, scratch: o.Scratch, packs: o.Packs, verifier: o.Verifier,
		lookups: lookup.New(o.Lookups),
		runner:  o.Runner, merger: o.Merger, handles: newHandleTable(o.MaxOpen), tipPack: o.TipPack, archives: o.Archives,
		keys:   edit.NewKeys(),
		writes: writeTable{byPath: make(map[git.RepoPath]*writer), closing: make(chan struct{})},
	}
	if n.pushes != nil {
		n.hooks = n.pushes.RepositoryHooks()
		if err := n.pushes.Recovery().Start(n.claims.Claim); err != nil {
			return nil, fault.Wrap(fault.Unavailable, "cannot read the push journal", err)
		}
	}
	n.inspector = inspect.New(inspect.Options{Runner: o.Runner, Space: o.Space, Lookups: n.lookups})
	n.startPlaces, n.stopPlaces, n.stopWrites = func() {}, func() {}, sync.OnceFunc(n.writes.close)
	if n.places == nil {
		d := places.NewDirectories(places.Options{Repo: options, Epoch: o.Epoch, ReadOnly: o.ReadOnly, Runner: o.Runner,
			Log: o.Log, Claims: &n.claims, Pushes: o.Pushes, Deleted: n.dropKey})
		n.places, n.startPlaces, n.stopPlaces = d, func() { d.StartExpiry(n.Delete) }, d.Close
	}
	if o.LFS != nil {
		lfs := *o.LFS
		lfs.Dir, lfs.Log, lfs.ReadOnly = filepath.Join(root, repo.PrivateDir, "lfs"), n.log, o.ReadOnly
		n.lfs = objects.New(lfs)
		if o.ReadOnly {
			o.LFSSchedule.File = ""
		}
		n.keeper = gc.New(gc.Options{Schedule: o.LFSSchedule, Store: n.lfs, Copies: lfs.Copies, Places: n.places, Root: root,
			Log: n.log, Registerer: o.Registerer, Open: n.openForGC})
	}
	n.startBackground(o)
	return n, nil
}

// startBackground starts everything that the node does without a request.
func (n *Node) startBackground(o Options) {
	n.hub = watch.New(watch.Options{State: n.watchState, Epoch: n.places.Epoch, Log: n.log, Registerer: o.Registerer,
		Interval:         cmp.Or(o.CheckInterval, n.places.CheckInterval()),
		MaxSubscriptions: o.MaxWatches, MaxRepositories: o.MaxWatched})
	n.walks = newWalks(2 * n.hub.MaxSubscriptions()) // for those in Watch, and for those before it
	if n.server != nil && n.server.WarmsUp() {
		n.warmer = newWarmer(n)
	}
	if o.Maintenance != nil && o.Runner != nil {
		n.maintainer = newMaintainer(n, *o.Maintenance)
	}
	n.startPlaces()
}

// StopBackground ends what the node does without a request, including its Git commands. Call it when no request that
// changes repositories runs any more, and before the Runner and the source of packs are closed.
func (n *Node) StopBackground() {
	n.stopWrites()
	n.stopPlaces()
	if n.merger != nil {
		n.merger.Close()
	}
	if n.warmer != nil {
		n.warmer.close()
	}
	if n.maintainer != nil {
		n.maintainer.close()
	}
	if n.lfs != nil {
		n.keeper.Close()
		n.lfs.Close()
	}
}

// Close ends watches and background work, and closes all repositories. No other request may be running.
func (n *Node) Close() error {
	n.StopBackground()
	if n.pushes != nil {
		n.pushes.Close()
	}
	n.hub.Close()
	n.closeHandles()
	return nil
}

// Ready returns why repositories cannot be read: the root is gone or unreadable, or its file system is not mounted any
// more. Or it is the reason of Places. It returns nil if they can be read.
func (n *Node) Ready() error {
	info, err := os.Stat(n.root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.Unavailable, "the root directory does not exist any more")
	case err != nil:
		return fault.Wrap(fault.Unavailable, "cannot read the root directory", err)
	case !info.IsDir():
		return fault.New(fault.Unavailable, "the root is not a directory any more")
	}
	dir, err := os.Open(n.root)
	if err != nil {
		return fault.Wrap(fault.Unavailable, "cannot read the root directory", err)
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	switch {
	case err == io.EOF && !os.SameFile(info, n.start):
		return fault.New(fault.Unavailable,
			"the root directory is empty and was replaced since the start: is its file system mounted?")
	case err != nil && err != io.EOF:
		return fault.Wrap(fault.Unavailable, "cannot read the root directory", err)
	}
	return n.places.Ready()
}
