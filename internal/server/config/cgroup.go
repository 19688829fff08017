package config

import (
	"github.com/packhorse-git/packhorse/internal/git/cgroup"
)

// CgroupConfig sets control groups (cgroup v2) for the server and its Git processes, by class
// (docs/explanation/processes.md). They need a delegated group: Delegate=yes in a systemd unit. Without one, or without
// a controller, rlimits and niceness are used. That is logged as a warning if path or a limit is set, else at the debug
// level.
type CgroupConfig struct {
	// Enabled creates the control groups where that is possible.
	Enabled bool `toml:"enabled" default:"true"`

	// Path is the directory of the control group that contains the groups. Empty means the group of this process, if it
	// is delegated.
	Path string `toml:"path" path:"yes"`

	// Server is the group of the server process.
	Server CgroupLimits `toml:"server"`
	// Pack is the group of Git processes that make packs.
	Pack CgroupLimits `toml:"pack"`
	// Receive is the group of Git processes that receive pushes, and of hooks.
	Receive CgroupLimits `toml:"receive"`
	// Maintenance is the group of Git processes that repack.
	Maintenance CgroupLimits `toml:"maintenance"`
	// Search is the group of Git processes that search repositories without an index.
	Search CgroupLimits `toml:"search"`
	// Other is the group of all other Git processes.
	Other CgroupLimits `toml:"other"`
}

// CgroupLimits are the limits of one group.
type CgroupLimits struct {
	// MemoryHigh is the memory above which the processes of the group are slowed down and their memory is reclaimed.
	// Cached files count, and are reclaimed first. 0 means no limit.
	MemoryHigh Size `toml:"memory_high"`

	// MemoryMax is the memory above which a process of the group is killed. 0 means no limit.
	MemoryMax Size `toml:"memory_max"`

	// CPUWeight is the share of CPU time relative to the other groups when the CPU is busy.
	CPUWeight int `toml:"cpu_weight" default:"100" range:"1..10000"`
}

// leastCgroup is the least memory in which the processes of a group can run.
const leastCgroup Size = 32 << 20

// check reports limits with which no process could run.
func (c *CgroupConfig) check(bad func(format string, args ...any)) {
	for name, l := range c.Groups() {
		for what, size := range map[string]Size{"memory_high": l.MemoryHigh, "memory_max": l.MemoryMax} {
			if size != 0 && size < leastCgroup {
				bad("cgroup.%s.%s is %s; it has to be 0 or at least %s", name, what, size, leastCgroup)
			}
		}
		if l.MemoryMax != 0 && l.MemoryHigh > l.MemoryMax {
			bad("cgroup.%s.memory_high is %s, more than memory_max, %s", name, l.MemoryHigh, l.MemoryMax)
		}
	}
}

// Groups returns the limits by the name of the group.
func (c *CgroupConfig) Groups() map[string]CgroupLimits {
	return map[string]CgroupLimits{
		cgroup.Server: c.Server, "pack": c.Pack, "receive": c.Receive, "maintenance": c.Maintenance, "search": c.Search,
		"other": c.Other,
	}
}

// Wanted reports whether the administrator asks for limits.
func (c *CgroupConfig) Wanted() bool {
	for _, l := range c.Groups() {
		if l.MemoryHigh != 0 || l.MemoryMax != 0 {
			return true
		}
	}
	return c.Path != ""
}
