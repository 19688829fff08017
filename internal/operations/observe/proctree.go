package observe

import (
	"log/slog"
	"maps"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Parts of the tree. TreeOptions can name further ones.
const (
	PartServer = "server"
	PartGit    = "git"   // git, hooks, and their children
	PartOther  = "other" // ended without a call of Ended
)

// TreeOptions configure a ProcessTree.
type TreeOptions struct {
	// Workers maps commands of this program that it starts itself to their part, and Programs the names of other
	// programs. A child of the server that runs any other program belongs to PartGit.
	Workers, Programs map[string]string
	Registerer        prometheus.Registerer // nil is valid
	Log               *slog.Logger
}

// ProcessTree measures this process together with all that it starts. It is safe for concurrent use.
//
// CPU, memory and disk of all of them have one moment and one name, so that a graph shows the total cost. Git's
// processes and their children do most of the work, so running processes count as well. A scan reads /proc for the
// server's children and their descendants in its session. A descendant that has left the session (setsid(2)) is not
// seen while it runs. Page cache and pressure are those of the cgroup and the machine.
//
// CPU and disk of ended processes are reported by the code that waited for them (Ended). Those of others come from the
// kernel's account of the server's children. Sums never decrease: while a process moves from one account to the other
// it may be missing, and the sum stays the same.
type ProcessTree struct {
	workers  map[string]string // by command
	programs map[string]string // by name, as the kernel has it
	cgroup   ownCgroup
	self     string // the name of the program, as the kernel has it
	log      *slog.Logger
	metrics  descriptions

	// held for short steps only, because a scan may hang with a process
	mu    sync.Mutex
	ended map[string]use // by part

	looking sync.Mutex     // taken before mu
	shown   map[string]use // last reported values
	last    snapshot
	at      time.Time // of last
}

// use is the total resource use of processes. It never decreases.
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

// atLeast returns the maximum of u and v for each field.
func (u use) atLeast(v use) use {
	return use{max(u.user, v.user), max(u.system, v.system), max(u.read, v.read), max(u.written, v.written)}
}

// running is the current resource use of one part.
type running struct {
	processes       int
	anonymous, file int64 // bytes of memory: its own; of files and shared
	used            use   // since the processes that run began
}

func (r *running) add(v running) {
	r.processes += v.processes
	r.anonymous += v.anonymous
	r.file += v.file
	r.used = r.used.plus(v.used)
}

type snapshot struct {
	now   map[string]running
	total map[string]use // by part
}

// maxName is the length to which Linux cuts the name of a program (proc_pid_comm(5)).
const maxName = 15

// NewProcessTree returns the tree of this process.
func NewProcessTree(o TreeOptions) *ProcessTree {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t := &ProcessTree{workers: o.Workers, programs: make(map[string]string), cgroup: findCgroup(), self: ownName(),
		log: o.Log, ended: make(map[string]use), shown: make(map[string]use), metrics: newDescriptions()}
	for name, part := range o.Programs {
		t.programs[name[:min(len(name), maxName)]] = part
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(t)
	}
	return t
}

// Ended counts a process that was waited for. It does not wait for a scan.
func (t *ProcessTree) Ended(part string, state *os.ProcessState) {
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended[part] = t.ended[part].plus(fromRusage(usage))
}

// blockSize is the unit of ru_inblock and ru_oublock in bytes, for every disk (getrusage(2); task_io_get_inblock in
// Linux).
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

// fresh is the time for which a scan is reused.
const fresh = 500 * time.Millisecond

// look returns the current resource use. It reads ended processes before running ones, so that no process is counted
// twice.
func (t *ProcessTree) look() (s snapshot) {
	t.looking.Lock()
	defer t.looking.Unlock()
	if time.Since(t.at) < fresh {
		return t.last
	}
	children := rusage(syscall.RUSAGE_CHILDREN)
	t.mu.Lock()
	s = snapshot{total: maps.Clone(t.ended)}
	t.mu.Unlock()
	for _, used := range s.total {
		children = children.minus(used)
	}
	s.total[PartOther] = children
	var whole bool
	if s.now, whole = t.scan(); !whole {
		t.log.Debug("too many processes to scan", "most", maxProcesses)
	}
	own := s.now[PartServer]
	own.used = rusage(syscall.RUSAGE_SELF)
	s.now[PartServer] = own
	for part, r := range s.now {
		s.total[part] = s.total[part].plus(r.used)
	}
	for part, used := range s.total {
		s.total[part] = used.atLeast(t.shown[part])
		t.shown[part] = s.total[part]
	}
	for part, used := range t.shown {
		s.total[part] = used
	}
	t.last, t.at = s, time.Now()
	return s
}
