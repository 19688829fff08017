package config

import (
	"runtime"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/packsource"
	"github.com/packhorse-git/packhorse/internal/receivepack"
	"github.com/packhorse-git/packhorse/internal/repo"
	"github.com/packhorse-git/packhorse/internal/storage"
)

// GitConfig is about the git processes that make packs.
type GitConfig struct {
	// The git program: a name to be found in PATH, or a path.
	Program string `toml:"program"`

	// How many git processes may make packs at the same time. 0 means one for each CPU.
	Slots int `toml:"slots"`

	// How many of the slots one repository may have, while others are asked for too or were within the last minute; of the slots for pushes (push.slots) and for
	// searches without an index all but one at the most. So the fetches of a busy repository do not take every slot, and one that is alone leaves none
	// idle. 0 means all but one, -1 all.
	PerRepository int `toml:"per_repository"`

	// How many packs may wait for a slot before further requests are refused.
	Queue int `toml:"queue"`

	// How long a pack may wait for a slot before its request is refused.
	Wait Duration `toml:"wait"`

	// How long one git process may run before it is killed. 0 means without a limit.
	TimeLimit Duration `toml:"time_limit"`

	// When the log is told of a git process that takes long, once while it runs and once at its end. Repacking has twenty times as long. 0 means never.
	Slow Duration `toml:"slow"`

	// Niceness of the git processes, 0 to 19: with 10, answers from the cache and small requests go first.
	Nice int `toml:"nice"`

	// Reaper says whether a second, small process ends the git commands if this one is killed: "on", "off", or "auto", which is off
	// where systemd or the end of the container does so (docs/explanation/processes.md). It needs Linux. Default auto.
	Reaper string `toml:"reaper"`

	// Threads of each git process. 0 divides the CPUs, or what a control group's quota leaves of them, by the slots.
	Threads int `toml:"threads"`

	// Delta window (git's pack.window) for packs with whole history and for what a client lacks. -1 is git's own choice, 10;
	// docs/decisions/0001 has what 5 saves.
	Window int `toml:"window"`

	// Delta window for shallow clones. Few versions of a file are near each other in them: the next neighbour is enough.
	ShallowWindow int `toml:"shallow_window"`

	// Delta window for shallow clones of depth 1. There is one version of each file then, and to search for deltas is half of the cost
	// for hardly a byte less.
	SnapshotWindow int `toml:"snapshot_window"`

	// The zlib level of what shallow packs compress anew, 1 to 9. -1 is git's own choice.
	ShallowCompression int `toml:"shallow_compression"`

	// The most bytes that the delta window of one thread may use. It is less where the windows of all threads of all slots would take more than an eighth of the
	// memory that there is (of the machine or the control group), or a quarter of a process's share of limits.memory.
	WindowMemory Size `toml:"window_memory"`
}

// Values of git.reaper.
const (
	ReaperAuto = "auto"
	ReaperOn   = "on"
	ReaperOff  = "off"
)

func defaultGit() GitConfig {
	return GitConfig{
		Program:            "git",
		Queue:              256,
		Wait:               Duration{time.Minute},
		TimeLimit:          Duration{time.Hour},
		Slow:               Duration{30 * time.Second},
		Nice:               5,
		Reaper:             ReaperAuto,
		Window:             5,
		ShallowWindow:      1,
		ShallowCompression: 3,
		WindowMemory:       256 << 20,
	}
}

func (c *GitConfig) checkNumbers(b bounds) {
	b.number("git.slots", c.Slots, 0, 1024)
	b.number("git.per_repository", c.PerRepository, -1, 1024)
	b.number("git.queue", c.Queue, 0, many)
	b.number("git.nice", c.Nice, 0, 19)
	b.number("git.threads", c.Threads, 0, 1024)
	b.number("git.window", c.Window, -1, 10000)
	b.number("git.shallow_window", c.ShallowWindow, -1, 10000)
	b.number("git.snapshot_window", c.SnapshotWindow, -1, 10000)
	b.number("git.shallow_compression", c.ShallowCompression, -1, 9)
	b.time("git.wait", c.Wait)
	b.time("git.slow", c.Slow)
}

// slots is how many git processes run at the same time.
func (c *GitConfig) slots() int {
	if c.Slots == 0 {
		return runtime.GOMAXPROCS(0)
	}
	return c.Slots
}

// ThreadsPerPack is how many threads each of them has.
func (c *GitConfig) ThreadsPerPack() int {
	if c.Threads == 0 {
		return max(1, runtime.GOMAXPROCS(0)/c.slots())
	}
	return c.Threads
}

// RefsLimits bound the git commands that list refs: short ones, of repositories with reftables alone, one for each change.
func RefsLimits() process.Limits {
	return process.Limits{Slots: 4, Queue: 256, Wait: 10 * time.Second, Time: 15 * time.Second}
}

// ManageLimits bound the git commands that make repositories, which take milliseconds.
func ManageLimits() process.Limits {
	return process.Limits{Slots: 2, Queue: 64, Wait: 10 * time.Second, Time: 30 * time.Second}
}

// maintainLimits bound those that repack, out of everybody's way.
func maintainLimits(slots int) process.Limits {
	return process.Limits{Slots: slots, Queue: 64, Nice: 10, Time: 2 * time.Hour}
}

// GrepLimits bound those that search in repositories without an index, behind everything that a client of git waits for.
func GrepLimits(nice int) process.Limits {
	return process.Limits{Slots: max(1, runtime.GOMAXPROCS(0)/2), Queue: 64, Wait: 5 * time.Second, Nice: min(nice+5, 19), Time: 20 * time.Second}
}

// GitClasses bound the git commands of a server.
func (c *Config) GitClasses() map[process.Class]process.Limits {
	memory := c.MemoryShares()
	classes := map[process.Class]process.Limits{
		packsource.ClassPack: {
			Slots: c.Git.slots(), Queue: c.Git.Queue, Wait: c.Git.Wait.Duration, Nice: c.Git.Nice, Time: c.Git.TimeLimit.Duration,
			Anonymous: c.Lanes.Anonymous, Memory: memory.Git, PerRepository: c.Git.PerRepository,
		},
		receivepack.ClassReceive: memory.of(c.Push.limits(c.Git.Nice, c.Lanes.Anonymous), memory.Git),
		receivepack.ClassHook:    c.Push.hookLimits(c.Git.Nice),
		repo.ClassRefs:           memory.of(RefsLimits(), memory.small),
		storage.ClassManage:      memory.of(ManageLimits(), memory.small),
		storage.ClassMaintain:    memory.of(maintainLimits(c.Lanes.Maintenance), memory.Git),
		storage.ClassGrep:        memory.of(GrepLimits(c.Git.Nice), memory.small),
	}
	for name, l := range classes {
		if l.Slow = c.Git.Slow.Duration; name == storage.ClassMaintain {
			l.Slow *= 20
		}
		classes[name] = l
	}
	return classes
}

// UpstreamLimits bound those that fetch a repository from elsewhere, for `packhorse repo import`.
func UpstreamLimits() process.Limits {
	return process.Limits{Slots: 1, Queue: 64, Nice: 5}
}
