package reaper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// found is a process from /proc/PID/stat (proc_pid_stat(5)). No two processes have the same pid and start time.
type found struct {
	pid, parent, group int
	start              int64 // ticks since boot
	gone               bool  // it has ended, and waits to be reaped
	grace              time.Duration
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
	mine := make(map[int]time.Duration) // grace by number
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
		if grace, ok := r.markOf(pid); ok {
			mine[pid] = grace
		}
	}
	// The processes of a leader's group, and children, those of children included.
	for more := true; more; {
		more = false
		for _, p := range all {
			for _, other := range []int{p.group, p.parent} {
				grace, ok := mine[other]
				if _, known := mine[p.pid]; ok && !known {
					mine[p.pid], more = grace, true
				}
			}
		}
	}
	for _, p := range all {
		if grace, ok := mine[p.pid]; ok {
			p.grace = grace
			list = append(list, p)
		}
	}
	return list
}

// markOf returns the grace period of a process that was started with the server's mark. The environment of other users'
// processes cannot be read; they are not started by the server.
func (r *reaper) markOf(pid int) (grace time.Duration, ok bool) {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return 0, false
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if rest, has := bytes.CutPrefix(v, r.mark); has {
			ms, _ := strconv.ParseInt(strings.TrimPrefix(string(rest), "."), 10, 32)
			return min(time.Duration(ms)*time.Millisecond, longestGrace), true
		}
	}
	return 0, false
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
	return found{pid: pid, parent: number(1), group: number(2), start: start,
		gone: fields[0][0] == 'Z' || fields[0][0] == 'X'}, err == nil
}

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
