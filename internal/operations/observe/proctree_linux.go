package observe

import (
	"os"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const (
	// maxProcesses is the maximum number of processes of the session that one scan reads. Each costs about 70 µs.
	maxProcesses = 4096
	// tick is the unit of times in /proc/PID/stat: USER_HZ, 100 on all that Go runs on (proc(5)).
	tick = 10 * time.Millisecond
	// maxDepth is the maximum number of ancestors between a process and the server.
	maxDepth = 64
)

// member is a process of the server's session, or a child of the server with a separate session.
type member struct {
	proc procfs.Proc
	stat procfs.ProcStat
	part string // "": not known yet
}

// noPart is the part of processes that do not belong to the tree.
const noPart = "-"

// scan reads the processes that run now. If there are more than maxProcesses, whole is false.
func (t *ProcessTree) scan() (now map[string]running, whole bool) {
	now = map[string]running{PartServer: {}, PartGit: {}}
	for _, parts := range []map[string]string{t.workers, t.programs} {
		for _, part := range parts {
			now[part] = running{}
		}
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return now, true
	}
	self := os.Getpid()
	if proc, err := fs.Proc(self); err == nil {
		now[PartServer] = (&member{proc: proc}).running()
	}
	session, err := unix.Getsid(0)
	if err != nil {
		return now, true
	}
	all, whole := sessionOf(fs, session, self)
	for pid, m := range all {
		if part := t.partOf(all, pid, self, 0); part != noPart {
			sum := now[part]
			sum.add(m.running())
			now[part] = sum
		}
	}
	return now, whole
}

// partOf follows the parents of a process to a child of the server, which determines the part of all of them. A process
// whose parent has ended belongs to the leader of its process group.
func (t *ProcessTree) partOf(all map[int]*member, pid, self, depth int) string {
	m := all[pid]
	switch {
	case m == nil || depth > maxDepth:
		return noPart
	case m.part != "":
		return m.part
	case m.stat.PPID == self:
		m.part = t.partOfChild(m)
	default:
		m.part = noPart // ends loops
		m.part = t.partOf(all, m.stat.PPID, self, depth+1)
		if m.part == noPart && m.stat.PGRP != pid {
			m.part = t.partOf(all, m.stat.PGRP, self, depth+1)
		}
	}
	return m.part
}

// selfExe is what the kernel calls a program that was started as /proc/self/exe.
const selfExe = "exe"

// partOfChild returns the part of a child of the server. Before its exec a child is still the server, with its memory.
func (t *ProcessTree) partOfChild(m *member) string {
	if part, ok := t.programs[m.stat.Comm]; ok {
		return part
	}
	if m.stat.Comm != t.self && m.stat.Comm != selfExe {
		return PartGit
	}
	if args, err := m.proc.CmdLine(); err == nil && len(args) > 1 {
		if part, ok := t.workers[args[1]]; ok {
			return part
		}
	}
	if m.stat.Comm != t.self {
		return PartGit
	}
	return noPart
}

// sessionOf lists the processes of the server's session, and the server's children that have a separate session,
// but not the server. The system call that returns the session of a process is much cheaper than reading its files.
func sessionOf(fs procfs.FS, session, server int) (all map[int]*member, whole bool) {
	procs, err := fs.AllProcs()
	if err != nil {
		return nil, true
	}
	all = make(map[int]*member)
	for _, p := range procs {
		s, err := unix.Getsid(p.PID)
		if p.PID == server || err != nil || s != session && s != p.PID {
			continue
		}
		if len(all) == maxProcesses {
			return all, false
		}
		if stat, err := p.Stat(); err == nil && (s == session || stat.PPID == server) {
			all[p.PID] = &member{proc: p, stat: stat}
		}
	}
	return all, true
}

// running reads the memory of a process and its disk use. CPU times include those of children that it has waited for.
func (m *member) running() running {
	r := running{processes: 1}
	r.used.user = time.Duration(m.stat.UTime+uint(m.stat.CUTime)) * tick
	r.used.system = time.Duration(m.stat.STime+uint(m.stat.CSTime)) * tick
	if s, err := m.proc.Statm(); err == nil {
		r.anonymous, r.file = max(int64(s.ResidentBytes())-int64(s.SHRBytes()), 0), int64(s.SHRBytes())
	}
	if io, err := m.proc.IO(); err == nil {
		r.used.read, r.used.written = int64(io.ReadBytes), int64(io.WriteBytes)
	}
	return r
}

// ownName is what the kernel calls this program, and its children before their exec.
func ownName() string {
	p, err := procfs.Self()
	if err != nil {
		return ""
	}
	name, _ := p.Comm()
	return name
}
