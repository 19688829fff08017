package reaper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is the unit of times in /proc/PID/stat: USER_HZ, 100 on every architecture that Go runs on.
const ticksPerSecond = 100

// found is a process from /proc/PID/stat (proc_pid_stat(5)). No two processes have the same pid and start time.
type found struct {
	pid, parent, group, session int
	start                       int64 // ticks since boot
	gone                        bool  // it has ended, and waits to be reaped
}

// remaining lists the processes that the server's commands left.
func (r *reaper) remaining() (list []found) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // those that were read, too, with an error
	all := make([]found, 0, len(names))
	mine := make(map[int]bool)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid <= 1 || pid == os.Getpid() {
			continue
		}
		p, ok := readProcess(pid)
		if !ok || p.gone {
			continue
		}
		all = append(all, p)
		if r.hasMark(pid) || r.inGroup(p) {
			mine[pid] = true
		}
	}
	for more := true; more; { // children of the rest, those of children included
		more = false
		for _, p := range all {
			if !mine[p.pid] && mine[p.parent] {
				mine[p.pid], more = true, true
			}
		}
	}
	for _, p := range all {
		if mine[p.pid] {
			list = append(list, p)
		}
	}
	return list
}

// inGroup reports whether a process is in a group that belonged to a command when the server ended.
func (r *reaper) inGroup(p found) bool {
	_, ok := r.groups[p.group]
	return ok && p.session == r.session && p.start <= r.end
}

// hasMark reports whether a process was started with the server's mark. The environment of other users' processes
// cannot be read; they are not started by the server.
func (r *reaper) hasMark(pid int) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool { return bytes.Equal(v, r.mark) })
}

// readProcess reads /proc/PID/stat.
func readProcess(pid int) (found, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return found{}, false
	}
	i := bytes.LastIndex(text, []byte(") ")) // the program's name can hold anything
	if i < 0 {
		return found{}, false
	}
	fields := bytes.Fields(text[i+2:])
	if len(fields) < 20 {
		return found{}, false
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(string(fields[i]))
		return n
	}
	start, err := strconv.ParseInt(string(fields[19]), 10, 64)
	return found{
		pid: pid, parent: number(1), group: number(2), session: number(3), start: start,
		gone: fields[0][0] == 'Z' || fields[0][0] == 'X',
	}, err == nil
}

// id identifies the process in another scan.
func (p found) id() found { return found{pid: p.pid, start: p.start} }

// signal sends a signal to the process, but not to a later one with the same number. It reports whether the process was
// there.
func (p found) signal(s unix.Signal) bool {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return false
	}
	if now, ok := readProcess(p.pid); !ok || now.gone || now.start != p.start {
		if err == nil {
			unix.Close(fd)
		}
		return false
	}
	if err != nil { // Linux before 5.3
		return unix.Kill(p.pid, s) == nil
	}
	defer unix.Close(fd)
	return unix.PidfdSendSignal(fd, s, nil, 0) == nil
}
