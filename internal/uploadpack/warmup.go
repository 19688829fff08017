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

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/packsource"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// Warmer is a packsource.Source that keeps packs.
type Warmer interface {
	// Warm makes a pack and keeps it like one that several clients have asked for. made is false if the pack exists
	// already or is being made. The fill ends with ctx, unless a client reads it by then. bytes is the size of the
	// framed pack.
	Warm(ctx context.Context, spec *packsource.Spec) (bytes int64, made bool, err error)
}

// Warmup configures which packs are made for a new tip before a client asks. Zero values mean the defaults.
type Warmup struct {
	Window   time.Duration // in which requests count. Default 10 minutes.
	Least    int           // requests of a popular shape. Default 2.
	Packs    int           // maximum after one change. Default 4.
	MaxBytes int64         // of a pack for the previous tip. Default 1 GiB.
	Patience time.Duration // for an idle slot. Default 5 s.
	// Idle reports whether a slot for making packs is idle, and Crowded whether clients wait for a slot. Then warm-up
	// packs make room. Nil means idle and not crowded.
	Idle, Crowded func() bool
	Metrics       *WarmupMetrics // nil: not counted
}

// warmth is the part of a Server that makes packs before anybody asks.
type warmth struct {
	Warmup
	warmer Warmer
	shapes *shapes

	any  atomic.Bool // there may be some in made
	mu   sync.Mutex
	made map[packsource.Key]time.Time // without a request so far
}

const (
	maxMade     = 1000 // packs that are waited for
	crowdedLook = 20 * time.Millisecond
	idleLook    = 20 * time.Millisecond
)

// newWarmth returns nil if no packs should be made, or the source keeps none.
func newWarmth(source packsource.Source, o *Warmup) *warmth {
	warmer, ok := source.(Warmer)
	if o == nil || !ok {
		return nil
	}
	w := &warmth{Warmup: *o, warmer: warmer, made: map[packsource.Key]time.Time{}}
	for value, standard := range map[*time.Duration]time.Duration{&w.Window: 10 * time.Minute,
		&w.Patience: 5 * time.Second} {
		if *value <= 0 {
			*value = standard
		}
	}
	for value, standard := range map[*int]int{&w.Least: 2, &w.Packs: 4} {
		if *value <= 0 {
			*value = standard
		}
	}
	if w.MaxBytes <= 0 {
		w.MaxBytes = 1 << 30
	}
	if w.Idle == nil {
		w.Idle = func() bool { return true }
	}
	if w.Crowded == nil {
		w.Crowded = func() bool { return false }
	}
	if w.Metrics == nil {
		w.Metrics = NewWarmupMetrics()
	}
	w.shapes = newShapes(w.Window)
	return w
}

// note counts the shape of a request that is about to be answered; nil if there is none.
func (f *fetch) note(ctx context.Context, spec *packsource.Spec) *shape {
	if f.warmth == nil {
		return nil
	}
	if one := f.shape(ctx, spec); one != nil {
		return f.warmth.shapes.add(f.repo.Incarnation, one)
	}
	return nil
}

// noted notes how a request was answered whose shape is known.
func (f *fetch) noted(one *shape, spec *packsource.Spec) {
	w := f.warmth
	if w == nil {
		return
	}
	if one != nil && f.outcome.Bytes > 0 {
		w.shapes.sent(one, f.outcome.Bytes)
	}
	if w.any.Load() {
		w.ask(spec.Key(), packsource.Result(f.outcome.Pack))
	}
}

// ask notes that a pack was asked for which may have been made before.
func (w *warmth) ask(key packsource.Key, result packsource.Result) {
	if result != packsource.Hit && result != packsource.Follow {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.made[key]; ok {
		w.forget(key)
		w.Metrics.used.Inc()
	}
}

func (w *warmth) forget(key packsource.Key) {
	delete(w.made, key)
	w.any.Store(len(w.made) > 0)
}

// expect waits for a request for a pack, and gives up packs without one.
func (w *warmth) expect(key packsource.Key) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for old, at := range w.made {
		if now.Sub(at) > w.Window || len(w.made) >= maxMade {
			w.forget(old)
			w.Metrics.wasted.Inc()
		}
	}
	w.made[key] = now
	w.any.Store(true)
}

// WarmsUp reports whether WarmUp does anything.
func (s *Server) WarmsUp() bool { return s.warmth != nil }

// WarmUp makes the packs that were popular in the last minutes for the current tips: once for each tip, one after the
// other, and only while slots are idle. It ends with ctx. Failures are only counted: a client's request will report
// them.
func (s *Server) WarmUp(ctx context.Context, r *repo.Repo) {
	w := s.warmth
	if w == nil {
		return
	}
	copies, kept := w.shapes.popular(r.Incarnation, w.Least)
	if len(copies) == 0 {
		return
	}
	snapshot, err := r.Refs.Snapshot(ctx)
	if err != nil {
		return
	}
	made := 0
	for i, one := range copies {
		tips, ok, err := s.tipsOf(snapshot, &one)
		if err != nil || !ok || slices.Equal(tips, one.wants) {
			continue
		}
		if made == w.Packs {
			w.Metrics.skip("limit")
			continue
		}
		if one.bytes > w.MaxBytes {
			w.Metrics.skip("large")
			continue
		}
		if !w.wait(ctx) {
			w.Metrics.skip("busy")
			return
		}
		one.wants = tips
		if did, err := s.warm(ctx, r, snapshot, &one); err == nil {
			w.shapes.moved(r.Incarnation, kept[i], one)
			if did {
				made++
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// wait waits until a slot is idle, but not for long.
func (w *warmth) wait(ctx context.Context) bool {
	for end := time.Now().Add(w.Patience); !w.Idle(); {
		if time.Now().After(end) || ctx.Err() != nil {
			return false
		}
		time.Sleep(idleLook)
	}
	return ctx.Err() == nil
}

// errCrowded ends the fill of a pack without readers.
var errCrowded = errors.New("clients wait for a slot")

// warm makes the pack of one shape, and moves the shape on.
func (s *Server) warm(ctx context.Context, r *repo.Repo, snapshot *refs.Snapshot, one *shape) (made bool, err error) {
	w, start := s.warmth, time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	defer func() { cancel(nil); <-watched }()
	go func() {
		defer close(watched)
		for look := time.NewTicker(crowdedLook); ; {
			select {
			case <-look.C:
				if w.Crowded() {
					cancel(errCrowded)
				}
			case <-ctx.Done():
				look.Stop()
				return
			}
		}
	}()
	spec, next, err := s.specOf(ctx, r, snapshot, one)
	if err != nil {
		w.Metrics.skip(reasonOf(ctx))
		return false, err
	}
	w.expect(spec.Key()) // before it is made: a client that asks meanwhile follows the fill
	bytes, made, err := w.warmer.Warm(ctx, spec)
	if err != nil || !made {
		w.mu.Lock()
		w.forget(spec.Key())
		w.mu.Unlock()
	}
	switch {
	case err != nil:
		w.Metrics.skip(reasonOf(ctx))
		return false, err
	case !made:
		w.Metrics.skip("there")
	default:
		w.Metrics.made.Inc()
		w.Metrics.bytes.Add(float64(bytes))
		w.Metrics.seconds.Observe(time.Since(start).Seconds())
		next.bytes = bytes
	}
	*one = next
	return made, nil
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

// specOf is what the request of a shape comes to, by the very way that a request goes, and the shape after it.
func (s *Server) specOf(ctx context.Context, r *repo.Repo, snapshot *refs.Snapshot, one *shape) (*packsource.Spec,
	shape, error) {
	req := &protocol.Fetch{
		Wants: slices.Clone(one.wants), Haves: slices.Clone(one.haves), Shallow: slices.Clone(one.shallow),
		Depth:       one.depth,
		DeepenSince: one.since, DeepenNot: one.not, Done: true, ThinPack: one.thin, OfsDelta: one.offset,
		IncludeTag: one.tags,
	}
	if one.filter != "" {
		filter, err := protocol.ParseFilter(strings.Clone(one.filter), s.options.Limits)
		if err != nil {
			return nil, *one, err
		}
		req.Filter = filter
	}
	if one.comeBack { // it wants nothing that it has
		req.Wants = slices.DeleteFunc(req.Wants, func(id git.ObjectID) bool { return slices.Contains(one.haves, id) })
		if len(req.Wants) == 0 {
			return nil, *one, fault.New(fault.Invalid, "nothing is new")
		}
	}
	f := &fetch{Server: s, repo: r, request: req, outcome: &node.Outcome{}, start: time.Now(), hold: free}
	if err := f.begin(ctx, func(context.Context) error { return nil }); err != nil {
		return nil, *one, err
	}
	if f.snapshot != snapshot {
		return nil, *one, fault.New(fault.Unavailable, "the refs have changed meanwhile")
	}
	if _, err := f.acknowledge(ctx); err != nil {
		return nil, *one, err
	}
	if err := f.boundaries(ctx); err != nil {
		return nil, *one, err
	}
	spec, err := f.spec(ctx)
	if err != nil {
		return nil, *one, err
	}
	spec.Seal()
	next := *one
	if next.comeBack {
		next.haves, next.shallow, err = f.comesBackWith(ctx, spec)
	}
	return spec, next, err
}

// boundaries works out where the client's history ends after this fetch.
func (f *fetch) boundaries(ctx context.Context) error {
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

// WarmupMetrics counts packs that are made before anybody asks.
type WarmupMetrics struct {
	made, used, wasted, bytes prometheus.Counter
	skipped                   *prometheus.CounterVec
	seconds                   prometheus.Histogram
}

// NewWarmupMetrics makes counters that start at zero.
func NewWarmupMetrics() *WarmupMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "packhorse_warmup_" + name, Help: help})
	}
	m := &WarmupMetrics{
		made:   counter("made_total", "Packs made for new tips before anybody asked."),
		used:   counter("used_total", "Packs made before anybody asked, and then asked for; each counts once."),
		wasted: counter("wasted_total", "Packs made before anybody asked, and not asked for within warmup.window."),
		bytes:  counter("bytes_total", "Framed bytes of packs made before anybody asked."),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packhorse_warmup_skipped_total",
			Help: "Popular packs not made for a new tip, by reason: there (a client was faster), busy (no slot was " +
				"idle), crowded (clients waited for a slot), large, limit, ended, failed."},
			[]string{"reason"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "packhorse_warmup_seconds",
			Help: "Time to make a pack before anybody asks.", Buckets: prometheus.ExponentialBuckets(0.01, 4, 8)}),
	}
	for _, reason := range []string{"there", "busy", "crowded", "large", "limit", "ended", "failed"} {
		m.skipped.WithLabelValues(reason)
	}
	return m
}

func (m *WarmupMetrics) skip(reason string) { m.skipped.WithLabelValues(reason).Inc() }

// Collectors is what there is to register.
func (m *WarmupMetrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.made, m.used, m.wasted, m.bytes, m.skipped, m.seconds}
}

// free holds nothing of the memory that clients' requests share: a pack that is made ahead of requests has none.
func free(int64) error { return nil }
