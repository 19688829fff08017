package loadgen

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// tick is the unit of times in /proc/PID/stat. On Linux it is 10 ms on every architecture.
const tick = 10 * time.Millisecond

// ProcTree reads a process tree from proc(5). The times of a child that has ended and was waited for are part of its
// parent's cutime and cstime. Thus the sum of all four times over the living processes includes them.
type ProcTree struct {
	root    int
	procs   map[int]*proc
	foreign map[int]bool // processes outside the tree
	scans   int
	rootCPU time.Duration // of the root alone, as of the last scan
	gone    time.Duration // of processes that had lost their parent before they ended, so that no parent counts them
}

type proc struct {
	start  uint64 // identifies the process together with the PID
	Parent int
	cpu    time.Duration // includes children that ended and were waited for
	own    time.Duration // without children
}

func NewProcTree(pid int) (*ProcTree, error) {
	p := ReadStat(pid)
	if p == nil {
		return nil, fmt.Errorf("--server-pid %d: no such process", pid)
	}
	t := &ProcTree{root: pid, procs: map[int]*proc{pid: p}}
	t.Scan()
	return t, nil
}

// forget is the number of scans after which foreign processes are examined again, because their PID may have been
// reused.
const forget = 20

// Scan reads every process of the tree and finds new ones. A process belongs to the tree if its parent did when the
// process was first seen. It stays in the tree after its parent ends.
func (t *ProcTree) Scan() {
	old := t.procs
	t.procs = make(map[int]*proc, len(old))
	for pid, was := range old {
		p := ReadStat(pid)
		switch {
		case p != nil && p.start == was.start:
			t.procs[pid] = p
		case pid == t.root || old[was.Parent] == nil:
			t.gone += was.cpu
		}
	}
	if t.scans++; t.foreign == nil || t.scans%forget == 0 {
		t.foreign = map[int]bool{}
	}
	fresh := map[int]*proc{}
	for _, pid := range Pids() {
		if t.procs[pid] != nil || t.foreign[pid] {
			continue
		}
		if p := ReadStat(pid); p != nil {
			fresh[pid] = p
		}
	}
	for found := true; found; { // a child may come before its parent
		found = false
		for pid, p := range fresh {
			if t.procs[p.Parent] != nil {
				t.procs[pid] = p
				delete(fresh, pid)
				found = true
			}
		}
	}
	for pid := range fresh {
		t.foreign[pid] = true
	}
}

// Pids lists all processes.
func Pids() (list []int) {
	all, _ := procfs.AllProcs() // empty if it fails
	for _, p := range all {
		list = append(list, p.PID)
	}
	return list
}

func (t *ProcTree) Cpu() time.Duration {
	sum := t.gone
	for _, p := range t.procs {
		sum += p.cpu
	}
	return sum
}

// Own returns the CPU time of the root alone.
func (t *ProcTree) Own() time.Duration {
	if p := t.procs[t.root]; p != nil {
		t.rootCPU = p.own
	}
	return t.rootCPU
}

// Runnable returns the number of threads of the tree that are runnable or wait for a disk. The load average counts the
// same.
func (t *ProcTree) Runnable() int {
	n := 0
	for pid := range t.procs {
		threads, _ := procfs.AllThreads(pid) // empty if the process has ended
		for _, thread := range threads {
			if stat, err := thread.Stat(); err == nil && (stat.State == "R" || stat.State == "D") {
				n++
			}
		}
	}
	return n
}

// Anon returns the private memory of the tree in bytes.
func (t *ProcTree) Anon() (sum int64) {
	for pid := range t.procs {
		sum += int64(readStatus(pid).RssAnon)
	}
	return sum
}

// rss returns the resident memory of the root in bytes.
func (t *ProcTree) rss() int64 { return int64(readStatus(t.root).VmRSS) }

// ReadStat reads /proc/PID/stat. It returns nil if the process has ended.
func ReadStat(pid int) *proc {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return nil
	}
	s, err := p.Stat()
	if err != nil {
		return nil
	}
	own := time.Duration(s.UTime+s.STime) * tick
	return &proc{start: s.Starttime, Parent: s.PPID, own: own, cpu: own + time.Duration(s.CUTime+s.CSTime)*tick}
}

// readStatus reads /proc/PID/status. It returns zero if the process has ended.
func readStatus(pid int) procfs.ProcStatus {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStatus{}
	}
	s, _ := p.NewStatus() // zero if it fails
	return s
}

// ProcessCPU returns the user and system time of a running process, without its children. Unlike proc(5), its unit is
// the nanosecond (clock_getcpuclockid(3)).
func ProcessCPU(pid int) (time.Duration, error) {
	const schedule = 2 // CPUCLOCK_SCHED of the kernel
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedule), &t); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}
