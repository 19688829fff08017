package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/prometheus/procfs"
)

// ticks per second of times in /proc (USER_HZ, proc(5)).
const ticks = 100

// live reads the resources used by a process that was not reaped, and by its descendants.
func live(pid int) (l Live) {
	todo := []int{pid}
	for i := 0; i < len(todo) && l.Processes < maxProcesses; i++ {
		if !l.add(todo[i], i > 0) {
			continue
		}
		l.Processes++
		waited, children := threads(todo[i])
		l.Delay += waited
		todo = append(todo, children[:min(len(children), maxProcesses-len(todo))]...)
	}
	return l
}

// add adds one process. It returns false if the process has ended.
func (l *Live) add(pid int, isDescendant bool) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	s, err := p.Stat()
	if err != nil || isDescendant && s.State == "Z" { // its time will be added to its parent's
		return false
	}
	l.User += time.Duration(s.UTime+uint(s.CUTime)) * time.Second / ticks
	l.System += time.Duration(s.STime+uint(s.CSTime)) * time.Second / ticks
	l.RSS += int64(s.ResidentMemory())
	return true
}

// threads adds up how long the threads of a process waited for a CPU (Documentation/scheduler/sched-stats.rst), and
// lists the processes that they have started.
func threads(pid int) (waited time.Duration, children []int) {
	all, err := procfs.AllThreads(pid)
	if err != nil {
		return 0, nil
	}
	for _, t := range all[:min(len(all), maxThreads)] {
		if s, err := t.Schedstat(); err == nil {
			waited += time.Duration(s.WaitingNanoseconds)
		}
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, t.PID))
		for _, field := range bytes.Fields(text) {
			if child, err := strconv.Atoi(string(field)); err == nil && len(children) < maxProcesses {
				children = append(children, child)
			}
		}
	}
	return waited, children
}
