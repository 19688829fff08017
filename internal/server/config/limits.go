package config

import (
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// LanesConfig limits concurrent requests by class (docs/explanation/lanes.md). Requests above a limit get 429 with
// Retry-After.
type LanesConfig struct {
	// Hit is the limit for transfers of packs from the cache and of long lists of refs.
	Hit int `toml:"hit" default:"4096" range:"1.."`

	// Cold is the limit for fetches whose pack is not in the cache, with those that wait for a slot (git.slots).
	Cold int `toml:"cold" default:"2048" range:"1.."`

	// RequestBytes is the maximum memory of all Git requests together, without the first 64 KiB of each. One caller may
	// hold as much as is free, and anonymous callers together at most half.
	RequestBytes Size `toml:"request_bytes" default:"512MiB" range:"1MiB.."`
}

// AnonymousShare is the share of each lane and of the memory of requests that anonymous callers may use together if
// callers can be known. It is also how often they come first when both wait.
const AnonymousShare = 0.5

// LimitsConfig limits the whole server.
type LimitsConfig struct {
	// Memory is the maximum memory of the server and its Git processes, without memory-mapped files, hooks and search. A
	// quarter is for the server. The slots of git.slots and push.slots share the rest, and a Git process that needs more
	// fails. 0 means no limit. It needs Linux.
	Memory Size `toml:"memory"`
}

const (
	// leastGit is the least memory in bytes with which git is useful.
	leastGit = 32 << 20
	// quarters is the divisor of the share of small Git processes: they do not make packs, receive pushes or repack.
	quarters = 4
)

// MemoryShares divides limits.memory among processes, in bytes. Zero means no limit.
type MemoryShares struct {
	Server int64
	Git    int64 // of one pack in the server, or one process that makes a pack, receives a push or repacks
	small  int64 // of one other Git process
}

// MemoryShares returns the shares of limits.memory.
func (c *Config) MemoryShares() MemoryShares {
	all := int64(c.Limits.Memory)
	if all == 0 {
		return MemoryShares{}
	}
	// A push and a repack have two processes each, and one of them only starts the other.
	large, both := c.Git.slots()+archiveLimits().Slots, c.Maintenance.Slots
	if c.Push.Enabled {
		both += c.Push.slots()
	}
	if len(c.Mirror) > 0 {
		large += ingestLimits().Slots
	}
	count := quarters*large + (quarters+1)*both + RefsLimits().Slots + ManageLimits().Slots + GrepLimits().Slots +
		MergeLimits().Slots + InspectLimits().Slots
	s := MemoryShares{Server: all / 4}
	s.Git = (all - s.Server) / int64(count) * quarters
	s.small = s.Git / quarters
	return s
}

// Collected returns the part of limits.memory that the garbage collector keeps the server in, in bytes: its own share,
// and those of the packs that it makes.
func (c *Config) Collected() int64 {
	s := c.MemoryShares()
	if c.Packs.Source != PacksByGit {
		s.Server += int64(c.Git.slots()) * s.Git
	}
	return s.Server
}

// of returns limits with the memory of a share.
func (s MemoryShares) of(l process.Limits, share int64) process.Limits {
	l.Memory = share
	return l
}

// AtMost returns the smaller of n and a share. A share of zero does not limit.
func AtMost(n, share int64) int64 {
	if share == 0 {
		return n
	}
	return min(n, share)
}

// checkMemory reports a memory limit in which no Git process could run.
func (c *Config) checkMemory(f *Findings) {
	if s := c.MemoryShares(); s.Git < leastGit && c.Limits.Memory != 0 {
		f.bad("limits.memory is %s: a git process would have %d MiB of it, and needs at least %d. Increase it, or reduce "+
			"git.slots and push.slots",
			c.Limits.Memory, s.Git>>20, leastGit>>20)
	}
}
