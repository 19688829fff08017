// Package proctree measures a server together with what it has started: CPU, memory and disk of both at one moment and
// under one name, so that a graph shows what a request costs in all. Git's processes do most of the work, and their own
// children much of it, so they count while they run and not only when they have ended: each look reads /proc for the
// server's children, and for the processes of its session that descend from it. What a child has started and has left
// that session (setsid(2)) is not seen while it runs. Page cache, pressure and network are the cgroup's, the machine's
// and the network namespace's: the kernel tells no less.
//
// CPU and disk of a process that has ended come from who waited for it (Ended), those of what nobody told of from the
// kernel's account of the server's children. Sums never go back: while a process passes from the one to the other it
// may be missing, and the sum stands still.
package proctree

import (
	"log/slog"
	"maps"
	"os"
	"sync"
	"syscall"
	"time"
)

// Parts of the tree. Who starts a program of another kind names it in Options.
const (
	Server = "server"
	Git    = "git"   // git, hooks, and what they started
	Other  = "other" // ended without having been told of
)

// Options of a Tree.
type Options struct {
	// Workers are the commands of this program that it starts itself, by the part that they are. A child of the server
	// that is another program is Git's.
	Workers map[string]string
	Log     *slog.Logger
}

// Tree is the process that it was made in, and what it has started. It is safe for concurrent use.
type Tree struct {
	workers map[string]string
	cgroup  ownCgroup
	self    string // the name of the program, as the kernel has it
	log     *slog.Logger
	metrics *metrics

	// held for a step: whoever waits for a process must not wait for a look, which may hang with a process that does
	mu    sync.Mutex
	ended map[string]use // by part

	looking sync.Mutex     // taken before mu
	shown   map[string]use // what was told last
	last    snapshot
	at      time.Time // of last
	cut     int       // looks that met more processes than they may read
}

// use is what processes have used. It only grows.
type use struct {
	user, system  time.Duration
	read, written int64 // bytes, from and to disks
}

func (u use) plus(v use) use {
	return use{u.user + v.user, u.system + v.system, u.read + v.read, u.written + v.written}
}

func (u use) minus(v use) use {
	return use{max(u.user-v.user, 0), max(u.system-v.system, 0), max(u.read-v.read, 0), max(u.written-v.written, 0)}
}

// atLeast is u where it has grown since v, else v.
func (u use) atLeast(v use) use {
	return use{max(u.user, v.user), max(u.system, v.system), max(u.read, v.read), max(u.written, v.written)}
}

// running is what one part holds now.
type running struct {
	processes       int
	anonymous, file int64 // bytes of memory: its own; of files and shared
	used            use   // since the processes that run began
	// bytes written, but deleted before they reached a disk; the kernel adds those of ended children to their parent's
	cancelled int64
}

func (r *running) add(v running) {
	r.processes += v.processes
	r.anonymous += v.anonymous
	r.file += v.file
	r.used = r.used.plus(v.used)
	r.cancelled += v.cancelled
}

type snapshot struct {
	now       map[string]running
	total     map[string]use // by part
	cancelled int64          // of all
	took      time.Duration
}

// New makes the tree of this process. Call it before the process moves to another cgroup: the one it is in now is what
// is measured.
func New(o Options) *Tree {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t := &Tree{workers: o.Workers, cgroup: findCgroup(), self: ownName(), log: o.Log, ended: make(map[string]use),
		shown: make(map[string]use)}
	t.metrics = newMetrics(t)
	return t
}

// Ended counts a process that was waited for. It does not wait for a look.
func (t *Tree) Ended(part string, state *os.ProcessState) {
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended[part] = t.ended[part].plus(fromRusage(usage))
}

// blockSize is the unit of ru_inblock and ru_oublock in bytes, whatever the disk has (getrusage(2); task_io_get_inblock
// in Linux).
const blockSize = 512

func fromRusage(r *syscall.Rusage) use {
	return use{
		user: time.Duration(r.Utime.Nano()), system: time.Duration(r.Stime.Nano()),
		read: int64(r.Inblock) * blockSize, written: int64(r.Oublock) * blockSize,
	}
}

func rusage(who int) use {
	var r syscall.Rusage
	if syscall.Getrusage(who, &r) != nil {
		return use{}
	}
	return fromRusage(&r)
}

// fresh is how long a look is good for: several who ask at once cost one.
const fresh = 500 * time.Millisecond

// look tells what there is. First what has ended is read and then what runs, so that nothing is counted twice.
func (t *Tree) look() (s snapshot, cut int) {
	t.looking.Lock()
	defer t.looking.Unlock()
	begin := time.Now()
	if begin.Sub(t.at) < fresh {
		return t.last, t.cut
	}
	children := rusage(syscall.RUSAGE_CHILDREN)
	t.mu.Lock()
	s = snapshot{total: maps.Clone(t.ended)}
	t.mu.Unlock()
	for _, used := range s.total {
		children = children.minus(used)
	}
	s.total[Other] = children
	var whole bool
	if s.now, whole = t.scan(); !whole {
		t.cut++
		t.log.Debug("there are more processes than are looked at: their CPU, memory and disk are not all counted", "most",
			maxProcesses)
	}
	own := s.now[Server]
	own.used = rusage(syscall.RUSAGE_SELF)
	s.now[Server] = own
	for part, r := range s.now {
		s.total[part] = s.total[part].plus(r.used)
		s.cancelled += r.cancelled
	}
	s.cancelled = max(s.cancelled, t.last.cancelled)
	for part, used := range s.total {
		s.total[part] = used.atLeast(t.shown[part])
		t.shown[part] = s.total[part]
	}
	for part, used := range t.shown {
		s.total[part] = used
	}
	s.took = time.Since(begin)
	t.last, t.at = s, time.Now()
	return s, t.cut
}
