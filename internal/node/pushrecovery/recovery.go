// Package pushrecovery cleans up after pushes whose git receive-pack was killed.
//
// Git removes its lock files and its quarantine however it ends, except after SIGKILL, which the kernel sends when
// memory is short. A lock file that stays makes every later push to its ref fail, and an atomic push can end between
// two refs. The journal has the running pushes, so that both are known, also to the next server.
//
// A lock file is removed only if a killed push of this server can have created it:
//
//   - Its path, content, owner and time match.
//   - The push has no processes any more, and no other push of that time can have created the file.
//   - It stays unchanged for two seconds, in which the repository is not maintained.
//   - A lock file for all refs is a minute old, because its content does not identify the push, and another Git process
//     may hold it. The lock file of a ref contains the ref's new value.
//
// All other lock files stay. FindLock finds the one that blocks a push.
package pushrecovery

import (
	"context"
	"crypto/rand"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// Options configure a Recovery. All fields are required.
type Options struct {
	Journal string          // directory of the journal, which only this server uses
	Runner  *process.Runner // runs Git to complete atomic pushes; nil: they stay incomplete
	Class   process.Class   // class of these commands
	Log     *slog.Logger
	Removed *prometheus.CounterVec // removed files by their kind, and completed pushes
	Delays  Delays                 // the zero value stands for the defaults
}

// Delays are the waiting times of a Recovery. Tests shorten them.
type Delays struct {
	Poll       time.Duration // between two checks whether processes have ended
	Stable     time.Duration // a lock file has to be unchanged for so long
	Shared     time.Duration // a lock file for all refs has to be this old
	Retry      time.Duration // after a lock file could not be removed
	Quarantine time.Duration // a quarantine has to be unused for so long
}

// Recovery knows the pushes that run and cleans up after those that were killed. It is safe for concurrent use.
type Recovery struct {
	Options
	unlink func(path string) error                         // os.Remove, except in tests
	claim  func(common string) (release func(), err error) // keeps maintenance from a repository; nil: there is none

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	earlier []*Push // pushes of earlier servers; read-only after Start

	removing sync.Mutex // held while quarantines are removed, because a partly removed one seems to be in use

	mu      sync.Mutex
	running map[*Push]bool
	killed  map[string][]*Push          // by common directory: pushes that may have left lock files
	claims  map[string]*repositoryClaim // by common directory
}

// Push is one push in the journal.
type Push struct {
	Record
	path string   // in the journal
	file *os.File // nil: this process does not hold the lock

	ended      time.Time              // a time after Git's end; younger files do not belong to this push
	concurrent []*Push                // pushes to the same repository that ran at this time
	lasting    map[string]fs.FileInfo // lock files that an atomic push left; used by its own sweep only
	unlocked   chan struct{}          // closed when no lock file is left
	blocked    chan struct{}          // closed when a lock file could not be removed yet
}

// lockPatience is the maximum time that a push waits for the removal of a killed push's lock files.
const lockPatience = 10 * time.Second

// repositoryClaim keeps maintenance from a repository during all its sweeps. There are several if many pushes were
// killed together.
type repositoryClaim struct {
	sweeps  int
	release func()
}

// New creates a Recovery.
func New(o Options) *Recovery {
	if o.Delays == (Delays{}) {
		o.Delays = Delays{
			Poll: 100 * time.Millisecond, Stable: 2 * time.Second, Shared: time.Minute, Retry: time.Minute,
			Quarantine: 10 * time.Minute,
		}
	}
	r := &Recovery{
		Options: o, unlink: os.Remove,
		running: make(map[*Push]bool), killed: make(map[string][]*Push), claims: make(map[string]*repositoryClaim),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Start reads the journal and begins to clean up after the pushes of earlier servers. claim, unless nil, keeps
// maintenance from a repository, given by its common directory, until release is called. It fails while the repository
// is being maintained. Call Start once, before the first push.
func (r *Recovery) Start(claim func(common string) (release func(), err error)) error {
	r.claim = claim
	var err error
	if r.earlier, err = r.read(); err != nil {
		return err
	}
	for _, p := range r.earlier {
		for _, other := range r.earlier {
			if other != p && other.CommonDir == p.CommonDir {
				p.concurrent = append(p.concurrent, other)
			}
		}
	}
	for _, p := range r.earlier {
		r.startSweep(p)
	}
	return nil
}

func newPush(path string, record Record, ended time.Time) *Push {
	return &Push{Record: record, path: path, ended: ended, unlocked: make(chan struct{}), blocked: make(chan struct{})}
}

// Close stops cleaning up. No push may be running.
func (r *Recovery) Close() {
	r.cancel()
	r.work.Wait()
}

// maxRejected is how many unreadable files are kept.
const maxRejected = 100

// reject moves an unreadable file out of the journal. The lock files of its push may stay.
func (r *Recovery) reject(path string, reason error) {
	dir := r.Journal + ".bad"
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		var kept []os.DirEntry
		if kept, err = os.ReadDir(dir); err == nil && len(kept) < maxRejected {
			err = os.Rename(path, filepath.Join(dir, filepath.Base(path)))
		} else if err == nil {
			err = os.RemoveAll(path)
		}
	}
	r.Removed.WithLabelValues("note").Inc()
	r.Log.Warn("moved an unreadable file out of the push journal", "path", path, "dir", dir, "reason", reason, "error",
		err)
}

// Begin adds a push to the journal, before its Git process is started. First it removes lock files in its way that are
// older than the boot of the machine. Then it waits until those of killed pushes are removed, for up to ten seconds.
// The error is Unavailable if the journal cannot be written.
func (r *Recovery) Begin(ctx context.Context, record Record, id string) (*Push, error) {
	r.removeLocksBeforeBoot(&record)
	r.waitForLocks(ctx, record.CommonDir)
	return r.add(record, id)
}

// Rewrite replaces the record of a push by that of the next transaction of the same process. No transaction may be
// running. Like Begin, it waits for lock files of killed pushes. After an error the push has no record.
func (r *Recovery) Rewrite(ctx context.Context, p *Push, record Record) (*Push, error) {
	r.removeLocksBeforeBoot(&record)
	r.waitForLocks(ctx, record.CommonDir)
	next := newPush(p.path, record, time.Time{})
	next.file = p.file
	r.mu.Lock()
	delete(r.running, p)
	r.running[next] = true
	r.mu.Unlock()
	err := p.file.Truncate(0)
	if err == nil {
		_, err = p.file.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = record.write(p.file)
	}
	if err != nil {
		err = fault.Wrap(fault.Unavailable, "change not accepted: cannot write to the server's state directory", err)
	}
	return next, err
}

// BeginHead adds an update of HEAD to the journal, so that the next server removes HEAD's lock file if this one is
// killed before done is called.
func (r *Recovery) BeginHead(gitDir, commonDir string) (done func(), err error) {
	record := Record{GitDir: gitDir, CommonDir: commonDir, Start: time.Now(), LocksHead: true}
	p, err := r.add(record, rand.Text())
	if err != nil {
		return nil, err
	}
	return func() { r.end(p, true) }, nil
}

func (r *Recovery) add(record Record, id string) (*Push, error) {
	p, err := r.create(id, record)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "push not accepted: cannot write to the server's state directory", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[p] = true
	return p, nil
}

// End removes a push from the journal if Git has ended by itself. If Git was killed, End starts to clean up after it,
// and waits until its lock files are removed, for up to ten seconds.
func (r *Recovery) End(ctx context.Context, p *Push, exited bool) {
	r.end(p, exited)
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockPatience)
	defer cancel()
	p.waitUnlocked(patience)
}

func (r *Recovery) end(p *Push, exited bool) {
	r.mu.Lock()
	delete(r.running, p)
	for other := range r.running {
		if other.CommonDir == p.CommonDir {
			p.concurrent = append(p.concurrent, other)
		}
	}
	r.mu.Unlock()
	if exited {
		p.remove()
		close(p.unlocked)
		return
	}
	p.ended = time.Now()
	p.release()
	r.startSweep(p)
}

// waitUnlocked waits until no lock file of the push is left, and reports whether that is so. It gives up when ctx ends,
// or when a lock file cannot be removed yet.
func (p *Push) waitUnlocked(ctx context.Context) bool {
	select {
	case <-p.unlocked:
		return true
	default:
	}
	select {
	case <-p.unlocked:
		return true
	case <-p.blocked:
	case <-ctx.Done():
	}
	return false
}

func (r *Recovery) waitForLocks(ctx context.Context, common string) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	r.mu.Lock()
	killed := slices.Clone(r.killed[common])
	r.mu.Unlock()
	for _, p := range killed {
		p.waitUnlocked(ctx)
	}
}

// Settled waits a little until no killed push can change refs of a repository any more. The error is Unavailable if one
// still can.
func (r *Recovery) Settled(ctx context.Context, common string) error {
	r.waitForLocks(ctx, common)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.killed[common]) > 0 {
		return fault.Retry(fault.Unavailable, fault.RetryLater,
			"no object was removed, because a push that was interrupted may still be completed; try again")
	}
	return nil
}

// WaitForEarlierPushes waits until no push of an earlier server can change refs any more. Git can outlive a server that
// was killed. It returns the IDs of the pushes that still may when ctx ends.
func (r *Recovery) WaitForEarlierPushes(ctx context.Context) (ids []string) {
	return r.waitFor(ctx, func(*Push) bool { return true })
}

// CompleteAtomicPushes waits until each atomic push of an earlier server is complete or did not begin. It returns the
// IDs of those for which that is not certain when ctx ends.
func (r *Recovery) CompleteAtomicPushes(ctx context.Context) (ids []string) {
	return r.waitFor(ctx, func(p *Push) bool { return p.IsAtomic() })
}

func (r *Recovery) waitFor(ctx context.Context, include func(*Push) bool) (ids []string) {
	for _, p := range r.earlier {
		if include(p) && !p.waitUnlocked(ctx) {
			ids = append(ids, p.id())
		}
	}
	return ids
}

// removed logs and counts the removal of a file of the given kind ("lock", "keep" or "quarantine"), and reports whether
// the file no longer exists.
func (r *Recovery) removed(kind, path string, err error) bool {
	if err != nil && !os.IsNotExist(err) {
		r.Log.Warn("cannot remove a leftover file of a push", "what", kind, "path", path, "error", err)
		return false
	}
	r.Removed.WithLabelValues(kind).Inc()
	r.Log.Info("removed a leftover file of a push", "what", kind, "path", path)
	return true
}
