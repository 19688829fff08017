// Package gc collects garbage among the LFS objects of a node. It also verifies, imports and lists them.
package gc

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/semaphore"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// Options configure a Keeper.
type Options struct {
	Schedule
	Store      *objects.Store
	Copies     bool // files of objects are copies of those in an object store
	Places     places.Places
	Root       string // directory of the repositories, or of their copies
	Log        *slog.Logger
	Registerer prometheus.Registerer // may be nil
	// Open opens a repository, unless it is a mirror that must not be read.
	Open func(ctx context.Context, path git.RepoPath) (*Handle, error)
}

// Handle is an open repository, which the caller has to release.
type Handle struct {
	*repo.Repo
	Place   places.Place
	LFS     objects.Repository
	IsFresh func() bool // the repository is still at its path
	Release func()
}

// Keeper does the upkeep of LFS objects. With Schedule.File it also does so in the background, until Close.
type Keeper struct {
	Options
	due        *prometheus.GaugeVec
	collecting *semaphore.Weighted // held to collect garbage

	ctx     context.Context // ends at Close
	cancel  context.CancelFunc
	running sync.WaitGroup
	started time.Time

	mu    sync.Mutex
	state state
}

// New creates a Keeper.
func New(o Options) *Keeper {
	o.Grace, o.ScrubRate = cmp.Or(o.Grace, 14*24*time.Hour), cmp.Or(o.ScrubRate, 32<<20)
	k := &Keeper{Options: o, collecting: semaphore.NewWeighted(1), started: time.Now(),
		due: promauto.With(o.Registerer).NewGaugeVec(prometheus.GaugeOpts{
			Name: "packhorse_lfs_due_timestamp_seconds",
			Help: "Time, since 1970, by which the next collection of LFS garbage (gc) and the next verification of all LFS " +
				"objects (scrub) have to end. A past time means that they failed or are too slow.",
		}, []string{"task"})}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	if o.File != "" {
		k.start()
	}
	return k
}

// Close ends the background work.
func (k *Keeper) Close() {
	k.cancel()
	k.running.Wait()
}
