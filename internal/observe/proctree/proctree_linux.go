package proctree

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxProcesses bounds how many processes of the session one look reads; each costs about 30 µs.
	maxProcesses = 4096
	// tick is the unit of times in /proc/PID/stat: USER_HZ, 100 on all that Go runs on (proc(5)).
	tick = 10 * time.Millisecond
)

// member is one process of the server's session, or a child of the server with a session of its own.
type member struct {
	pid, parent, group int
	part               string // "" until it is known; "-" for none of ours
	name               string
	running
}

// scan looks at what runs now, at the server first; whole is false where there was too much.
func (t *Tree) scan() (now map[string]running, whole bool) {
	now = map[string]running{Server: {}, Git: {}}
	for _, part := range t.workers {
		now[part] = running{}
	}
	var reader reader
	self := os.Getpid()
	if own, ok := reader.member(self); ok {
		own.part = Server
		reader.costs(&own)
		now[Server] = own.running
	}
	session, err := unix.Getsid(0)
	if err != nil {
		return now, true
	}
	all, whole := reader.session(session, self)
	for pid := range all {
		part := t.partOf(&reader, all, pid, self, 0)
		if part == noPart {
			continue
		}
		m := all[pid]
		reader.costs(m)
		sum := now[part]
		sum.add(m.running)
		now[part] = sum
	}
	return now, whole
}

const noPart = "-"

// partOf follows a process's parents to a child of the server, which says what they all are. One whose parent has ended belongs to who leads its group.
func (t *Tree) partOf(r *reader, all map[int]*member, pid, self, depth int) string {
	m := all[pid]
	switch {
	case m == nil || depth > 64:
		return noPart
	case m.part != "":
		return m.part
	case m.parent == self:
		m.part = t.partOfChild(r, m)
	default:
		m.part = noPart // against circles
		m.part = t.partOf(r, all, m.parent, self, depth+1)
		if m.part == noPart && m.group != pid {
			m.part = t.partOf(r, all, m.group, self, depth+1)
		}
	}
	return m.part
}

// linked is what the kernel calls a program that was started as /proc/self/exe.
const linked = "exe"

// partOfChild tells what a child of the server is. Before it has become another program it is still the server, memory included.
func (t *Tree) partOfChild(r *reader, m *member) string {
	if m.name != t.self && m.name != linked {
		return Git
	}
	arguments := bytes.SplitN(r.read(m.pid, "cmdline"), []byte{0}, 3)
	if len(arguments) > 1 {
		if part, ok := t.workers[string(arguments[1])]; ok {
			return part
		}
	}
	if m.name != t.self {
		return Git
	}
	return noPart
}

// reader reads /proc.
type reader struct{ buf [4096]byte }

// read returns the first 4 KiB of a file of a process, until the next call; nil if there is none any more.
func (r *reader) read(pid int, name string) []byte {
	return r.file("/proc/" + strconv.Itoa(pid) + "/" + name)
}

func (r *reader) file(path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, r.buf[:])
	if err != nil {
		return nil
	}
	return r.buf[:n]
}

// session lists the processes of the server's session, and the server's children that have one of their own, but not the server. To which session a
// process belongs costs much less to ask than to read.
func (r *reader) session(session, server int) (all map[int]*member, whole bool) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, true
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	all = make(map[int]*member)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == server {
			continue
		}
		s, err := unix.Getsid(pid)
		if err != nil || s != session && s != pid {
			continue
		}
		if len(all) == maxProcesses {
			return all, false
		}
		if m, ok := r.member(pid); ok && (s == session || m.parent == server) {
			all[pid] = &m
		}
	}
	return all, true
}

// member reads /proc/PID/stat (proc_pid_stat(5)). The name in it may hold anything.
func (r *reader) member(pid int) (m member, ok bool) {
	text := r.read(pid, "stat")
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return m, false
	}
	fields := bytes.Fields(text[end+1:])
	if len(fields) < 15 {
		return m, false
	}
	number := func(i int) int64 { // as the manual counts, from 3 on
		n, _ := strconv.ParseInt(string(fields[i-3]), 10, 64)
		return n
	}
	m = member{pid: pid, name: string(text[open+1 : end]), parent: int(number(4)), group: int(number(5))}
	m.processes = 1
	m.used.user = time.Duration(number(14)+number(16)) * tick // with those of children that it has waited for
	m.used.system = time.Duration(number(15)+number(17)) * tick
	return m, true
}

// costs reads what a process holds, and what it has read and written.
func (r *reader) costs(m *member) {
	fields := bytes.Fields(r.read(m.pid, "statm"))
	if len(fields) > 2 {
		resident, _ := strconv.ParseInt(string(fields[1]), 10, 64)
		shared, _ := strconv.ParseInt(string(fields[2]), 10, 64)
		page := int64(os.Getpagesize())
		m.anonymous, m.file = max(resident-shared, 0)*page, shared*page
	}
	for line := range bytes.Lines(r.read(m.pid, "io")) {
		name, value, _ := bytes.Cut(line, []byte(": "))
		n, _ := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
		switch string(name) {
		case "read_bytes":
			m.used.read = n
		case "write_bytes":
			m.used.written = n
		case "cancelled_write_bytes":
			m.cancelled = n
		}
	}
}

// ownName is what the kernel calls this program, and its children until they are another one.
func ownName() string {
	var r reader
	return string(bytes.TrimSuffix(r.read(os.Getpid(), "comm"), []byte("\n")))
}
