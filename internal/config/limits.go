package config

import (
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// LimitsConfig limits the whole server.
type LimitsConfig struct {
	// Memory is the maximum memory of the server and its Git processes together, without memory-mapped files. A quarter
	// is for the server, which refuses requests that are too large for it. The rest is divided among the Git processes
	// that may run at the same time (git.slots, push.slots), and a process that needs more fails. Hooks and search
	// processes do not count. 0 means no limit. It needs Linux.
	Memory Size `toml:"memory"`
}

const (
	// leastGit is memory in bytes without which git is of no use.
	leastGit = 32 << 20
	// quarters of a share are what a git process has that makes no pack, takes no push, and does not repack.
	quarters = 4
)

// MemoryShares say who may have what of limits.memory, in bytes; 0: there is no limit.
type MemoryShares struct {
	Server int64
	Git    int64 // of one process that makes a pack, takes a push or repacks
	small  int64 // of one that does something else
}

func (c *Config) MemoryShares() MemoryShares {
	all := int64(c.Limits.Memory)
	if all == 0 {
		return MemoryShares{}
	}
	// Of two processes of a push, and of a repack, one only starts the other.
	large, both := c.Git.slots(), c.Lanes.Maintenance
	if c.Push.Enabled {
		both += c.Push.slots()
	}
	count := quarters*large + (quarters+1)*both + RefsLimits().Slots + ManageLimits().Slots + GrepLimits(0).Slots
	s := MemoryShares{Server: all / 4}
	s.Git = (all - s.Server) / int64(count) * quarters
	s.small = s.Git / quarters
	return s
}

// of gives the commands of a class their share.
func (s MemoryShares) of(l process.Limits, share int64) process.Limits {
	l.Memory = share
	return l
}

// AtMost is n, or what a share leaves of it; 0 shares leave all.
func AtMost(n, share int64) int64 {
	if share == 0 {
		return n
	}
	return min(n, share)
}

// checkMemory finds a limit in which nothing could run.
func (c *Config) checkMemory(bad func(format string, args ...any)) {
	if s := c.MemoryShares(); s.Git < leastGit && c.Limits.Memory != 0 {
		bad("limits.memory is %s, of which a git process would have %d MiB, and it needs %d at least: give more, or make "+
			"git.slots and push.slots fewer",
			c.Limits.Memory, s.Git>>20, leastGit>>20)
	}
}
