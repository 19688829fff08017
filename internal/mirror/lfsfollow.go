package mirror

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

const (
	// heldBack is the number of bytes that followers get after the object was verified.
	heldBack = 64 << 10
	// finishBytes is the number of missing bytes up to which a download without followers goes on. It also goes on if
	// less than half of the object is missing, and ends if it still waits for a slot.
	finishBytes = 16 << 20

	wrongTime     = time.Minute      // how long an object is not asked for after the origin sent a wrong one
	maxActions    = 8192             // actions of origins in memory
	maxProven     = 1 << 17          // objects in memory that origins have sent: at most 32 MiB
	actionTime    = 10 * time.Minute // how long one is used if the origin does not say
	actionReserve = 10 * time.Second // one that expires so soon is not used
)

// lfsObjects has the LFS objects of mirrors. It is safe for concurrent use.
type lfsObjects struct {
	m       *Mirrors
	store   *objects.Store
	budget  *lfsBudget
	actions *lru.Cache[actionKey, *origin.LFSAction]
	wrong   *lru.Cache[actionKey, time.Time]  // objects that an origin sent wrongly, with the time
	proven  *lru.Cache[downloadKey, struct{}] // objects that an origin sent, or that a mirror of it has

	mu        sync.Mutex
	downloads map[downloadKey]*download
	slots     map[string]chan struct{} // by host of the origin, and by URL of the repository
}

// actionKey identifies an object of a repository at an origin, by its URL.
type actionKey struct {
	url string
	lfs.Object
}

// downloadKey identifies an object at an origin, by its host. Other origins cannot delay it.
type downloadKey struct {
	host string
	lfs.Object
}

func newLFSObjects(m *Mirrors, store *objects.Store, limit int64) *lfsObjects {
	l := &lfsObjects{m: m, store: store, budget: newLFSBudget(m, store, limit),
		downloads: make(map[downloadKey]*download), slots: make(map[string]chan struct{})}
	l.actions, _ = lru.New[actionKey, *origin.LFSAction](maxActions) // the sizes are valid
	l.wrong, _ = lru.New[actionKey, time.Time](maxActions)
	l.proven, _ = lru.New[downloadKey, struct{}](maxProven)
	return l
}

// known returns an action that the origin gave for an object, or nil. The origin has the object in this repository.
func (l *lfsObjects) known(url string, o lfs.Object) *origin.LFSAction {
	key := actionKey{url, o}
	a, _ := l.actions.Get(key)
	if a != nil && !a.IsValid(l.m.now().Add(actionReserve)) {
		l.actions.Remove(key)
		return nil
	}
	return a
}

// remember keeps an action until it expires.
func (l *lfsObjects) remember(url string, o lfs.Object, a *origin.LFSAction) {
	if a.Expires.IsZero() {
		a.Expires = l.m.now().Add(actionTime)
	}
	l.actions.Add(actionKey{url, o}, a)
}

// touch notes the use of an object of a mirror.
func (l *lfsObjects) touch(ctx context.Context, path git.RepoPath, o lfs.Object) {
	if r, release, err := l.m.node.LFSRepository(ctx, path); err == nil {
		l.store.Touch(r, o, l.m.now())
		release()
	}
}

// link adds an object to a mirror without a download, if the node has it from the same origin. It reports whether it
// did. The word of an origin is not enough for an object of own repositories or of other origins: it may not have it.
func (l *lfsObjects) link(ctx context.Context, x *exchange, o lfs.Object) (bool, error) {
	if err := l.budget.measure(l.m.ctx); err != nil { // notes what mirrors have
		return false, err
	}
	key := downloadKey{x.rule.Origin.Host(), o}
	if _, ok := l.proven.Get(key); !ok {
		return false, nil
	}
	r, release, err := l.m.node.LFSRepository(ctx, x.mirror.path)
	if err != nil {
		return false, err
	}
	defer release()
	linked, err := l.store.Link(r, o)
	if err == nil && !linked { // removed from the cache
		l.proven.Remove(key)
	}
	return linked, err
}

// download is one download of an object, into a part.
type download struct {
	growing
	l      *lfsObjects
	key    downloadKey
	server origin.LFSRepository // of the caller who began it
	url    string               // of the repository at the origin
	cancel context.CancelFunc

	// Used only by the goroutine.
	action   *origin.LFSAction // nil: to be asked for
	etag     string            // of the part
	reserved int64             // bytes of the cache
	kept     bool              // a mirror has the object

	// Guarded by lfsObjects.mu.
	followers int
	paths     []git.RepoPath // of the mirrors that get the object

	part *objects.Part // nil: none yet; guarded by mu
}

// send sends an object to a client while it is downloaded, or links that of another mirror. If the origin refuses it,
// only the caller with whose credential it was asked gets the refusal. A wrong object of one repository is not the
// fault of another.
func (l *lfsObjects) send(ctx context.Context, x *exchange, d lfs.Download, a *origin.LFSAction) error {
	if err := x.response.StartBulk(true); err != nil {
		return err
	}
	x.response = startedBulk{x.response}
	for try := 1; ; try++ {
		linked, err := l.link(ctx, x, d.Object)
		if err != nil {
			return err
		}
		if linked {
			return x.sendObject(ctx, d)
		}
		y, leads, err := l.join(x, d.Object, a)
		if err != nil {
			return err
		}
		if y == nil {
			continue
		}
		x.outcome = node.Outcome{Command: node.CommandLFSDownload, Mirror: node.MirrorRelay,
			LFS: node.LFSOutcome{Objects: 1, Cache: "follow"}}
		if leads {
			x.outcome.LFS.Cache = "miss"
		}
		err = y.send(ctx, x, d)
		l.leave(y)
		isOfOther := isOfCaller(err) || errors.Is(err, origin.ErrWrongObject) && y.url != x.mirror.originURL()
		if err == nil || x.outcome.LFS.Bytes > 0 || leads || try == maxTries || !isOfOther {
			return err
		}
	}
}

// startedBulk is a response whose StartBulk was called.
type startedBulk struct{ node.ResponseWriter }

func (startedBulk) StartBulk(bool) error { return nil }

// ReadFrom lets the response have files, so that the kernel can copy them.
func (r startedBulk) ReadFrom(src io.Reader) (int64, error) { return io.Copy(r.ResponseWriter, src) }

// join returns the download of an object, with the caller as a follower. leads reports whether it began for this
// caller. y is nil if a download has ended since the caller called link.
func (l *lfsObjects) join(x *exchange, o lfs.Object, a *origin.LFSAction) (y *download, leads bool, err error) {
	key := downloadKey{x.rule.Origin.Host(), o}
	url := x.mirror.originURL()
	if at, ok := l.wrong.Get(actionKey{url, o}); ok && l.m.now().Sub(at) < wrongTime {
		return nil, false, wrongObject(key, origin.ErrWrongObject)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	y = l.downloads[key]
	if y == nil && l.proven.Contains(key) {
		return nil, false, nil
	}
	if leads = y == nil; leads {
		if l.m.ctx.Err() != nil {
			return nil, false, fault.Retry(fault.Unavailable, fault.RetrySoon, "the server is shutting down")
		}
		y = &download{l: l, key: key, server: x.server(), url: url, action: a}
		y.users, y.free = 1, y.close
		l.downloads[key] = y
		ctx, cancel := context.WithCancel(l.m.ctx)
		y.cancel = cancel
		l.m.running.Go(func() { y.run(ctx) })
	}
	if !slices.Contains(y.paths, x.mirror.path) {
		y.paths = append(y.paths, x.mirror.path)
	}
	y.followers++
	y.acquire()
	return y, leads, nil
}

// leave removes a follower. A download without followers ends, unless it has begun and is nearly done.
func (l *lfsObjects) leave(y *download) {
	l.mu.Lock()
	y.followers--
	if y.followers == 0 {
		file, size, ended, _ := y.state()
		if left := y.key.Size - size; !ended && (file == nil || left > finishBytes && left > size) {
			y.cancel()
			l.removeLocked(y) // later callers begin another one
		}
	}
	l.mu.Unlock()
	y.release()
}

// removeLocked lets later requests begin a new download. The caller holds the lock.
func (l *lfsObjects) removeLocked(y *download) {
	if l.downloads[y.key] == y {
		delete(l.downloads, y.key)
	}
}

func (y *download) close() {
	if y.part != nil {
		_ = y.part.Close()
	}
}

// state returns the file, its size, and whether and how the download has ended.
func (y *download) state() (file *os.File, size int64, ended bool, err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.part != nil {
		file, size = y.part.File(), y.part.Size()
	}
	return file, size, y.ended, y.err
}

// send sends the part to a client while it grows. The last bytes follow when the object is verified, so that a wrong
// one does not look complete.
func (y *download) send(ctx context.Context, x *exchange, d lfs.Download) error {
	end := d.Size
	if d.Length >= 0 {
		end = min(end, d.Offset+d.Length)
	}
	start, isBegun, pos := time.Now(), false, d.Offset
	return y.follow(ctx, nil, func() (done bool, err error) {
		file, size, ended, err := y.state()
		if ended && err != nil {
			return true, err
		}
		ready := min(size, end)
		if !ended {
			ready = min(size, end-heldBack)
		}
		if !isBegun && (ready >= pos+heldBack || ended) { // a small wrong answer gets a status
			isBegun = true
			x.originTime += time.Since(start)
			x.response.SetLength(end - d.Offset)
		}
		if isBegun && ready > pos {
			n, err := sendFile(x.response, file, pos, ready)
			x.outcome.LFS.Bytes += n
			if err != nil {
				return true, err
			}
			pos = ready
		}
		return ended, nil
	})
}
