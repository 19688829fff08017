package proctree

import (
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"github.com/packhorse-git/packhorse/internal/git/cgroup"
)

// ownCgroup is the directory of the cgroup v2 that the process began in; "" if there is none.
type ownCgroup string

func findCgroup() ownCgroup {
	dir, _, err := cgroup.Own(procfs.DefaultMountPoint, os.Getpid())
	if err != nil {
		return ""
	}
	return ownCgroup(dir)
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

// traffic is the number of bytes by device, "loopback" or "network", and direction.
type traffic map[[2]string]uint64

// network adds up the interfaces of the network namespace. A bridge and the interfaces behind it are both counted.
func network() traffic {
	found := traffic{}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return found
	}
	devices, _ := fs.NetDev() // of no device, if it fails
	for _, d := range devices {
		device := "network"
		if d.Name == "lo" {
			device = "loopback"
		}
		found[[2]string{device, "in"}] += d.RxBytes
		found[[2]string{device, "out"}] += d.TxBytes
	}
	return found
}
