package packcache

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// Defaults of Options.
const (
	DefaultMaxIdle   = 5 * time.Minute
	DefaultProbation = 20 * time.Second
	DefaultGrace     = 10 * time.Second
)

// Options configure a Cache.
type Options struct {
	Dir string // created if necessary; one process at a time can use it
	// MaxBytes is the disk budget in bytes. 0 means an automatic budget: 10 GiB or a tenth of the file system, whichever
	// is less, and more while there are packs larger than a quarter of that.
	MaxBytes int64
	MaxIdle  time.Duration // an entry leaves if it is not requested for this time; 0: DefaultMaxIdle

	// Probation is the maximum idle time of an entry with a single request. 0 means DefaultProbation. A negative value
	// means MaxIdle.
	Probation time.Duration
	// MinFree is what the file system must have free, in bytes, for the cache to write. 0: a twentieth of it, at least
	// 1 GiB (or a tenth, where that is less), at most 5 GiB. Negative: no floor.
	MinFree int64
	// Grace is how long a fill continues without readers. 0 means DefaultGrace. With a negative value it ends at once.
	Grace time.Duration

	Registerer prometheus.Registerer // of metrics; may be nil
	Log        *slog.Logger          // nil: slog.Default
	Now        func() time.Time      // nil: time.Now. For ages only; a fill's grace runs on real time.
}

// Cache is a packsource.Source. Lock order: mu, then the mu of a fill. Neither is held during I/O or a call of a
// reader's Output.
type Cache struct {
	inner packsource.Source
	m     *metrics
	log   *slog.Logger
	now   func() time.Time
	sys   system

	dir       string
	max, low  int64 // budget and free-space floor
	automatic bool  // the budget adapts to large packs
	probation bool  // entries with one request are on probation
	grace     time.Duration

	ctx       context.Context // of all fills and checks
	stop      context.CancelCauseFunc
	wg        sync.WaitGroup
	lock      *os.File
	buffers   buffers
	verifying chan struct{} // slots

	mu        sync.Mutex
	closed    bool
	index     index
	fills     map[packsource.Key]*fill         // those that a request can join
	unlinking map[packsource.Key]chan struct{} // names that are about to be unlinked
	filling   int64                            // bytes in the files of fills
	fillSeq   int64
	statTime  time.Time // when the free space of the file system was last read
	statBytes int64     // written since
	statLow   bool      // it was below the floor
}

// buffers has blocks into which the longest packet fits.
type buffers struct{ pool sync.Pool }

type buffer [64 << 10]byte

func (b *buffers) get() *buffer {
	if p, ok := b.pool.Get().(*buffer); ok {
		return p
	}
	return new(buffer)
}

func (b *buffers) put(p *buffer) { b.pool.Put(p) }

func errClosed() error {
	return fault.New(fault.Unavailable, "the server is shutting down; try again soon")
}

// Open locks the directory for this process, removes the unfinished files of an earlier run, and finds its entries.
// The caller closes the Cache. It is an error if another process uses the directory.
func Open(inner packsource.Source, o Options) (*Cache, error) { return open(inner, o, realSystem()) }

func open(inner packsource.Source, o Options, sys system) (*Cache, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	c := &Cache{
		inner: inner, m: newMetrics(o.Registerer), log: o.Log, now: o.Now, sys: sys, dir: dir,
		max: o.MaxBytes, low: o.MinFree, automatic: o.MaxBytes <= 0, probation: o.Probation >= 0,
		grace:     cmp.Or(o.Grace, DefaultGrace),
		verifying: make(chan struct{}, runtime.GOMAXPROCS(0)),
		index:     newIndex(cmp.Or(o.Probation, DefaultProbation), cmp.Or(o.MaxIdle, DefaultMaxIdle)),
		fills:     make(map[packsource.Key]*fill),
		unlinking: make(map[packsource.Key]chan struct{}),
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.lock, err = lockDir(dir); err != nil {
		return nil, err
	}
	if err = c.limits(); err == nil {
		err = c.load()
	}
	if err != nil {
		c.lock.Close()
		return nil, err
	}
	c.ctx, c.stop = context.WithCancelCause(context.Background())
	c.sweep()
	c.wg.Go(c.janitor)
	return c, nil
}

// limits sets the limits that depend on the file system.
func (c *Cache) limits() error {
	if c.max > 0 && c.low != 0 {
		return nil
	}
	size, _, err := c.sys.space(c.dir)
	if err != nil {
		return err
	}
	const gib = 1 << 30
	if c.max <= 0 {
		c.max = min(10*gib, size/10)
	}
	if c.low == 0 {
		c.low = min(5*gib, max(size/20, min(gib, size/10)))
	}
	return nil
}

// Open finds the pack, follows the fill that makes it, or starts one. It returns when the pack can be sent, after Open
// of the inner Source. An error of that is returned to all requests that waited for it.
func (c *Cache) Open(ctx context.Context, spec *packsource.Spec) (packsource.Pack, error) {
	return c.openKey(ctx, spec.Key(), spec, c.inner)
}

// openKey is Open with a source.
func (c *Cache) openKey(ctx context.Context, key packsource.Key, spec *packsource.Spec,
	source packsource.Source) (packsource.Pack, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, errClosed()
		}
		e := c.index.entries[key]
		if e == nil {
			r := c.joinLocked(ctx, key, spec, source)
			c.mu.Unlock()
			return r.wait()
		}
		if e.check != nil {
			ch := c.checkLocked(e)
			c.mu.Unlock()
			select {
			case <-ch.done:
				if ch.busy != nil {
					return c.pass(ctx, spec, source, ch.busy)
				}
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		c.index.acquire(e, c.now())
		objects, file := e.objects, e.files.data
		c.mu.Unlock()
		p, err := c.openHit(ctx, e, objects, file, isFramed(source))
		if err == nil {
			c.m.hit.Inc()
			return p, nil
		}
		if errors.Is(err, errChanged) {
			c.log.Warn("a pack cache entry was written to by another program", "key", e.key)
			c.distrust(e)
			c.release(e)
			continue
		}
		if isBusy(err) {
			c.release(e)
			return c.pass(ctx, spec, source, err)
		}
		c.log.Warn("cannot read a pack cache entry; the pack is made again", "error", err)
		c.release(e)
		c.remove(e)
	}
}

// Has reports whether Open would find the complete pack. The result is a guess: an entry may turn out to be damaged, or
// be removed at any time.
func (c *Cache) Has(key packsource.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index.entries[key] != nil {
		return true
	}
	f := c.fills[key]
	if f == nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state == complete // about to become an entry
}

// Stats describes the content of the cache, and the requests since it was opened.
type Stats struct {
	Bytes, MaxBytes       int64 // on disk: entries, fills, and removed files with readers; the budget
	Entries, Fills        int   // complete ones, and packs that are being made
	Hits, Misses, Follows int64
}

// Stats returns the current state of the cache.
func (c *Cache) Stats() Stats {
	s := Stats{Hits: counted(c.m.hit), Misses: counted(c.m.miss), Follows: counted(c.m.follow)}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Bytes, s.MaxBytes = c.index.bytes+c.index.zombies+c.filling, c.budgetLocked()
	s.Entries, s.Fills = len(c.index.entries), len(c.fills)
	return s
}

// pass opens the pack without the cache, because an entry that may be valid cannot be read now.
func (c *Cache) pass(ctx context.Context, spec *packsource.Spec, source packsource.Source,
	why error) (packsource.Pack, error) {
	c.m.degraded.WithLabelValues(causeOf(why)).Inc()
	c.m.miss.Inc()
	return source.Open(ctx, spec)
}

// release ends one use of e.
func (c *Cache) release(e *cacheEntry) {
	c.mu.Lock()
	c.index.release(e, c.now())
	if e.gone {
		c.gaugesLocked()
	}
	c.mu.Unlock()
}

// remove removes an entry that cannot be read or trusted.
func (c *Cache) remove(e *cacheEntry) {
	c.mu.Lock()
	var out []removed
	if !e.gone {
		c.index.remove(e)
		out = c.dropLocked([]*cacheEntry{e}, evictCorrupt, nil)
	}
	c.mu.Unlock()
	c.unlink(out)
}

// gaugesLocked updates the gauges.
func (c *Cache) gaugesLocked() {
	c.m.bytes.Set(float64(c.index.bytes + c.index.zombies + c.filling))
	c.m.entries.Set(float64(len(c.index.entries)))
}

// sweepInterval is short, so that probations end in time. A sweep costs almost nothing.
const sweepInterval = time.Second

func (c *Cache) janitor() {
	t := time.NewTicker(sweepInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			c.sweep()
		case <-c.ctx.Done():
			return
		}
	}
}

// sweep removes entries that are too old, or exceed the budget.
func (c *Cache) sweep() {
	c.mu.Lock()
	young, idle := c.index.expire(c.now())
	out := c.dropLocked(young, evictProbation, nil)
	out = c.dropLocked(idle, evictIdle, out)
	out = c.shrinkLocked(out)
	stat := len(c.index.entries) > 0
	c.gaugesLocked()
	c.mu.Unlock()
	c.unlink(out)
	if stat {
		c.aboveFloor()
	}
}

// Close ends all fills, whose readers get an error. Complete entries stay for the next run, and their readers may
// continue. A server that stops gracefully lets its fetches end first.
func (c *Cache) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	c.stop(errClosed())
	c.wg.Wait()
	// The files' times are the order of use for the next run.
	c.mu.Lock()
	used := make(map[packsource.Key]time.Time, len(c.index.entries))
	for k, e := range c.index.entries {
		used[k] = e.used
	}
	c.mu.Unlock()
	var errs []error
	for k, t := range used {
		errs = append(errs, os.Chtimes(c.path(k, dataExt), t, t))
	}
	if err := errors.Join(errs...); err != nil {
		c.log.Debug("cannot record the use of pack cache entries", "error", err)
	}
	return c.lock.Close()
}

// specOf copies a Spec, because a fill may outlive the request that it came with.
func specOf(s *packsource.Spec) *packsource.Spec {
	t := *s
	t.Wants, t.Haves, t.Shallow = slices.Clone(s.Wants), slices.Clone(s.Haves), slices.Clone(s.Shallow)
	t.Tags = slices.Clone(s.Tags)
	return &t
}
