package loadgen

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// tick is the unit of times in /proc/PID/stat; Linux shows hundredths of a second on every architecture.
const tick = 10 * time.Millisecond

// ProcTree reads a process tree from proc(5). A child that has ended and was waited for stands in its parent's cutime and
// cstime, so the sum of all four times over the living does not lose it.
type ProcTree struct {
	root    int
	procs   map[int]*proc
	foreign map[int]bool // processes that were looked at and are not of the tree
	scans   int
	rootCPU time.Duration // of the root alone, as last seen
	gone    time.Duration // of processes that had lost their parent before they ended: nobody in the tree waited for them
}

type proc struct {
	start  uint64 // with the PID it names the process for good
	Parent int
	cpu    time.Duration // with children that ended and were waited for
	own    time.Duration // without
}

func NewProcTree(pid int) (*ProcTree, error) {
	p := ReadStat(pid)
	if p == nil {
		return nil, fmt.Errorf("--server-pid %d: there is no such process", pid)
	}
	t := &ProcTree{root: pid, procs: map[int]*proc{pid: p}}
	t.Scan()
	return t, nil
}

// forget is after how many scans processes that were foreign are looked at again, because a PID may have been used anew.
const forget = 20

// Scan looks at every process of the tree and finds new ones. A process belongs to the tree if its parent did when it was first
// seen; it stays in it when its parent ends.
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
	for found := true; found; { // a child may stand before its parent
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
func Pids() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var list []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			list = append(list, pid)
		}
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

// Own is the CPU time of the tree's root alone.
func (t *ProcTree) Own() time.Duration {
	if p := t.procs[t.root]; p != nil {
		t.rootCPU = p.own
	}
	return t.rootCPU
}

// Runnable is how many threads of the tree run, or would if they got a CPU, or wait for a disk: what the load average counts.
func (t *ProcTree) Runnable() int {
	n := 0
	for pid := range t.procs {
		dir := fmt.Sprintf("/proc/%d/task", pid)
		threads, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, thread := range threads {
			b, err := os.ReadFile(dir + "/" + thread.Name() + "/stat")
			if err != nil {
				continue
			}
			if i := bytes.LastIndexByte(b, ')'); i >= 0 && i+2 < len(b) && (b[i+2] == 'R' || b[i+2] == 'D') {
				n++
			}
		}
	}
	return n
}

// MachineRunnable is how many threads run or would if they got a CPU on the whole machine, but for the caller's (proc(5), loadavg).
func MachineRunnable() int {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	var load [3]float64
	var n, all int
	fmt.Sscanf(string(b), "%g %g %g %d/%d", &load[0], &load[1], &load[2], &n, &all) //nolint:errcheck // then n is 0
	return max(n-1, 0)
}

func (t *ProcTree) Anon() int64 {
	var sum int64
	for pid := range t.procs {
		sum += readMemory(pid, "RssAnon")
	}
	return sum
}

// rss is what is resident of the root, and of all below it.
func (t *ProcTree) rss() (own, children int64) {
	for pid := range t.procs {
		if n := readMemory(pid, "VmRSS"); pid == t.root {
			own = n
		} else {
			children += n
		}
	}
	return own, children
}

// ReadStat reads /proc/PID/stat; nil if the process has ended.
func ReadStat(pid int) *proc {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return parseStat(b)
}

// parseStat reads the fields behind the program's name, which may hold anything. Field 3, the state, comes first there.
func parseStat(b []byte) *proc {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return nil
	}
	fields := bytes.Fields(b[i+1:])
	if len(fields) < 20 {
		return nil
	}
	p := &proc{}
	for i, f := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return nil
		}
		p.cpu += time.Duration(n) * tick
		if i < 2 {
			p.own += time.Duration(n) * tick
		}
	}
	p.Parent, _ = strconv.Atoi(string(fields[1]))
	p.start, _ = strconv.ParseUint(string(fields[19]), 10, 64)
	return p
}

// readMemory is a line of a process's status in bytes (proc(5)).
func readMemory(pid int, line string) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, ok := bytes.Cut(b, []byte("\n"+line+":"))
	if !ok {
		return 0
	}
	value, _, _ := bytes.Cut(rest, []byte("\n"))
	fields := bytes.Fields(value)
	if len(fields) == 0 {
		return 0
	}
	kb, _ := strconv.ParseInt(string(fields[0]), 10, 64)
	return kb << 10
}
