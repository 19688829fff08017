// Package mirror keeps repositories of a storage node in step with their origins.
//
// A mirror is an ordinary bare repository with a state file. Rules map paths below a prefix to the repositories of an
// origin. The first use of such a path creates its mirror. Each later use checks the origin first: concurrent callers
// share one list of refs and one fetch of new objects. Then the storage node answers.
//
// Only this package changes the refs of a mirror. Pushes go to the origin, and no hooks run here.
package mirror

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// Options configure Mirrors. Node, Rules and State are required.
type Options struct {
	Node  *storage.Node
	Rules []Rule
	State string // directory for temporary files; created if necessary

	// Updates is the maximum number of concurrent updates. At most half of them are first updates, which can take long.
	// Zero means 8, the number of slots of the Git commands.
	Updates int
	Fsck    map[string]string // severities of Git's object checks by name; nil: receivepack.DefaultFsck

	// LFSCache is the maximum size of the LFS objects of all mirrors in bytes. Zero means a quarter of the file system.
	LFSCache int64

	Registerer prometheus.Registerer // of metrics; may be nil
	Log        *slog.Logger          // nil: not logged
	Now        func() time.Time      // nil: time.Now
}

// Mirrors are the mirrors of a storage node. It is safe for concurrent use.
type Mirrors struct {
	node    *storage.Node
	state   string
	fsck    map[string]string
	metrics lfsMetrics
	log     *slog.Logger
	now     func() time.Time

	relays     *relays
	spools     *spools
	lfs        *lfsObjects // nil: the node has no LFS objects
	rules      atomic.Pointer[[]Rule]
	updateWait time.Duration // see the constant; shorter in tests

	absent *lru.Cache[string, absence] // by URL at the origin; safe for concurrent use
	others singleflight.Group          // lists of refs that are not mirrored

	updates chan struct{} // has a token for each running update
	firsts  chan struct{} // has a token for each running first update, taken before that of updates

	ctx     context.Context // ends when Close is called
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	known   map[git.RepoPath]*mirror // used since the start, by mirror.path
	opening map[git.RepoPath]*opening
}

// Origins returns the origins of the rules.
func (m *Mirrors) Origins() []*origin.Origin { return OriginsOf(*m.rules.Load()) }

// OriginsOf returns the origins of rules.
func OriginsOf(rules []Rule) (all []*origin.Origin) {
	for _, r := range rules {
		if r.Origin != nil {
			all = append(all, r.Origin)
		}
	}
	return all
}

// New creates Mirrors. In the background it removes what an earlier process left and continues first updates.
func New(o Options) (*Mirrors, error) {
	if o.Updates == 0 {
		o.Updates = 8
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	m := &Mirrors{node: o.Node, state: StateDir(o.State), fsck: o.Fsck, log: o.Log, now: o.Now,
		updateWait: updateWait, updates: make(chan struct{}, o.Updates), firsts: make(chan struct{}, max(1, o.Updates/2)),
		known: make(map[git.RepoPath]*mirror), opening: make(map[git.RepoPath]*opening)}
	var err error
	if m.absent, err = lru.New[string, absence](maxAbsent); err != nil {
		return nil, err
	}
	if m.spools, err = newSpools(m.state, maxSpoolBytes); err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot use the directory of mirrors", err)
	}
	m.relays = newRelays(m.spools)
	if store := m.node.LFSObjects(); store != nil {
		m.lfs = newLFSObjects(m, store, o.LFSCache)
	}
	if err := m.SetRules(o.Rules); err != nil {
		return nil, err
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.metrics = newMetrics(o.Registerer, m)
	m.node.ServeMirrors(m.mayServe)
	m.running.Go(m.sweep)
	if m.lfs != nil {
		m.running.Go(func() { _ = m.lfs.budget.measure(m.ctx) }) // after an error the next download measures it
	}
	return m, nil
}

// StateDir returns the directory of temporary files in a state directory. It exists if there were mirrors.
func StateDir(state string) string { return filepath.Join(state, "mirror") }

// Close ends running updates and removes their temporary files. No request may use the Mirrors any more. Call it
// before the storage node is closed.
func (m *Mirrors) Close() error {
	m.cancel()
	m.relays.Close()
	m.running.Wait()
	return nil
}

// sweep removes what an earlier process left in mirrors, and continues first updates.
func (m *Mirrors) sweep() {
	for after := ""; ; {
		paths, next, err := m.list(m.ctx, after)
		if err != nil {
			if m.ctx.Err() == nil {
				m.log.Warn("cannot list the mirrors", "error", err)
			}
			return
		}
		for _, path := range paths {
			r, err := m.openExisting(m.ctx, path)
			switch {
			case err != nil && m.ctx.Err() == nil:
				m.log.Error("refused the repository of a mirror", "repository", path.String(), "error", err)
			case r != nil && !r.complete() && !r.isOrphan():
				r.join(m.now(), node.Secret{}, false) // goes on in the background
			}
		}
		if after = next; after == "" {
			return
		}
	}
}
