package proctree

import (
	"bytes"
	"os"
	"path"
	"strconv"
	"strings"
)

// cgroups are the directories of the cgroup that the process began in; "" where there is none, or nothing in it.
type cgroups struct {
	memory   string // has memory.stat
	pressure string // has cpu.pressure; "" for the root, which is the machine
	v2       bool   // of memory
}

// findCgroups reads where the process stands (cgroups(7)). A container may see its own cgroup as the root of all.
func findCgroups() (c cgroups) {
	where, _ := os.ReadFile("/proc/self/cgroup")
	mounts, _ := os.ReadFile("/proc/self/mounts")
	has := func(dir, file string) bool {
		_, err := os.Stat(path.Join(dir, file))
		return err == nil
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		isMemory := f[2] == "cgroup" && strings.Contains(","+f[3]+",", ",memory,")
		if f[2] != "cgroup2" && !isMemory {
			continue
		}
		own := ownCgroup(string(where), isMemory)
		dir := path.Join(f[1], own)
		if !has(dir, "cgroup.procs") {
			dir = f[1]
		}
		if f[2] == "cgroup2" && dir != f[1] && has(dir, "cpu.pressure") {
			c.pressure = dir
		}
		if has(dir, "memory.stat") && !c.v2 {
			c.memory, c.v2 = dir, f[2] == "cgroup2"
		}
	}
	return c
}

// ownCgroup finds the process's cgroup in a hierarchy: that of v2, or of v1 with the memory controller.
func ownCgroup(text string, v1Memory bool) string {
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 {
			continue
		}
		if !v1Memory && f[0] == "0" || v1Memory && strings.Contains(","+f[1]+",", ",memory,") {
			return f[2]
		}
	}
	return "/"
}

// pageCache is what of the page cache counts as the cgroup's, by state, in bytes.
func (c cgroups) pageCache() map[string]int64 {
	if c.memory == "" {
		return nil
	}
	names := map[string]string{"total_cache": "all", "total_dirty": "dirty", "total_writeback": "writeback"}
	if c.v2 {
		names = map[string]string{"file": "all", "file_dirty": "dirty", "file_writeback": "writeback"}
	}
	found := map[string]int64{}
	text, _ := os.ReadFile(path.Join(c.memory, "memory.stat"))
	for line := range bytes.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if state, ok := names[name]; ok {
			if n, err := strconv.ParseInt(value, 10, 64); err == nil {
				found[state] = n
			}
		}
	}
	return found
}

// noLimit is from when on a limit of memory is none: v1 has the greatest number there is, v2 "max".
const noLimit = 1 << 60

// held is what counts as the cgroup's memory, and its limit, in bytes.
func (c cgroups) held() map[string]int64 {
	if c.memory == "" {
		return nil
	}
	names := map[string]string{"used": "memory.usage_in_bytes", "limit": "memory.limit_in_bytes"}
	if c.v2 {
		names = map[string]string{"used": "memory.current", "limit": "memory.max"}
	}
	found := map[string]int64{}
	for kind, name := range names {
		text, _ := os.ReadFile(path.Join(c.memory, name))
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n < noLimit {
			found[kind] = n
		}
	}
	return found
}

// stall is how long some or all tasks have waited for a resource, since the machine or the cgroup began.
type stall struct {
	resource, kind, of string
	seconds            float64
}

// pressures reads what the kernel tells of pressure (Linux, Documentation/accounting/psi.rst); nothing where it tells none.
func (c cgroups) pressures() (all []stall) {
	read := func(of, file, resource string) {
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			_, total, ok := strings.Cut(rest, "total=")
			n, err := strconv.ParseInt(total, 10, 64)
			if ok && err == nil && (kind == "some" || kind == "full") {
				all = append(all, stall{resource, kind, of, float64(n) / 1e6})
			}
		}
	}
	for _, resource := range []string{"cpu", "memory", "io"} {
		read("machine", "/proc/pressure/"+resource, resource)
		if c.pressure != "" {
			read("cgroup", path.Join(c.pressure, resource+".pressure"), resource)
		}
	}
	return all
}

// traffic is bytes by device, "loopback" or "network", and direction.
type traffic map[[2]string]int64

// network reads what went through the interfaces of the network namespace (proc_net(5), /proc/net/dev). Interfaces that only pass on what another
// one has counted, bridges and the like, are counted too.
func network(text string) traffic {
	found := traffic{}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || len(f) < 16 {
			continue
		}
		device := "network"
		if strings.TrimSpace(name) == "lo" {
			device = "loopback"
		}
		in, _ := strconv.ParseInt(f[0], 10, 64)
		out, _ := strconv.ParseInt(f[8], 10, 64)
		found[[2]string{device, "in"}] += in
		found[[2]string{device, "out"}] += out
	}
	return found
}
