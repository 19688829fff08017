package native

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// Options configure a Source.
type Options struct {
	Git *packsource.Git // makes the other packs, and has the slots

	// Always makes every pack in process, or fails. Otherwise git makes packs that would have to be encoded for the most
	// part, and those of repositories that this package cannot read.
	Always bool

	// Threads is the maximum number of goroutines that encode objects of one pack. 0 means 1.
	Threads int
	// Memory is the maximum memory of one pack in bytes. 0 means 1 GiB.
	Memory int64
	// Time is the maximum time for one pack. 0 means no limit.
	Time time.Duration

	Registerer prometheus.Registerer // of metrics; may be nil
	Log        *slog.Logger          // nil: slog.Default
}

// Source makes packs in process.
type Source struct {
	o       Options
	metrics *metrics
	log     *slog.Logger
	library packsource.Library
	bitmaps *bitmaps
	// headers are those of packs of the Library, so that few indexes are opened.
	headers *lru.Cache[packsource.Key, earlierHeader]
	// failed has the repositories for which a pack failed although its making had begun, and the kinds of packs that were
	// left to git after long work, with the time. Git makes these packs for a while, unless Options.Always is set.
	// Unreadable tip packs are in it, too, so that each is logged once in a while.
	failed *lru.Cache[string, time.Time] // by incarnation, kindOf or object directory
}

// New returns a Source.
func New(o Options) *Source {
	s := &Source{o: o, metrics: newMetrics(o.Registerer), log: o.Log, bitmaps: newBitmaps()}
	s.headers, _ = lru.New[packsource.Key, earlierHeader](maxHeaders) // the sizes are valid
	s.failed, _ = lru.New[string, time.Time](maxFailures)
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.o.Memory <= 0 {
		s.o.Memory = 1 << 30
	}
	return s
}

// SetLibrary sets the packs from which new ones are composed. Call it before Open.
func (s *Source) SetLibrary(l packsource.Library) { s.library = l }

// Open waits for a slot, which a pack shares with git processes that make packs.
func (s *Source) Open(ctx context.Context, spec *packsource.Spec) (packsource.Pack, error) {
	slot, err := s.o.Git.Acquire(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &nativePack{s: s, ctx: ctx, spec: spec, slot: slot, info: packsource.Info{
		Result: packsource.Uncached, Wait: slot.Waited}}, nil
}

const (
	maxHeaders   = 4096
	failureTime  = 10 * time.Minute
	maxFailures  = 1000
	slowFallback = 2 * time.Second // a fallback after more time is remembered
)

// kindOf returns a name for packs of a repository that are likely to need the same work.
func kindOf(s *packsource.Spec) string {
	return fmt.Sprint(s.Repo.Incarnation, " ", len(s.Haves) > 0, len(s.Shallow) > 0, s.Filter != "")
}

func (s *Source) hasFailed(what string) bool {
	at, ok := s.failed.Get(what)
	return ok && time.Since(at) < failureTime
}
