package watchdog

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// Limits of a dump.
const (
	maxProcesses = 4096
	maxThreads   = 512
	maxCommand   = 4 << 10
	ticks        = 100 // per second, in /proc (USER_HZ)
)

// process is a process of the tree below another one.
type process struct {
	procfs.Proc
	stat  procfs.ProcStat
	depth int
}

// tree lists a process and its descendants, each after its parent.
func tree(pid int) (list []process, err error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	children := map[int][]process{}
	var top process
	for _, p := range all {
		stat, err := p.Stat()
		if err != nil {
			continue // it has ended
		}
		children[stat.PPID] = append(children[stat.PPID], process{p, stat, 0})
		if p.PID == pid {
			top = process{p, stat, 0}
		}
	}
	if top.PID == 0 {
		return nil, fmt.Errorf("there is no process %d", pid)
	}
	var add func(p process, depth int)
	add = func(p process, depth int) {
		if len(list) >= maxProcesses || depth > maxProcesses {
			return
		}
		p.depth = depth
		list = append(list, p)
		for _, child := range children[p.PID] {
			add(child, depth+1)
		}
	}
	add(top, 0)
	return list, nil
}

func seconds(n uint) float64 { return float64(n) / ticks }

// WriteProcesses writes the state of a process, its threads and its descendants. It reads nothing that needs a lock of
// a process.
func WriteProcesses(to io.Writer, pid int) error {
	list, err := tree(pid)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(to)
	fmt.Fprintln(out, "process  parent   group    session  state threads  user      system    age        rss MiB  "+
		"waits in                 name")
	top := list[0].stat
	started, _ := top.StartTime() // seconds since 1970; 0 if the boot time cannot be read
	age := float64(time.Now().UnixMilli())/1000 - started
	for _, p := range list {
		s := p.stat
		fmt.Fprintf(out, "%-8d %-8d %-8d %-8d %-5s %-8d %-9.2f %-9.2f %-10.1f %-8.1f %-24s %s%q\n", p.PID, s.PPID, s.PGRP,
			s.Session, s.State,
			s.NumThreads, seconds(s.UTime), seconds(s.STime), age-float64(int64(s.Starttime-top.Starttime))/ticks,
			float64(s.ResidentMemory())/(1<<20), waitChannel(p.Proc),
			strings.Repeat("  ", p.depth), s.Comm)
	}
	writeThreads(out, pid)
	own := fmt.Sprintf("/proc/%d/", pid)
	if n, err := list[0].FileDescriptorsLen(); err == nil {
		fmt.Fprintf(out, "\nopen files: %d\n", n)
	}
	for _, file := range []string{"/proc/loadavg", "/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io",
		own + "status", own + "io", own + "limits", own + "cgroup"} {
		if text, err := os.ReadFile(file); err == nil {
			fmt.Fprintf(out, "\n%s\n%s", file, text)
		}
	}
	return out.Flush()
}

// writeThreads writes where the threads of a process wait in the kernel: the number for each place, and the first
// threads one by one.
func writeThreads(out io.Writer, pid int) {
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		return
	}
	counts := map[string]int{}
	var lines []string
	for _, t := range threads {
		s, err := t.Stat()
		if err != nil {
			continue
		}
		call, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", pid, t.PID))
		number, _, _ := strings.Cut(strings.TrimSpace(string(call)), " ")
		what := fmt.Sprintf("%s  system call %-8s waits in %s", s.State, number, waitChannel(t))
		counts[what]++
		if len(lines) < maxThreads {
			lines = append(lines, fmt.Sprintf("%-8d user %.2f system %.2f  %s", t.PID, seconds(s.UTime), seconds(s.STime), what))
		}
	}
	fmt.Fprintf(out, "\n%d threads of %d\n", len(threads), pid)
	kinds := make([]string, 0, len(counts))
	for what := range counts {
		kinds = append(kinds, what)
	}
	slices.SortFunc(kinds, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]),
			strings.Compare(a, b))
	})
	for _, what := range kinds {
		fmt.Fprintf(out, "%6d  %s\n", counts[what], what)
	}
	fmt.Fprintf(out, "\n%s\n", strings.Join(lines, "\n"))
}

// waitChannel is the kernel function in which a process or thread sleeps; "-" if it does not sleep, or this is not
// known.
func waitChannel(p procfs.Proc) string {
	name, err := p.Wchan()
	if err != nil || name == "" {
		return "-"
	}
	return name
}

// WriteCommands writes the command lines of a process and its descendants, redacted. It may wait for a process that is
// stuck.
func WriteCommands(to io.Writer, pid int, redact func(string) string) error {
	list, err := tree(pid)
	if err != nil {
		return err
	}
	for _, p := range list {
		args, err := p.CmdLine()
		if err != nil {
			continue
		}
		var line strings.Builder
		for _, arg := range args {
			if line.Len() > maxCommand {
				break
			}
			line.WriteString(" " + strconv.Quote(redact(arg[:min(len(arg), maxCommand)])))
		}
		if _, err := fmt.Fprintf(to, "%-8d%s\n", p.PID, line.String()); err != nil {
			return err
		}
	}
	return nil
}
