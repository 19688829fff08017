// Package hydrate keeps local copies of repositories whose truth is in a bucket.
//
// A local copy is the bare repository ROOT/<id>.git. It belongs to the cache alone: no other program changes it.
//
//	HEAD, config     from the record that was applied last
//	packed-refs      the refs of its checkpoint: a link to a file of bases
//	bases/           checkpoints, by name; never changed
//	record           the record itself, so that a restarted node knows it without the bucket; modified when the last
//	                 check began (SetChecked); in 1970 if there was none
//	name             by which name the repository was found last (SetName)
//	objects/pack/    packs, under the base name of their keys; absent if the repository is evicted
//	lfs/objects/     objects of Git LFS; on disk once they have their names
//
// A fork borrows packs from ROOT/.packhorse/networks/<id>, which has those of the repository <id> for all its forks.
// Its budget and eviction are those of a local copy.
//
// Apply brings everything but the packs, and refs can be served after it. Use brings the packs that are missing: it
// hydrates the repository. All callers share one hydration, which continues when they leave. Every file is verified by
// the SHA-256 of the record before it gets its name, packs before their indexes. So a reader never sees an index
// without its pack, or a pack with a damaged byte.
//
// The packs of all repositories have a budget. Eviction removes all packs of the repository that was used least
// recently, and never of one in use. Objects of Git LFS have a part in the budget, and are removed one by one. A start
// removes the other files after a month without a check. Packs that the applied record does not name any more are
// removed when no caller of Use has an older record.
//
// Only LFS objects are synced: the truth is in the bucket. If the machine crashed, other files are compared with their
// checksums before their first use. Damaged ones are downloaded again.
package hydrate

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// Options configure a Cache.
type Options struct {
	Bucket  bucket.Bucket
	Root    string        // directory of the local copies
	Budget  int64         // maximum bytes of all packs and LFS objects; 0: three quarters of the file system
	MinFree int64         // bytes of the file system that hydrations leave free; 0: a twentieth, at most 5 GiB
	Wait    time.Duration // maximum time that Use waits for a hydration; 0: 30 s
	Log     *slog.Logger  // nil: none
	Metrics *Metrics      // nil: none

	// Released is called after packs of a repository were removed, so that open handles close their files. Otherwise
	// the space is not free. nil: nothing to do.
	Released func(id string)
}

// Cache is the set of local copies below a root. It is safe for concurrent use.
type Cache struct {
	options Options
	state   string // directory for downloads and the mark of a clean end
	log     *slog.Logger
	metrics *Metrics

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // tasks and removals
	parts   chan struct{}  // an element for each running request to the bucket
	checks  chan struct{}  // an element for each running comparison of a repository with its checksums

	mu           sync.Mutex
	repositories map[string]*Repository
	recent       *simplelru.LRU[any, struct{}] // *Repository with packs, and *localFile
	bytes        int64                         // of all packs and files, and of those that running hydrations will write
	unwritten    int64                         // the part of bytes that is not on disk yet
	uploads      int64                         // the part of bytes that running uploads have
}

const (
	defaultWait = 30 * time.Second
	stateDir    = ".packhorse/hydrate" // below the root
)

// Open opens the cache below a root and creates the root if necessary. Downloads that an earlier process did not finish
// are removed in the background. If the machine crashed since, each repository is checked before its first use.
func Open(o Options) (*Cache, error) {
	c := &Cache{options: o, state: filepath.Join(o.Root, stateDir), repositories: map[string]*Repository{},
		parts: make(chan struct{}, maxParts), checks: make(chan struct{}, maxChecks)}
	c.recent, _ = simplelru.NewLRU[any, struct{}](math.MaxInt, nil) // fails only for a size below 1
	c.options.Wait = cmp.Or(o.Wait, defaultWait)
	c.log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if c.metrics = o.Metrics; c.metrics == nil {
		c.metrics = NewMetrics(nil)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := c.load(); err != nil {
		return nil, err
	}
	size, _, err := disk.Space(o.Root)
	if err != nil {
		return nil, err
	}
	c.options.Budget = cmp.Or(o.Budget, size/4*3)
	c.options.MinFree = cmp.Or(o.MinFree, disk.Floor(size))
	c.metrics.bytes.Set(float64(c.bytes))
	return c, nil
}

// Repository returns the local copy of a repository. It does no I/O, and the copy may not exist yet.
func (c *Cache) Repository(id string) *Repository {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.repositoryLocked(id)
}

func (c *Cache) repositoryLocked(id string) *Repository {
	r := c.repositories[id]
	if r == nil {
		r = newRepository(c, id)
		c.repositories[id] = r
	}
	return r
}

// Close ends running hydrations, and marks the cache as clean. No caller may use it any more.
func (c *Cache) Close() error {
	c.mu.Lock()
	c.cancel()
	c.mu.Unlock()
	c.running.Wait()
	return c.markClean()
}
