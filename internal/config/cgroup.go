package config

import (
	"github.com/packhorse-git/packhorse/internal/git/cgroup"
)

// CgroupConfig is about control groups (cgroup v2) for the server and its git commands, by class (docs/explanation/processes.md). They need a cgroup that was
// delegated: Delegate=yes in a systemd unit. Without one, or without a controller, rlimits and niceness stand in.
// The log then has a warning if path or a limit is set, and says so at the level debug if not.
type CgroupConfig struct {
	// Whether there are groups where there can be.
	Enabled bool `toml:"enabled"`

	// The directory of the cgroup below which the groups are made. Empty means that of this process, if it was delegated.
	Path string `toml:"path"`

	// The server itself.
	Server CgroupLimits `toml:"server"`
	// Making packs.
	Pack CgroupLimits `toml:"pack"`
	// Taking pushes, hooks included.
	Receive CgroupLimits `toml:"receive"`
	// Repacking.
	Maintenance CgroupLimits `toml:"maintenance"`
	// Searching in repositories without an index.
	Search CgroupLimits `toml:"search"`
	// All other git commands.
	Other CgroupLimits `toml:"other"`
}

// CgroupLimits are the limits of one group.
type CgroupLimits struct {
	// Memory above which the group's processes are slowed down, and memory is taken back from them. The files that they read count, but are dropped
	// first. 0 means without a limit.
	MemoryHigh Size `toml:"memory_high"`

	// Memory above which one of the group's processes is killed. 0 means without a limit.
	MemoryMax Size `toml:"memory_max"`

	// The group's share of CPU time beside the others' while there is too little, 1 to 10000.
	CPUWeight int `toml:"cpu_weight"`
}

func defaultCgroup() CgroupConfig {
	return CgroupConfig{
		Enabled: true,
		Server:  CgroupLimits{CPUWeight: 300},
		Pack:    CgroupLimits{CPUWeight: 100}, Receive: CgroupLimits{CPUWeight: 100},
		Maintenance: CgroupLimits{CPUWeight: 30}, Search: CgroupLimits{CPUWeight: 30}, Other: CgroupLimits{CPUWeight: 300},
	}
}

// leastCgroup is memory in bytes without which nothing runs in a group.
const leastCgroup = 32 << 20

func (c *CgroupConfig) checkNumbers(b bounds) {
	for name, l := range c.Groups() {
		key := "cgroup." + name
		b.number(key+".cpu_weight", l.CPUWeight, 1, 10000)
		for what, size := range map[string]Size{".memory_high": l.MemoryHigh, ".memory_max": l.MemoryMax} {
			if size != 0 {
				b.size(key+what, size, leastCgroup)
			}
		}
		if l.MemoryMax != 0 && l.MemoryHigh > l.MemoryMax {
			b.bad("%s.memory_high is %s, and more than memory_max, %s", key, l.MemoryHigh, l.MemoryMax)
		}
	}
}

func (c *CgroupConfig) Groups() map[string]CgroupLimits {
	return map[string]CgroupLimits{
		cgroup.Server: c.Server, "pack": c.Pack, "receive": c.Receive, "maintenance": c.Maintenance, "search": c.Search, "other": c.Other,
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
