// Package packcache keeps and shares the packs that another packsource.Source makes, within a limit of space.
//
// A pack is a pure function of its Spec's Key, so an entry is never stale. Entries leave only to make room. An entry is
// a file of framed bytes exactly as they are sent to a client. On a hit the kernel copies the file to the connection.
//
// The first request for a key starts a fill: one goroutine takes the pack from the inner Source and writes it to a
// file. All readers, including the first, read that file as it grows. A fill continues while it has readers, and for
// Options.Grace after the last one left.
//
// # No fetch fails because of the cache
//
// If the disk is full, the fill evicts other entries. If that does not help, or the disk fails, the fill continues
// without its file. Its current readers read the rest of the file, and then a window of a few hundred kilobytes in
// memory. The slowest reader moves the window. Such a fill gets no new readers and is not kept. A stored entry that
// cannot be opened or trusted is removed, and the pack is made again.
//
// If the inner Source fails, Open or Send returns its error to all readers, and the next request starts again.
//
// # Eviction
//
// An entry leaves if it is not requested for MaxIdle. It also leaves if the byte budget or the free-space floor needs
// room: entries on probation first, then the least recently used, and those with readers last. If it was requested only
// once, it leaves at the end of its Probation. That is shorter than the kernel's delay before it writes dirty pages (30
// s on Linux, from the first write). So most packs that are requested only once never reach the disk. A limited memory
// of keys lets a key that returns later skip probation.
//
// # Library
//
// If the inner Source knows where the objects of a pack are (packsource.Indexed), the cache keeps this index with the
// pack. The index is written after the readers got the end of the pack. If that fails, the entry has no index. The
// cache is a packsource.Library of these entries: the inner Source borrows packs to compose others from them. A
// borrowed entry stays until it is closed. Borrowing does not count as a request, so an entry that is only borrowed
// leaves like an unused one.
//
// # Format
//
// The directory holds
//
//	lock           locked (flock) by the process that uses the directory; its number inside, for people
//	tmp/fill-N     fills; swept at start
//	ab/KEY.pack    an entry: nothing but side-band-1 pkt-lines (gitprotocol-pack(5)) of at most 65520 bytes each, which
//	               carry the pack; no flush packet, no other band
//	ab/KEY.index   what WriteIndex of packsource.Indexed wrote; missing if the pack has no index
//	ab/KEY.meta    the sidecar of both
//
// where KEY is the packsource.Key in 64 lower-case hexadecimal digits and ab its first two. Directories have mode 0700,
// files 0600. The sidecar is text, seven or nine lines ending in newlines:
//
//	packhorse cache entry 3   2 if there is no index
//	key KEY
//	repository "NAME"      packsource.Repository.Incarnation, quoted as in Go
//	length BYTES           of the data file, decimal
//	objects COUNT          in the pack, decimal; 0 if not known
//	crc32c CHECKSUM        CRC-32C of the data file, 8 hexadecimal digits
//	index length BYTES     of the index, decimal; this line and the next are missing if there is no index
//	index crc32c CHECKSUM  CRC-32C of the index, 8 hexadecimal digits
//	sum CHECKSUM           CRC-32C of the lines before this one, 8 hexadecimal digits
//
// The index and then the sidecar are written before the data file gets its name by rename. The cache syncs nothing: an
// entry of an earlier run is read completely and compared with its sidecar before its first use. The same holds for an
// entry whose files another program has written to, which shows in their sizes and times. At the start, a data file
// without a sidecar is removed, and so is a sidecar or an index without a data file.
//
// # Damaged repositories
//
// A pack made from a damaged repository is as damaged as its source. When damage is found, Drop removes the
// repository's entries, and packs that are still being made are not kept.
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

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/packsource"
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
	// Disk budget in bytes, twice the largest pack kept; 0: 10 GiB or a tenth of the file system, the smaller.
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

	Metrics *Metrics         // nil: not collected
	Log     *slog.Logger     // nil: slog.Default
	Now     func() time.Time // nil: time.Now. For ages only; a fill's grace runs on real time.
}

// Cache is a packsource.Source. Lock order: mu, then the mu of a fill. Neither is held during I/O or a call of a
// reader's Output.
type Cache struct {
	inner packsource.Source
	m     *Metrics
	log   *slog.Logger
	now   func() time.Time
	sys   system

	dir       string
	max, low  int64 // budget and free-space floor
	maxIdle   time.Duration
	probation time.Duration
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
		inner: inner, m: o.Metrics, log: o.Log, now: o.Now, sys: sys, dir: dir,
		max: o.MaxBytes, low: o.MinFree,
		maxIdle:   cmp.Or(o.MaxIdle, DefaultMaxIdle),
		probation: cmp.Or(o.Probation, DefaultProbation),
		grace:     cmp.Or(o.Grace, DefaultGrace),
		verifying: make(chan struct{}, runtime.GOMAXPROCS(0)),
		index:     newIndex(),
		fills:     make(map[packsource.Key]*fill),
		unlinking: make(map[packsource.Key]chan struct{}),
	}
	if c.m == nil {
		c.m = NewMetrics()
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
	key := spec.Key()
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
			r := c.joinLocked(ctx, key, spec)
			c.mu.Unlock()
			return r.wait()
		}
		if e.check != nil {
			ch := c.checkLocked(e)
			c.mu.Unlock()
			select {
			case <-ch.done:
				if ch.busy != nil {
					return c.pass(ctx, spec, ch.busy)
				}
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		c.index.acquire(e, c.now())
		objects, file := e.objects, e.files.data
		c.mu.Unlock()
		p, err := c.openHit(ctx, e, objects, file)
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
			return c.pass(ctx, spec, err)
		}
		c.log.Warn("cannot read a pack cache entry; the pack is made again", "error", err)
		c.drop(e)
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
	s := Stats{MaxBytes: c.max, Hits: counted(c.m.hit), Misses: counted(c.m.miss), Follows: counted(c.m.follow)}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Bytes, s.Entries, s.Fills = c.index.bytes+c.index.zombies+c.filling, len(c.index.entries), len(c.fills)
	return s
}

// pass opens the pack without the cache, because an entry that may be valid cannot be read now.
func (c *Cache) pass(ctx context.Context, spec *packsource.Spec, why error) (packsource.Pack, error) {
	c.m.degraded.WithLabelValues(causeOf(why)).Inc()
	c.m.miss.Inc()
	return c.inner.Open(ctx, spec)
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

// drop removes an entry that cannot be read and ends the caller's use of it.
func (c *Cache) drop(e *cacheEntry) {
	c.mu.Lock()
	var out []removed
	if !e.gone {
		c.index.remove(e)
		out = c.dropLocked([]*cacheEntry{e}, evictCorrupt, nil)
	}
	c.index.release(e, c.now())
	c.gaugesLocked()
	c.mu.Unlock()
	c.unlink(out)
}

// gaugesLocked updates the gauges.
func (c *Cache) gaugesLocked() {
	c.m.bytes.Set(float64(c.index.bytes + c.index.zombies + c.filling))
	c.m.entries.Set(float64(len(c.index.entries)))
	c.m.indexBytes.Set(float64(c.index.tails))
	c.m.borrowed.Set(float64(c.index.borrowed))
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
	young, idle := c.index.expire(c.now(), c.probation, c.maxIdle)
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
