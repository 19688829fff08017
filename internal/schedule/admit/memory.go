package admit

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The machine is short of memory beyond any of these limits. mostStalled limits the share of the last ten seconds in
// which a task waited for memory. mostUsed limits the used part of the control group's limit, without inactive files.
// leastLeft is the minimum available part of the machine's memory.
const (
	mostStalled = 10 // percent
	mostUsed    = 0.9
	leastLeft   = 0.05
)

// memory reads the figures of Linux, and of control groups of version 2. Missing files are ignored.
type memory struct {
	root     string
	groups   []group // the one of the process, and its ancestors
	pressure string
}

// group is the directory of a control group that limits memory.
type group string

// newMemory finds the files below a root, which is "/" except in tests.
func newMemory(root string) *memory {
	m := &memory{root: root, pressure: filepath.Join(root, "proc/pressure/memory")}
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(text)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		top := filepath.Join(root, "sys/fs/cgroup")
		own := filepath.Join(top, path)
		if file := filepath.Join(own, "memory.pressure"); exists(file) && exists(filepath.Join(own, "memory.max")) {
			m.pressure = file
		}
		for dir := own; ; dir = filepath.Dir(dir) {
			if exists(filepath.Join(dir, "memory.max")) {
				m.groups = append(m.groups, group(dir))
			}
			if len(dir) <= len(top) {
				break
			}
		}
	}
	return m
}

func (g group) limit() (int64, bool) { return number(filepath.Join(string(g), "memory.max")) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Memory returns how many bytes of memory this process and its children may use. This is the memory of the machine, or
// the limit of a control group if that is lower. 0 means unknown.
func Memory() int64 { return newMemory("/").most() }

func (m *memory) most() int64 {
	most, _ := line(filepath.Join(m.root, "proc/meminfo"), "MemTotal:")
	most *= 1 << 10
	for _, g := range m.groups {
		if limit, ok := g.limit(); ok && limit > 0 && (most == 0 || limit < most) {
			most = limit
		}
	}
	return most
}

// short reports whether memory is short now.
func (m *memory) short() bool { return m.stalled() || m.full() || m.machineFull() }

// stalled reads the kernel's pressure stall information (Documentation/accounting/psi.rst).
func (m *memory) stalled() bool {
	text, _ := os.ReadFile(m.pressure)
	_, text, _ = bytes.Cut(text, []byte("some avg10="))
	number, _, _ := bytes.Cut(text, []byte(" "))
	percent, err := strconv.ParseFloat(string(number), 64)
	return err == nil && percent > mostStalled
}

func (m *memory) full() bool { return slices.ContainsFunc(m.groups, group.full) }

func (g group) full() bool {
	limit, ok1 := g.limit() // "max" means no limit
	if !ok1 || limit <= 0 {
		return false
	}
	used, ok2 := number(filepath.Join(string(g), "memory.current"))
	if !ok2 {
		return false
	}
	dropped, _ := line(filepath.Join(string(g), "memory.stat"), "inactive_file")
	return float64(used-dropped) > mostUsed*float64(limit)
}

func (m *memory) machineFull() bool {
	file := filepath.Join(m.root, "proc/meminfo")
	total, ok1 := line(file, "MemTotal:")
	left, ok2 := line(file, "MemAvailable:")
	return ok1 && ok2 && float64(left) < leastLeft*float64(total)
}

// number reads a file with one number.
func number(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil
}

// line returns the number in the first line that begins with the given name.
func line(path, name string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for one := range bytes.Lines(text) {
		fields := bytes.Fields(one)
		if len(fields) >= 2 && string(fields[0]) == name {
			n, err := strconv.ParseInt(string(fields[1]), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
