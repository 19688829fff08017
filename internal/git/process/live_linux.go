package process

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ticks of the kernel's clock in a second, as user space sees it (USER_HZ, proc(5)).
const ticks = 100

// live looks at a process that is not reaped, and at its descendants.
func live(pid int) (l Live) {
	todo := []int{pid}
	for i := 0; i < len(todo) && l.Processes < mostProcesses; i++ {
		if !l.add(todo[i], i > 0) {
			continue
		}
		l.Processes++
		ran, waited, children := threads(todo[i])
		l.ran += ran
		l.Delay += waited
		todo = append(todo, children[:min(len(children), mostProcesses-len(todo))]...)
	}
	return l
}

// add counts one process; false if it is gone.
func (l *Live) add(pid int, mayBeGone bool) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	end := bytes.LastIndexByte(stat, ')') // the name before it may have anything in it
	if err != nil || end < 0 {
		return false
	}
	fields := bytes.Fields(stat[end+1:])
	if len(fields) < 22 || mayBeGone && string(fields[0]) == "Z" { // its time is its parent's once that has waited
		return false
	}
	field := func(n int) int64 { // numbered as in proc_pid_stat(5)
		v, _ := strconv.ParseInt(string(fields[n-3]), 10, 64)
		return v
	}
	l.User += time.Duration(field(14)+field(16)) * time.Second / ticks
	l.System += time.Duration(field(15)+field(17)) * time.Second / ticks
	l.RSS += field(24) * int64(unix.Getpagesize())
	return true
}

// threads goes through those of a process: how long they were on a CPU, how long they were ready to run and waited for one
// (Documentation/scheduler/sched-stats.rst), and which processes they have started.
func threads(pid int) (ran, waited time.Duration, children []int) {
	dir := "/proc/" + strconv.Itoa(pid) + "/task/"
	all, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0, nil
	}
	for _, thread := range all[:min(len(all), mostThreads)] {
		stat, _ := os.ReadFile(dir + thread.Name() + "/schedstat")
		if fields := bytes.Fields(stat); len(fields) >= 2 {
			ns, _ := strconv.ParseInt(string(fields[0]), 10, 64)
			ran += time.Duration(ns)
			ns, _ = strconv.ParseInt(string(fields[1]), 10, 64)
			waited += time.Duration(ns)
		}
		text, _ := os.ReadFile(dir + thread.Name() + "/children")
		for _, field := range bytes.Fields(text) {
			if child, err := strconv.Atoi(string(field)); err == nil && len(children) < mostProcesses {
				children = append(children, child)
			}
		}
	}
	return ran, waited, children
}
