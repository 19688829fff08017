package observe

import (
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// ownCgroup is the directory of the cgroup v2 that the process began in; "" if there is none.
type ownCgroup string

func findCgroup() ownCgroup {
	const top = "/sys/fs/cgroup"
	self, err := procfs.Self()
	if err != nil {
		return ""
	}
	cgroups, _ := self.Cgroups() // none, if it fails
	for _, c := range cgroups {
		dir := path.Join(top, c.Path)
		if _, err := os.Stat(dir); err != nil {
			dir = top // a container sees only its own group
		}
		if c.HierarchyID == 0 {
			return ownCgroup(dir)
		}
	}
	return ""
}

// read returns the content of a file of the cgroup; "" if there is none.
func (c ownCgroup) read(file string) string {
	if c == "" {
		return ""
	}
	text, _ := os.ReadFile(path.Join(string(c), file))
	return string(text)
}

// pageCache returns the page cache that is charged to the cgroup, by state, in bytes.
func (c ownCgroup) pageCache() map[string]int64 {
	states := map[string]string{"file": "all", "file_dirty": "dirty", "file_writeback": "writeback"}
	found := map[string]int64{}
	for line := range strings.Lines(c.read("memory.stat")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && states[name] != "" {
			found[states[name]] = n
		}
	}
	return found
}

// memory returns the memory that is charged to the cgroup, and its limit if it has one, in bytes.
func (c ownCgroup) memory() map[string]int64 {
	found := map[string]int64{}
	for kind, file := range map[string]string{"used": "memory.current", "limit": "memory.max"} {
		if n, err := strconv.ParseInt(strings.TrimSpace(c.read(file)), 10, 64); err == nil {
			found[kind] = n
		}
	}
	return found
}

// stall is the time that some or all tasks have waited for a resource, since the boot or the creation of the cgroup.
type stall struct {
	resource, kind, of string
	seconds            float64
}

// pressures returns the pressure stall information of the machine and of the cgroup (Linux,
// Documentation/accounting/psi.rst).
func (c ownCgroup) pressures() (all []stall) {
	add := func(of, text, resource string) {
		for line := range strings.Lines(text) {
			kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			_, total, ok := strings.Cut(rest, "total=")
			n, err := strconv.ParseInt(total, 10, 64)
			if ok && err == nil && (kind == "some" || kind == "full") {
				all = append(all, stall{resource, kind, of, float64(n) / 1e6})
			}
		}
	}
	isRoot := c.read("cgroup.type") == "" // its pressure is the machine's
	for _, resource := range []string{"cpu", "memory", "io"} {
		text, _ := os.ReadFile("/proc/pressure/" + resource)
		add("machine", string(text), resource)
		if !isRoot {
			add("cgroup", c.read(resource+".pressure"), resource)
		}
	}
	return all
}
