package packcache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

const fillPrefix = "fill-"

type fillState uint8

const (
	filling fillState = iota
	complete
	failed
)

// fill is a pack being made. One goroutine, run, takes it from the inner Source and publishes it to the readers.
type fill struct {
	c      *Cache
	key    packsource.Key
	spec   *packsource.Spec
	source packsource.Source
	ctx    context.Context
	cancel context.CancelFunc
	opened chan struct{} // closed when the inner Open has returned: openErr is valid
	done   chan struct{} // closed when run has released everything
	room   chan struct{} // has a token when the window may have room

	openErr error

	shape shape

	// Used only by run.
	temp    string // name of the file; "" if it has none
	crc     uint32
	started time.Time

	// Guarded by Cache.mu.
	reserved int64       // bytes of Cache.filling
	kept     bool        // requested more than once, or expected to be: the entry skips probation
	discard  bool        // the repository's entries were dropped: no entry is made of it
	entry    *cacheEntry // set when the pack is complete and stored
	zombie   int64       // bytes of index.zombies
	quits    int         // number of times that the last reader has left

	// Guarded by mu. Readers come and go under both locks.
	mu       sync.Mutex
	state    fillState
	settled  bool  // run does not need the file any more
	err      error // why it failed
	readers  map[*follower]struct{}
	file     *os.File // holds the bytes up to stored; nil if there are none
	stored   int64
	length   int64    // bytes published, always at a packet boundary; stored and the window's
	degraded bool     // the rest goes through the window
	window   []*chunk // from the slowest reader's position to length
	progress progress
	info     packsource.Info
	grace    *time.Timer
}

// windowChunks is the maximum size of the window in buffers of 64 KiB.
const windowChunks = 8

// chunk is a part of the window: whole packets.
type chunk struct {
	start int64
	n     int
	buf   *buffer
}

func (k *chunk) end() int64 { return k.start + int64(k.n) }

// joinLocked creates a reader of the fill for a key, and the fill if there is none. The caller holds c.mu, and
// afterwards calls wait of the reader.
func (c *Cache) joinLocked(ctx context.Context, key packsource.Key, spec *packsource.Spec,
	source packsource.Source) *follower {
	r := c.beginLocked(ctx, key, spec, source)
	switch r.result {
	case packsource.Miss:
		c.m.miss.Inc()
	case packsource.Hit:
		c.m.hit.Inc()
	default:
		c.m.follow.Inc()
	}
	return r
}

// beginLocked is joinLocked for a fill without a request.
func (c *Cache) beginLocked(ctx context.Context, key packsource.Key, spec *packsource.Spec,
	source packsource.Source) *follower {
	r := &follower{ctx: ctx, wake: make(chan struct{}, 1), result: packsource.Follow}
	f := c.fills[key]
	if f == nil {
		f = &fill{
			c: c, key: key, spec: specOf(spec), source: source, started: time.Now(),
			opened: make(chan struct{}), done: make(chan struct{}), room: make(chan struct{}, 1),
			readers: make(map[*follower]struct{}),
		}
		if isFramed(source) {
			f.shape = shapeOf(spec)
		}
		f.kept = c.index.skipsProbation(key, f.shape)
		// The first reader's request accounts for git's cost.
		f.ctx, f.cancel = context.WithCancel(inflight.Continue(ctx, c.ctx))
		c.fills[key] = f
		r.result = packsource.Miss
		c.wg.Go(f.run)
	} else {
		f.kept = true
		c.index.popular.add(f.shape, c.now())
	}
	r.f = f
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers[r] = struct{}{}
	if f.grace != nil {
		f.grace.Stop()
	}
	if r.result == packsource.Miss {
		return r
	}
	if f.state == complete { // about to become an entry
		r.result = packsource.Hit
	}
	r.shown = f.progress.latest()
	return r
}

// run makes the pack. When it ends, the inner pack is closed, and the file is an entry or was removed.
func (f *fill) run() {
	defer close(f.done)
	defer f.cancel()
	defer f.rescue()
	pack, err := f.source.Open(f.ctx, f.spec)
	if err != nil {
		f.openErr = f.cause(err)
		f.fail(f.openErr, packsource.Info{})
		close(f.opened)
		return
	}
	defer pack.Close()
	info := pack.Info() // without the lock, because the Source may panic
	f.mu.Lock()
	f.info = info
	f.mu.Unlock()
	if err = f.createFile(); err != nil {
		err = f.degrade(err)
	}
	close(f.opened)
	if err == nil {
		err = pack.Send(f.ctx, (*sink)(f))
	}
	if err == nil && f.length == 0 {
		err = fault.New(fault.Internal, "the pack is empty")
	}
	if err != nil {
		if fault.Is(err, fault.Corrupt) {
			f.c.Drop(f.spec.Repo.Incarnation, Damaged)
		}
		f.fail(f.cause(err), pack.Info())
		return
	}
	f.complete(pack)
}

// rescue turns a panic of the inner Source into an error of this fill, so that it does not end the server. The Source
// is called without a lock.
func (f *fill) rescue() {
	v := recover()
	if v == nil {
		return
	}
	f.logPanic(v)
	f.mu.Lock()
	settled := f.settled
	f.mu.Unlock()
	if settled {
		return
	}
	err := fault.New(fault.Internal, "the pack could not be made")
	f.fail(err, packsource.Info{})
	select {
	case <-f.opened:
	default:
		f.openErr = err
		close(f.opened)
	}
}

// logPanic logs a panic of the inner Source.
func (f *fill) logPanic(v any) {
	f.c.log.Error("panic while a pack was made", "key", f.key, "panic", v, "stack", string(debug.Stack()))
}

// cause returns the error for the readers.
func (f *fill) cause(err error) error {
	if f.c.ctx.Err() != nil {
		return context.Cause(f.c.ctx)
	}
	if fault.KindOf(err) == fault.Cancelled { // the current readers have not cancelled it
		return &fault.Error{Kind: fault.Unavailable, Msg: "the making of the pack was given up; try again",
			RetryAfter: fault.RetrySoon, Err: err}
	}
	return err
}

// createFile makes the file, evicting entries if there is no room for it.
func (f *fill) createFile() error {
	c := f.c
	c.mu.Lock()
	c.fillSeq++
	name := filepath.Join(c.dir, tempName, fmt.Sprint(fillPrefix, c.fillSeq))
	c.mu.Unlock()
	file, err := c.sys.create(name)
	for disk.IsFull(err) && c.evictIdle(makeRoom) {
		file, err = c.sys.create(name)
	}
	if errors.Is(err, os.ErrNotExist) { // another process has removed the directory
		if err = os.MkdirAll(filepath.Dir(name), 0o700); err == nil {
			file, err = c.sys.create(name)
		}
	}
	if err != nil {
		return err
	}
	f.temp = name
	f.mu.Lock()
	f.file = file
	f.mu.Unlock()
	return nil
}

// complete makes the file of a pack an entry. Before that, the readers are notified of the end.
func (f *fill) complete(pack packsource.Pack) {
	c, info := f.c, pack.Info()
	c.mu.Lock()
	f.mu.Lock()
	// If this fill was abandoned a moment ago, it may have a successor, which then makes the entry. If it is registered
	// here, it stays registered until it settles, because complete fills are not abandoned.
	keep := !f.degraded && !f.discard && c.fills[f.key] == f
	f.state, f.info = complete, info
	f.wakeLocked()
	f.mu.Unlock()
	c.mu.Unlock()
	c.m.seconds.Observe(time.Since(f.started).Seconds())
	if !keep {
		f.settle(nil)
		return
	}
	e, err := c.persist(f, pack, info.Objects)
	f.temp = "" // renamed or removed
	if err != nil {
		c.log.Warn("cannot keep a pack in the pack cache", "error", err)
		c.m.degraded.WithLabelValues(causeOf(err)).Inc()
	}
	f.settle(e)
}

// fail ends the fill with an error for all its readers. No reader joins it afterwards.
func (f *fill) fail(err error, info packsource.Info) {
	c := f.c
	c.mu.Lock()
	f.detachLocked()
	c.mu.Unlock()
	f.mu.Lock()
	f.state, f.err, f.info = failed, err, info
	f.window = nil // a reader may still use a chunk, so its buffer is not reused
	f.wakeLocked()
	f.mu.Unlock()
	f.settle(nil)
}

// detachLocked prevents new readers. The caller holds c.mu.
func (f *fill) detachLocked() {
	if f.c.fills[f.key] == f {
		delete(f.c.fills, f.key)
	}
}

// settle ends the fill's accounts, and puts the entry, if there is one, in its place.
func (f *fill) settle(e *cacheEntry) {
	c := f.c
	f.removeTemp()
	var out []removed
	c.mu.Lock()
	f.detachLocked()
	f.mu.Lock()
	f.settled = true
	if f.grace != nil {
		f.grace.Stop()
	}
	if e != nil && f.discard { // dropped after complete checked
		out = c.dropLocked([]*cacheEntry{e}, evictDropped, nil)
		e = nil
	}
	if e != nil {
		c.filling -= f.reserved
		f.reserved = 0
		e.refs = len(f.readers)
		f.entry = e
		c.index.add(e, f.kept || !c.probation, c.now())
		out = c.shrinkLocked(nil)
	} else {
		f.forgetLocked()
		c.index.ghosts.Add(f.key, struct{}{})
	}
	file := f.takeFileLocked()
	f.mu.Unlock()
	c.gaugesLocked()
	c.mu.Unlock()
	c.unlink(out)
	f.closeFile(file)
}

func (f *fill) removeTemp() {
	if f.temp == "" {
		return
	}
	if err := os.Remove(f.temp); err != nil {
		f.c.log.Warn("cannot remove a pack cache file", "error", err)
	}
	f.temp = ""
}

// forgetLocked accounts the fill's bytes on disk as unreachable. The caller holds c.mu.
func (f *fill) forgetLocked() {
	f.c.filling -= f.reserved
	f.c.index.zombies += f.reserved
	f.zombie += f.reserved
	f.reserved = 0
}

// takeFileLocked returns the file once it is not needed any more, for closeFile. The caller holds f.mu.
func (f *fill) takeFileLocked() *os.File {
	if len(f.readers) > 0 && !(f.degraded && f.slowestLocked() >= f.stored) || !f.settled && !f.degraded {
		return nil
	}
	file := f.file
	f.file = nil
	return file
}

// closeFile closes the result of takeFileLocked.
func (f *fill) closeFile(file *os.File) {
	if file == nil {
		return
	}
	file.Close()
	c := f.c
	c.mu.Lock()
	c.index.zombies -= f.zombie
	f.zombie = 0
	c.gaugesLocked()
	c.mu.Unlock()
}

// slowestLocked returns the position of the slowest reader, or the end if there is none. The caller holds f.mu.
func (f *fill) slowestLocked() int64 {
	pos := f.length
	for r := range f.readers {
		pos = min(pos, r.pos)
	}
	return pos
}

// wakeLocked wakes waiting readers. The caller holds f.mu.
func (f *fill) wakeLocked() {
	for r := range f.readers {
		if r.waiting {
			r.waiting = false
			signal(r.wake)
		}
	}
}

// signal puts a token into a channel of capacity one, unless it has one.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// abandon ends a fill without readers, unless one has joined since the nth time that the last one left.
func (f *fill) abandon(nth int) {
	c := f.c
	c.mu.Lock()
	f.mu.Lock()
	idle := len(f.readers) == 0 && f.quits == nth && f.state == filling
	f.mu.Unlock()
	if idle {
		f.detachLocked()
	}
	c.mu.Unlock()
	if idle {
		f.cancel()
	}
}
