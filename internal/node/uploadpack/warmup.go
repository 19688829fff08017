package uploadpack

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// Warmer is a packsource.Source that keeps packs.
type Warmer interface {
	// Warm makes a pack and keeps it like one that several clients have requested. made is false if the pack exists
	// already or is being made. Cancelling ctx ends the fill, unless a client reads the pack. bytes is the size of the
	// framed pack.
	Warm(ctx context.Context, spec *packsource.Spec) (bytes int64, made bool, err error)
	// Fits reports whether a pack of a size would be kept.
	Fits(bytes int64) bool
}

// Warmup configures which packs are made for a new tip before a client asks. Zero values mean the defaults.
type Warmup struct {
	Window      time.Duration // requests that are older do not count. Default 10 minutes.
	MinRequests int           // requests of a popular shape. Default 2.
	Packs       int           // maximum after one change. Default 4.
	MaxWait     time.Duration // for an idle slot. Default 5 s.
	// Idle reports whether a slot for making packs is idle. Crowded reports whether clients wait for a slot, which stops
	// fills of the warm-up without readers. Nil means idle and not crowded.
	Idle, Crowded func() bool
	Registerer    prometheus.Registerer // of metrics; may be nil
}

// warmth is the part of a Server that makes packs before clients request them.
type warmth struct {
	Warmup
	warmer Warmer
	packs  *prometheus.CounterVec // by result
	shapes *shapes

	hasMade atomic.Bool // made is not empty
	mu      sync.Mutex
	made    map[packsource.Key]time.Time // packs that were not requested yet
}

// QuickWarmup is the time in which packs of the warm-up must be made for the report of a push to wait for them.
const QuickWarmup = 50 * time.Millisecond

const (
	// largePack is the size of a pack from which the warm-up makes it again only after a request. Otherwise many pushes
	// without a request would write much to disk.
	largePack = 1 << 30

	maxMade         = 1000 // entries of warmth.made
	crowdedInterval = 20 * time.Millisecond
	idleInterval    = 20 * time.Millisecond
)

// newWarmth returns nil if there is no warm-up, or the source does not keep packs.
func newWarmth(source packsource.Source, o *Warmup) *warmth {
	warmer, ok := source.(Warmer)
	if o == nil || !ok {
		return nil
	}
	w := &warmth{Warmup: *o, warmer: warmer, packs: newWarmupMetric(o.Registerer), made: map[packsource.Key]time.Time{}}
	for value, standard := range map[*time.Duration]time.Duration{&w.Window: 10 * time.Minute,
		&w.MaxWait: 5 * time.Second} {
		if *value <= 0 {
			*value = standard
		}
	}
	for value, standard := range map[*int]int{&w.MinRequests: 2, &w.Packs: 4} {
		if *value <= 0 {
			*value = standard
		}
	}
	if w.Idle == nil {
		w.Idle = func() bool { return true }
	}
	if w.Crowded == nil {
		w.Crowded = func() bool { return false }
	}
	w.shapes = newShapes(w.Window)
	return w
}

// countShape counts the shape of a request, and returns it; nil if it has none. isFinal is false if an equal request
// may have a shape later.
func (f *fetch) countShape(ctx context.Context, spec *packsource.Spec) (counted *shape, isFinal bool) {
	if f.warmth == nil {
		return nil, true
	}
	one, err := f.shape(ctx, spec)
	if err != nil || one == nil {
		return nil, err == nil
	}
	return f.warmth.shapes.add(f.repo.Incarnation, one), true
}

// recordResult records the outcome of a request for its shape, which may be nil, and for the warm-up metrics.
func (f *fetch) recordResult(one *shape, spec *packsource.Spec) {
	w := f.warmth
	if w == nil {
		return
	}
	if one != nil && f.outcome.Fetch.Bytes > 0 {
		w.shapes.setBytes(one, f.outcome.Fetch.Bytes)
		if made := f.outcome.Fetch.Made; made.Source != "" {
			w.shapes.setTook(one, made.Select+made.Write)
		}
	}
	if w.hasMade.Load() {
		w.countUse(spec.Key(), packsource.Result(f.outcome.Fetch.Pack))
	}
}

// countUse counts a request for a pack if the warm-up made it.
func (w *warmth) countUse(key packsource.Key, result packsource.Result) {
	if result != packsource.Hit && result != packsource.Follow {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.made[key]; ok {
		w.forget(key)
		w.count("used")
	}
}

func (w *warmth) forget(key packsource.Key) {
	delete(w.made, key)
	w.hasMade.Store(len(w.made) > 0)
}

// addMade adds a pack of the warm-up, and counts those that were not requested within the window as wasted.
func (w *warmth) addMade(key packsource.Key) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for old, at := range w.made {
		if now.Sub(at) > w.Window || len(w.made) >= maxMade {
			w.forget(old)
			w.count("wasted")
		}
	}
	w.made[key] = now
	w.hasMade.Store(true)
}

// WarmsUp reports whether WarmUp does anything.
func (s *Server) WarmsUp() bool { return s.warmth != nil }

// HasQuickWarmup reports whether WarmUp is expected to make packs that are quick to make.
func (s *Server) HasQuickWarmup(r *repo.Repo) bool {
	popular := s.warmth.shapes.popular(r.Incarnation, s.warmth.MinRequests)
	return slices.ContainsFunc(popular, func(one popularShape) bool { return one.isQuick })
}

// WarmUp makes recently popular packs for the current tips, one after the other, while slots are idle. It makes each
// only once for a tip. If onlyQuick, it makes only those whose last making was so quick that all of them together
// should take less than QuickWarmup. before is the number of packs that were made since the change, and WarmUp returns
// it with its own. It ends with ctx. Failures are only counted, because a client's request will report them.
func (s *Server) WarmUp(ctx context.Context, r *repo.Repo, onlyQuick bool, before int) (made int) {
	w := s.warmth
	if w == nil || onlyQuick && !w.Idle() {
		return before
	}
	popular := w.shapes.popular(r.Incarnation, w.MinRequests)
	if onlyQuick {
		popular = slices.DeleteFunc(popular, func(one popularShape) bool { return !one.isQuick })
	}
	if len(popular) == 0 {
		return before
	}
	snapshot, err := r.Refs.SnapshotOf(ctx, nil)
	if err != nil {
		return before
	}
	made = before
	for i := range popular {
		one, start := &popular[i], time.Now()
		tips, ok, err := tipsOf(snapshot, &one.shape)
		listing := time.Since(start)
		if err != nil || !ok || digestOf(tips) == one.tips {
			continue
		}
		if reason := w.reasonAgainst(&one.shape, made); reason != "" {
			if !onlyQuick { // otherwise the next call counts it
				w.count(reason)
			}
			continue
		}
		if !w.wait(ctx) {
			w.count("busy")
			return made
		}
		if s.warm(ctx, r, snapshot, one, tips, listing) {
			made++
		}
		if ctx.Err() != nil {
			return made
		}
	}
	return made
}

// reasonAgainst returns why a pack is not to be made after a number of others; "" if it is.
func (w *warmth) reasonAgainst(one *shape, made int) string {
	switch {
	case made >= w.Packs:
		return "limit"
	case !w.warmer.Fits(one.bytes):
		return "large"
	case one.isUnused && one.bytes > largePack:
		return "unused"
	}
	return ""
}

// wait waits until a slot is idle, at most MaxWait. It reports whether one is.
func (w *warmth) wait(ctx context.Context) bool {
	for end := time.Now().Add(w.MaxWait); !w.Idle(); {
		if time.Now().After(end) || ctx.Err() != nil {
			return false
		}
		time.Sleep(idleInterval)
	}
	return ctx.Err() == nil
}

// errCrowded ends the fill of a pack without readers.
var errCrowded = errors.New("clients wait for a slot")

// warm makes the pack of one shape for its tips, and updates the shape. Listing the tips took some time, which counts.
func (s *Server) warm(ctx context.Context, r *repo.Repo, snapshot *refs.Snapshot, one *popularShape,
	tips []git.ObjectID, listing time.Duration) (made bool) {
	w, start := s.warmth, time.Now().Add(-listing)
	ctx, stop := w.endIfCrowded(ctx)
	defer stop()
	one.tips = digestOf(tips)
	spec, next, err := s.specOf(ctx, r, snapshot, &one.shape, tips)
	if err != nil {
		w.count(reasonOf(ctx))
		return false
	}
	w.addMade(spec.Key()) // before the fill, because a client may follow it
	bytes, made, err := w.warmer.Warm(ctx, spec)
	took := time.Since(start)
	if err != nil || !made {
		w.mu.Lock()
		w.forget(spec.Key())
		w.mu.Unlock()
	}
	switch {
	case err != nil:
		w.count(reasonOf(ctx))
		if took > QuickWarmup {
			w.shapes.setTook(one.kept, took)
		}
		return false
	case !made:
		w.count("there")
	default:
		w.count("made")
		next.bytes, next.took, next.isUnused = bytes, took, true
	}
	w.shapes.advance(r.Incarnation, one.kept, next)
	return made
}

// endIfCrowded returns a context that ends when clients wait for a slot. The caller has to call stop.
func (w *warmth) endIfCrowded(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		look := time.NewTicker(crowdedInterval)
		defer look.Stop()
		for {
			select {
			case <-look.C:
				if w.Crowded() {
					cancel(errCrowded)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-watched
	}
}

// reasonOf returns why a pack was not made.
func reasonOf(ctx context.Context) string {
	switch {
	case errors.Is(context.Cause(ctx), errCrowded):
		return "crowded"
	case ctx.Err() != nil:
		return "ended"
	}
	return "failed"
}

// specOf negotiates the request of a shape as if a client had sent it. It returns the pack's Spec and the next shape.
func (s *Server) specOf(ctx context.Context, r *repo.Repo, snapshot *refs.Snapshot, one *shape, tips []git.ObjectID) (
	*packsource.Spec, shape, error) {
	req := &protocol.Fetch{
		Wants: tips, Haves: slices.Clone(one.haves), Shallow: slices.Clone(one.shallow),
		Depth: one.depth, DeepenSince: one.since, DeepenNot: one.not, Done: true, ThinPack: one.thin,
		OfsDelta: one.offset, IncludeTag: one.tags,
	}
	if one.filter != "" {
		filter, err := protocol.ParseFilter(strings.Clone(one.filter), s.options.Limits)
		if err != nil {
			return nil, *one, err
		}
		req.Filter = filter
	}
	if one.isReturning { // clients do not want commits that they have
		req.Wants = slices.DeleteFunc(req.Wants, func(id git.ObjectID) bool { return slices.Contains(one.haves, id) })
		if len(req.Wants) == 0 {
			return nil, *one, fault.New(fault.Invalid, "nothing is new")
		}
	}
	f := &fetch{Server: s, repo: r, request: req, outcome: &node.Outcome{}, start: time.Now(), reserve: reserveNothing}
	rule := func(context.Context) error { return nil }
	if one.isGuarded { // the next client finds the list of tips, too
		rule = func(context.Context) error { _, err := f.areTips(nil); return err }
	}
	defer f.release()
	if err := f.begin(ctx, rule); err != nil {
		return nil, *one, err
	}
	if f.snapshot != snapshot {
		return nil, *one, fault.New(fault.Unavailable, "the refs have changed meanwhile")
	}
	if _, err := f.findCommon(ctx); err != nil {
		return nil, *one, err
	}
	if err := f.computeBoundary(ctx); err != nil {
		return nil, *one, err
	}
	spec, err := f.spec(ctx)
	if err != nil {
		return nil, *one, err
	}
	spec.Seal()
	next := *one
	if next.isReturning {
		next.haves, next.shallow, err = f.nextHaves(ctx, spec)
	}
	return spec, next, err
}

// computeBoundary computes the boundary of the client's history after this fetch.
func (f *fetch) computeBoundary(ctx context.Context) error {
	if err := f.deepen(ctx); err != nil {
		return err
	}
	if f.request.Deepens() || len(f.serverShallow) == 0 {
		return nil
	}
	var err error
	f.boundary, err = f.repo.Graph.Depth(ctx, f.wants, graph.Infinite, f.clientView(), f.clientShallow)
	return err
}

// newWarmupMetric makes the metric of packs that are made before clients request them.
func newWarmupMetric(r prometheus.Registerer) *prometheus.CounterVec {
	packs := promauto.With(r).NewCounterVec(prometheus.CounterOpts{Name: "packhorse_warmup_packs_total",
		Help: "Popular packs by result: made for new tips, and then used (a client requested it) or wasted. Others were " +
			"not made: there (a client was faster), busy (no idle slot), crowded (clients wait), large, unused (the last " +
			"one), limit, ended, failed."}, []string{"result"})
	for _, result := range []string{"made", "used", "wasted", "there", "busy", "crowded", "large", "unused", "limit",
		"ended", "failed"} {
		packs.WithLabelValues(result)
	}
	return packs
}

// count counts a pack.
func (w *warmth) count(result string) { w.packs.WithLabelValues(result).Inc() }

// reserveNothing reserves none of the memory that clients' requests share.
func reserveNothing(int64) error { return nil }
