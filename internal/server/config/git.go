package config

import (
	"runtime"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/archive"
	"github.com/packhorse-git/packhorse/internal/node/ingest"
	"github.com/packhorse-git/packhorse/internal/node/inspect"
	"github.com/packhorse-git/packhorse/internal/node/merge"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// GitConfig limits the making of packs, and sets the Git processes that make some of them.
type GitConfig struct {
	// Program is the Git program: a name to look up in PATH, or a path.
	Program string `toml:"program" default:"git"`

	// Slots is the number of packs that are made at the same time. 0 means one for each CPU.
	Slots int `toml:"slots" range:"0..1024"`

	// TimeLimit is how long the making of a pack, a push, or a request of the API of repositories may take. 0 means no
	// limit; pushes and the API then have a day.
	TimeLimit Duration `toml:"time_limit" default:"1h"`

	// Reaper starts a second, small process, which ends the Git commands if this one is killed: "on", "off", or "auto".
	// "auto" is off where systemd or the container does so (docs/explanation/processes.md). It needs Linux.
	Reaper string `toml:"reaper" default:"auto" values:"auto on off"`
}

// Values of git.reaper.
const (
	ReaperAuto = "auto"
	ReaperOff  = "off"
)

const (
	// gitQueue is the maximum number of packs, or pushes, that wait for a slot. Further requests are refused.
	gitQueue = 256
	// gitWait is how long a pack or a push may wait for a slot. Then its request is refused.
	gitWait = time.Minute
	// gitNice is the niceness of Git processes for clients. Responses from the cache and small requests come first.
	gitNice = 5
	// gitSlow is the time after which a running Git process is logged, and again at its end. For repacks it is twenty
	// times as long.
	gitSlow = 30 * time.Second
	// searchNice is the niceness of searches in repositories without an index.
	searchNice = 10
)

// slots returns the number of packs that are made at the same time.
func (c *GitConfig) slots() int {
	if c.Slots == 0 {
		return runtime.GOMAXPROCS(0)
	}
	return c.Slots
}

// ThreadsPerPack returns the number of threads for each of them: its share of the CPUs, or of the CPU quota of the
// control group.
func (c *GitConfig) ThreadsPerPack() int { return max(1, runtime.GOMAXPROCS(0)/c.slots()) }

// RefsLimits are the limits of Git commands that list refs. They are short, and run for repositories with reftables
// only, once after each change.
func RefsLimits() process.Limits {
	return process.Limits{Slots: 4, Queue: 256, Wait: 10 * time.Second, Time: 15 * time.Second}
}

// ManageLimits are the limits of Git commands that create repositories, which take milliseconds.
func ManageLimits() process.Limits {
	return process.Limits{Slots: 2, Queue: 64, Wait: 10 * time.Second, Time: 30 * time.Second}
}

// maintainLimits are the limits of repacks, which have a low priority.
func maintainLimits(slots int) process.Limits {
	return process.Limits{Slots: slots, Queue: 64, Nice: 10, Time: 2 * time.Hour}
}

// GrepLimits are the limits of searches in repositories without an index. Commands for Git clients come first.
func GrepLimits() process.Limits {
	return process.Limits{Slots: max(1, runtime.GOMAXPROCS(0)/2), Queue: 64, Wait: 5 * time.Second, Nice: searchNice,
		Time: 20 * time.Second}
}

// MergeLimits are the limits of Git commands that merge. A command stays for the merges of a repository for up to a
// minute, so that each merge has at least four minutes.
func MergeLimits() process.Limits {
	return process.Limits{Slots: max(2, runtime.GOMAXPROCS(0)), Queue: 64, Wait: 30 * time.Second, Nice: gitNice,
		Time: 5 * time.Minute, PerRepository: -1}
}

// InspectLimits are the limits of patches and blames.
func InspectLimits() process.Limits {
	return process.Limits{Slots: max(2, runtime.GOMAXPROCS(0)), Queue: gitQueue, Wait: 10 * time.Second, Nice: gitNice,
		Time: time.Minute}
}

// GitClasses returns the limits of the Git commands of a server.
func (c *Config) GitClasses() map[process.Class]process.Limits {
	memory := c.MemoryShares()
	classes := map[process.Class]process.Limits{
		packsource.ClassPack: {
			Slots: c.Git.slots(), Queue: gitQueue, Wait: gitWait, Nice: gitNice,
			Time:      c.Git.TimeLimit.Duration,
			Anonymous: AnonymousShare, Memory: memory.Git,
		},
		receivepack.ClassReceive: memory.of(c.Push.limits(c.Git.TimeLimit.Duration), memory.Git),
		receivepack.ClassHook:    c.Push.hookLimits(),
		receivepack.ClassUpdate:  memory.of(updateLimits(), memory.small),
		repo.ClassRefs:           memory.of(RefsLimits(), memory.small),
		places.ClassManage:       memory.of(ManageLimits(), memory.small),
		places.ClassMaintain:     memory.of(maintainLimits(c.Maintenance.Slots), memory.Git),
		ingest.Class:             memory.of(ingestLimits(), memory.Git),
		archive.Class:            memory.of(archiveLimits(), memory.Git),
		storage.ClassGrep:        memory.of(GrepLimits(), memory.small),
		merge.Class:              memory.of(MergeLimits(), memory.small),
		inspect.Class:            memory.of(InspectLimits(), memory.small),
	}
	for name, l := range classes {
		switch l.Slow = gitSlow; name {
		case places.ClassMaintain:
			l.Slow *= 20
		case merge.Class: // the commands stay
			l.Slow += merge.WorkerAge
		}
		classes[name] = l
	}
	return classes
}

// archiveLimits are the limits of the making of archives. This process compresses them at the same time.
func archiveLimits() process.Limits {
	return process.Limits{Slots: max(1, runtime.GOMAXPROCS(0)/2), Queue: gitQueue, Wait: gitWait, Nice: gitNice,
		Time: 10 * time.Minute, Anonymous: AnonymousShare}
}

// updateLimits are the limits of the commands that stay to change the refs of busy repositories. Without a slot, a
// change is made like a push.
func updateLimits() process.Limits {
	return process.Limits{Slots: 64, Queue: 64, Wait: 50 * time.Millisecond, Time: 10 * time.Minute, PerRepository: -1}
}

// ingestLimits are the limits of the commands that take over objects for mirrors.
func ingestLimits() process.Limits {
	return process.Limits{Slots: 8, Queue: 10_000, Nice: gitNice, PerRepository: -1}
}

// UpstreamLimits are the limits of `packhorse repo import`, which fetches a repository from another server.
func UpstreamLimits() process.Limits {
	return process.Limits{Slots: 1, Queue: 64, Nice: 5}
}
