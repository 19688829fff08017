package watchdog

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of what is told of processes.
const (
	manyProcesses = 4096
	manyThreads   = 512
	longCommand   = 4 << 10
	ticks         = 100 // a second, in /proc (USER_HZ)
	pageSize      = 4 << 10
)

// task is a process or a thread, as proc(5) tells, /proc/PID/stat.
type task struct {
	pid, parent, group, session int
	name, state                 string
	user, system                time.Duration
	threads                     int
	started                     time.Duration // after the system
	rss                         int64
}

// readTask reads a stat file, which waits for nobody.
func readTask(file string) (t task, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return t, err
	}
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')') // the name may hold anything
	if open < 0 || end < open {
		return t, errors.New("cannot read " + file)
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 22 {
		return t, errors.New("cannot read " + file)
	}
	number := func(i int) int64 { // i: as proc(5) counts
		n, _ := strconv.ParseInt(fields[i-3], 10, 64)
		return n
	}
	span := func(i int) time.Duration { return time.Duration(number(i)) * time.Second / ticks }
	t.pid, _ = strconv.Atoi(strings.TrimSpace(string(text[:open])))
	t.name, t.state = string(text[open+1:end]), fields[0]
	t.parent, t.group, t.session = int(number(4)), int(number(5)), int(number(6))
	t.user, t.system, t.threads, t.started, t.rss = span(14), span(15), int(number(20)), span(22), number(24)*int64(os.Getpagesize())
	return t, nil
}

// tree lists a process and all below it, each after its parent, and how deep each is.
func tree(pid int) (list []task, depth []int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, nil, err
	}
	below := map[int][]task{}
	var top task
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		t, err := readTask("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		below[t.parent] = append(below[t.parent], t)
		if t.pid == pid {
			top = t
		}
	}
	if top.pid == 0 {
		return nil, nil, fmt.Errorf("there is no process %d", pid)
	}
	var add func(t task, deep int)
	add = func(t task, deep int) {
		if len(list) >= manyProcesses || deep > manyProcesses {
			return
		}
		list, depth = append(list, t), append(depth, deep)
		for _, child := range below[t.pid] {
			add(child, deep+1)
		}
	}
	add(top, 0)
	return list, depth, nil
}

// WriteProcesses tells what a process, its threads and all processes below it do now. It reads nothing that waits for a lock of a process.
func WriteProcesses(to io.Writer, pid int) error {
	list, depth, err := tree(pid)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(to)
	up := uptime()
	fmt.Fprintln(out, "process  parent   group    session  state threads  user      system    age        rss MiB  waits in                 name")
	for i, t := range list {
		fmt.Fprintf(out, "%-8d %-8d %-8d %-8d %-5s %-8d %-9.2f %-9.2f %-10.1f %-8.1f %-24s %s%q\n", t.pid, t.parent, t.group, t.session, t.state, t.threads,
			t.user.Seconds(), t.system.Seconds(), (up - t.started).Seconds(), float64(t.rss)/(1<<20), waitsIn(fmt.Sprint("/proc/", t.pid)),
			strings.Repeat("  ", depth[i]), t.name)
	}
	writeThreads(out, pid)
	own := fmt.Sprintf("/proc/%d/", pid)
	if open, err := os.ReadDir(own + "fd"); err == nil {
		fmt.Fprintf(out, "\nopen files: %d\n", len(open))
	}
	for _, file := range []string{"/proc/loadavg", "/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io", own + "status", own + "io", own + "limits", own + "cgroup"} {
		if text, err := os.ReadFile(file); err == nil {
			fmt.Fprintf(out, "\n%s\n%s", file, text)
		}
	}
	return out.Flush()
}

// writeThreads tells what the threads of a process wait for in the kernel: how many for what, and the first of them one by one.
func writeThreads(out io.Writer, pid int) {
	dir := fmt.Sprintf("/proc/%d/task/", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	counts := map[string]int{}
	var lines []string
	for _, e := range entries {
		t, err := readTask(dir + e.Name() + "/stat")
		if err != nil {
			continue
		}
		call, _ := os.ReadFile(dir + e.Name() + "/syscall")
		number, _, _ := strings.Cut(strings.TrimSpace(string(call)), " ")
		what := fmt.Sprintf("%s  system call %-8s waits in %s", t.state, number, waitsIn(dir+e.Name()))
		counts[what]++
		if len(lines) < manyThreads {
			lines = append(lines, fmt.Sprintf("%-8d user %.2f system %.2f  %s", t.pid, t.user.Seconds(), t.system.Seconds(), what))
		}
	}
	fmt.Fprintf(out, "\n%d threads of %d\n", len(entries), pid)
	kinds := make([]string, 0, len(counts))
	for what := range counts {
		kinds = append(kinds, what)
	}
	slices.SortFunc(kinds, func(a, b string) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b)) })
	for _, what := range kinds {
		fmt.Fprintf(out, "%6d  %s\n", counts[what], what)
	}
	fmt.Fprintf(out, "\n%s\n", strings.Join(lines, "\n"))
}

// waitsIn is the function of the kernel in which a process or thread sleeps; "-" if it does not, or the kernel does not tell.
func waitsIn(dir string) string {
	text, err := os.ReadFile(dir + "/wchan")
	if err != nil || len(text) == 0 || string(text) == "0" {
		return "-"
	}
	return string(text)
}

func uptime() time.Duration {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	seconds, _ := strconv.ParseFloat(first, 64)
	return time.Duration(seconds * float64(time.Second))
}

// WriteCommands writes the command lines of a process and all below it, redacted. It may wait for a process that is stuck.
func WriteCommands(to io.Writer, pid int, redact func(string) string) error {
	list, _, err := tree(pid)
	if err != nil {
		return err
	}
	for _, t := range list {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", t.pid))
		if err != nil {
			continue
		}
		var words []string
		for word := range strings.SplitSeq(strings.TrimSuffix(string(text[:min(len(text), longCommand)]), "\x00"), "\x00") {
			words = append(words, strconv.Quote(redact(word)))
		}
		if _, err := fmt.Fprintf(to, "%-8d %s\n", t.pid, strings.Join(words, " ")); err != nil {
			return err
		}
	}
	return nil
}
