package receivepack

import (
	"context"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// sweeper removes what pushes leave behind whose git was killed. Git removes its locks and its quarantine however it ends, but for SIGKILL,
// which the kernel sends when memory is short. A lock that is left makes every later push to its ref fail.
//
// A lock is removed if a push that died could have made it (its name, its content, its time), if no process of that push lives, no other push
// of ours that was there at the time and could have made it, and no maintenance, and if it did not change for a while then. A ref's lock says what
// the ref is set to. Other locks could be anybody's: they wait until no git by others is at work in the repository, as far as that can be seen, or
// for an hour.
type sweeper struct {
	dir     string // the journal
	runner  *process.Runner
	log     *slog.Logger
	metrics *Metrics
	unlink  func(path string) error                                      // os.Remove; another one in tests
	holder  func(n note, lock string, since time.Time) (open, near bool) // holders; another one in tests
	pause   time.Duration                                                // how long a lock has to be unchanged
	again   time.Duration                                                // when to try once more to remove a lock that could not be
	idle    time.Duration                                                // how long a quarantine has to be
	poll    time.Duration
	claim   func(common string) (release func(), err error) // keeps maintenance away; nil: there is none

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	earlier []*entry // that servers before this one have left

	removing sync.Mutex // held by the one who removes quarantines: half of one looks as if somebody were at work in it

	looking sync.Mutex // held by the one who looks whether a push is gone

	mu      sync.Mutex
	running map[*entry]bool     // pushes that run
	left    map[string][]*entry // by common directory: entries whose locks may be left
	held    map[string]*hold    // by common directory
}

// hold keeps maintenance away for all at once who sweep a repository: many pushes may have died together.
type hold struct {
	by      int
	release func()
}

const (
	lockPause = 2 * time.Second
	lockAgain = time.Minute
	// foreignAge is how old a lock has to be that may be somebody else's, unless nobody is there who could have it.
	foreignAge     = time.Hour
	quarantineIdle = 10 * time.Minute
	sweepPoll      = 100 * time.Millisecond
	// sweepPatience is how long a push waits for locks that another one has left.
	sweepPatience = 10 * time.Second
)

func newSweeper(dir string, runner *process.Runner, log *slog.Logger, metrics *Metrics) *sweeper {
	w := &sweeper{dir: dir, runner: runner, log: log, metrics: metrics, unlink: os.Remove, holder: holders,
		pause: lockPause, again: lockAgain, idle: quarantineIdle, poll: sweepPoll,
		running: make(map[*entry]bool), left: make(map[string][]*entry), held: make(map[string]*hold)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// begin takes care of what servers before this one have left.
func (w *sweeper) begin() error {
	left, err := readJournal(w.dir, w.aside)
	if err != nil {
		return err
	}
	w.earlier = left
	for _, e := range left {
		for _, other := range left {
			if other != e && other.note.Common == e.note.Common {
				e.beside = append(e.beside, other)
			}
		}
	}
	for _, e := range left {
		w.later(e)
	}
	return nil
}

// maxAside is how many files are kept that cannot be read.
const maxAside = 100

// aside takes a file out of the journal that cannot be read, for who wants to look at it: locks of that push may stay.
func (w *sweeper) aside(path string, why error) {
	dir := w.dir + ".bad"
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		var there []os.DirEntry
		if there, err = os.ReadDir(dir); err == nil && len(there) < maxAside {
			err = os.Rename(path, filepath.Join(dir, filepath.Base(path)))
		} else if err == nil {
			err = os.RemoveAll(path)
		}
	}
	w.metrics.swept.WithLabelValues("note").Inc()
	w.log.Warn("a file that says what a push may have left cannot be read and is set aside", "path", path, "dir", dir, "reason", why, "error", err)
}

func (w *sweeper) close() {
	w.cancel()
	w.work.Wait()
}

// start puts a push into the journal, before its git is started.
func (w *sweeper) start(n note, id string) (*entry, error) {
	e, err := n.write(w.dir, id)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot write to the state directory, so that the push is not taken", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[e] = true
	return e, nil
}

// end is called when git has ended; well: by itself. If it was killed, what it left is removed in the background, and unlocked is closed when that
// has been done for locks.
func (w *sweeper) end(e *entry, well bool) {
	w.mu.Lock()
	delete(w.running, e)
	for other := range w.running {
		if other.note.Common == e.note.Common {
			e.beside = append(e.beside, other)
		}
	}
	w.mu.Unlock()
	if well {
		e.forget()
		close(e.unlocked)
		return
	}
	e.ended = time.Now()
	e.file.Close()
	e.file = nil
	w.later(e)
}

func (w *sweeper) later(e *entry) {
	w.mu.Lock()
	w.left[e.note.Common] = append(w.left[e.note.Common], e)
	w.mu.Unlock()
	w.work.Go(func() { w.sweep(e) })
}

// wait waits until no lock is left of pushes that died, but not for long. The error is Unavailable if one is in the way of the push that cannot be
// removed.
func (w *sweeper) wait(ctx context.Context, n note) error {
	patience := time.NewTimer(sweepPatience)
	defer patience.Stop()
	w.mu.Lock()
	left := slices.Clone(w.left[n.Common])
	w.mu.Unlock()
	for _, e := range left {
		select {
		case <-e.unlocked:
		case <-e.blocked:
			if err := w.blocks(e, n); err != nil {
				return err
			}
		case <-patience.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// blocks tells whether a lock that cannot be removed is in a push's way.
func (w *sweeper) blocks(e *entry, n note) error {
	w.mu.Lock()
	stuck := maps.Clone(e.stuck)
	w.mu.Unlock()
	maps.DeleteFunc(stuck, func(path string, was fs.FileInfo) bool { return !same(path, was) })
	if !n.mayHold(stuck) {
		return nil
	}
	path := slices.Min(slices.Collect(maps.Keys(stuck)))
	if name, err := filepath.Rel(n.Common, path); err == nil {
		path = name
	}
	return fault.New(fault.Unavailable, "a push that died has left %.200q in the repository, which cannot be removed; its administrator has to", path)
}

// settle waits for pushes to servers before this one, and gives those that may still change refs when ctx ends.
func (w *sweeper) settle(ctx context.Context, which func(*entry) bool) (alive []string) {
	for _, e := range w.earlier {
		if !which(e) {
			continue
		}
		select {
		case <-e.unlocked:
		default:
			select {
			case <-e.unlocked:
			case <-e.blocked:
				alive = append(alive, filepath.Base(e.path))
			case <-ctx.Done():
				alive = append(alive, filepath.Base(e.path))
			}
		}
	}
	return alive
}

// sweep removes what one push left.
func (w *sweeper) sweep(e *entry) {
	ok := w.until(w.poll, func() bool { return w.gone(e) }) && w.unlock(e)
	var err error
	if ok {
		err = w.complete(e)
	}
	w.mu.Lock()
	all := slices.DeleteFunc(w.left[e.note.Common], func(other *entry) bool { return other == e })
	if w.left[e.note.Common] = all; len(all) == 0 {
		delete(w.left, e.note.Common)
	}
	w.mu.Unlock()
	close(e.unlocked)
	if ok && err == nil && w.until(max(w.poll, w.idle/120), func() bool { return w.remove(e) }) {
		e.forget()
	}
}

// until asks again and again whether something is so; false: the sweeper was closed before it was.
func (w *sweeper) until(every time.Duration, is func() bool) bool {
	for !is() {
		select {
		case <-time.After(every):
		case <-w.ctx.Done():
			return false
		}
	}
	return true
}

// unlock removes the locks of a push that is gone.
func (w *sweeper) unlock(e *entry) bool {
	if len(e.note.Olds) > 0 && !w.see(e) {
		return false
	}
	for found := e.stale(); len(found) > 0; found = e.stale() {
		alone := func() bool {
			for _, other := range e.beside {
				if other.note.mayHold(found) && !w.gone(other) {
					return false
				}
			}
			return true
		}
		if !w.until(w.poll, alone) || !w.until(w.poll, func() bool { return w.hold(e.note.Common) }) {
			return false
		}
		ok := w.removeLocks(e)
		w.release(e.note.Common)
		if !ok {
			return false
		}
	}
	return true
}

// see notes which locks the push has left: those that stay. One that is there for a moment may be somebody else's, and proves nothing.
func (w *sweeper) see(e *entry) bool {
	if e.seen = e.stale(); len(e.seen) == 0 {
		return true
	}
	select {
	case <-time.After(w.pause):
	case <-w.ctx.Done():
		return false
	}
	e.forgetMoved()
	return true
}

// removeLocks removes the locks of a push that do not change for a while.
func (w *sweeper) removeLocks(e *entry) bool {
	found := e.stale()
	if len(found) == 0 { // another push of the same time has left it, too
		return true
	}
	select {
	case <-time.After(w.pause):
	case <-w.ctx.Done():
		return false
	}
	stuck := make(map[string]fs.FileInfo)
	held := false
	for path, was := range found {
		switch {
		case !same(path, was):
		case e.note.shared(path) && w.foreign(e.note, path, was):
			held = true
		default:
			if err := w.unlink(path); w.removed("lock", path, err) {
				continue
			}
			stuck[path] = was
		}
	}
	return w.block(e, stuck, held)
}

// block notes which locks could not be removed, and waits until it is time to try again. Nobody else has to wait for them.
func (w *sweeper) block(e *entry, stuck map[string]fs.FileInfo, held bool) bool {
	w.mu.Lock()
	e.stuck = stuck
	w.mu.Unlock()
	if len(stuck) == 0 && !held {
		return true
	}
	select {
	case <-e.blocked:
	default:
		close(e.blocked)
	}
	again := w.pause
	if len(stuck) > 0 {
		again = w.again
	}
	select {
	case <-time.After(again):
		return true
	case <-w.ctx.Done():
		return false
	}
}

// foreign tells whether somebody else may have a lock.
func (w *sweeper) foreign(n note, path string, was fs.FileInfo) bool {
	open, near := w.holder(n, path, was.ModTime())
	if at, ok := was.Sys().(*syscall.Stat_t); ok && int(at.Uid) != os.Geteuid() { // whose processes may be hidden from us
		near = true
	}
	return open || near && time.Since(was.ModTime()) < foreignAge
}

// hold keeps maintenance from a repository until each who did so has called release. It reports false while the repository is being maintained.
func (w *sweeper) hold(common string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.held[common]
	if h == nil {
		h = &hold{release: func() {}}
		if w.claim != nil {
			release, err := w.claim(common)
			if err != nil {
				return false
			}
			h.release = release
		}
		w.held[common] = h
	}
	h.by++
	return true
}

func (w *sweeper) release(common string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.held[common]
	if h.by--; h.by == 0 {
		delete(w.held, common)
		h.release()
	}
}

// remove removes what blocks nobody. It reports false if there is something that is still too young.
func (w *sweeper) remove(e *entry) bool {
	w.removing.Lock()
	defer w.removing.Unlock()
	keeps, alive := e.keeps()
	for _, path := range keeps {
		w.removed("keep", path, os.Remove(path))
	}
	if w.others(e) {
		return false
	}
	old, more := e.quarantines(w.idle)
	for _, dir := range old {
		w.removed("quarantine", dir, os.RemoveAll(dir))
	}
	return !more && !alive
}

// gone tells whether nobody lives who took part in a push. One after the other: to look is to take the lock for a moment.
func (w *sweeper) gone(e *entry) bool {
	w.looking.Lock()
	defer w.looking.Unlock()
	return e.gone()
}

// others tells whether pushes run whose quarantine cannot be told from one that is left: there is no limit to how long a hook may take.
func (w *sweeper) others(e *entry) bool {
	for _, other := range e.beside {
		if !w.gone(other) {
			return true
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for other := range w.running {
		if other.note.Common == e.note.Common && !time.Unix(0, other.note.Start).After(e.ended.Add(slack)) {
			return true
		}
	}
	return false
}

// removed says what became of a file that was to be removed, and whether it is gone. what: "lock", "keep", "quarantine".
func (w *sweeper) removed(what, path string, err error) bool {
	if err != nil && !os.IsNotExist(err) {
		w.log.Warn("cannot remove what a push has left", "what", what, "path", path, "error", err)
		return false
	}
	w.metrics.swept.WithLabelValues(what).Inc()
	w.log.Info("removed what a push has left", "what", what, "path", path)
	return true
}

// beforeBoot removes locks that are in a push's way and older than the machine's start: nobody who made them lives. Bounded, for pushes of many refs.
func (w *sweeper) beforeBoot(n note) {
	const most = 10_000
	if len(n.Refs) > most {
		return
	}
	boot := bootTime()
	if boot.IsZero() {
		return
	}
	for path := range n.locks() {
		info, err := os.Lstat(path)
		if err == nil && info.Mode().IsRegular() && info.ModTime().Before(boot.Add(-slack)) {
			w.removed("lock", path, w.unlink(path))
		}
	}
}

// escapeGlob is a path that stands for itself in a pattern.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(filepath.Clean(path))
}
