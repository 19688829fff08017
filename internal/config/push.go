package config

import (
	"runtime"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/receivepack"
)

// PushConfig says how pushes are taken. Each needs a caller who may write.
type PushConfig struct {
	// Whether pushes are taken at all.
	Enabled bool `toml:"enabled"`

	// Whether the first push to an empty repository sets its HEAD, where HEAD names a branch that is not among those pushed: to main, else master, else
	// the first branch pushed. Without it, clones of a repository whose HEAD names another branch check out nothing.
	SetHead bool `toml:"set_head"`

	// The most bytes of a push's pack. 0 means without a limit. A repository's own receive.maxInputSize holds if it is less.
	MaxSize Size `toml:"max_size"`

	// The most bytes that git may ask for in one piece while it takes a push. 0 means without a limit. Objects that are stored as deltas, or are no blobs,
	// cannot be larger; what a few KB claim to be many GB is refused.
	MaxMemory Size `toml:"max_memory"`

	// The severities of git's checks of pushed objects (git-fsck(1), "FSCK MESSAGES"), by name: "error" refuses the push, "warn" tells the client,
	// "ignore" says nothing. A table [push.fsck] sets single checks and leaves the other defaults. Checks without a severity are errors. The
	// receive.fsck.* of a repository go over it (docs/how-to/push.md).
	Fsck fsckSeverities `toml:"fsck"`

	// The most refs that one push may change.
	MaxCommands int `toml:"max_commands"`

	// The most options (`git push -o`) of one push. 0 means that none may be sent; so does receive.advertisePushOptions = false in a repository's config.
	MaxOptions int `toml:"max_options"`

	// How many pushes may be taken at the same time: each is one git process. 0 means two for each CPU.
	Slots int `toml:"slots"`

	// How many pushes may wait for a slot before further ones are refused.
	Queue int `toml:"queue"`

	// How long a push may wait for a slot before it is refused.
	Wait Duration `toml:"wait"`

	// How long one push may take before it is given up.
	TimeLimit Duration `toml:"time_limit"`

	// HooksDir is a directory with the administrator's hooks for all repositories: pre-receive, update, reference-transaction, post-receive and
	// post-update, as far as they are there (docs/how-to/push.md). Empty means none.
	HooksDir string `toml:"hooks_dir"`

	// HooksGitConfig is a file with git configuration for git within hooks, as a global configuration is (GIT_CONFIG_GLOBAL): signature
	// verification, credential helpers. Programs that it names win over those that a repository's configuration names. Empty means none.
	HooksGitConfig string `toml:"hooks_git_config"`

	// HookTimeLimit is the longest time that one hook may run. After it the hook is killed, and has refused, if it could.
	HookTimeLimit Duration `toml:"hook_time_limit"`

	// RepositoryHooks says what becomes of hooks that a repository has itself, as executable files in its hooks directory or as hook.* in its
	// configuration: "refuse" rejects pushes to such a repository, "run" runs them after the administrator's, "ignore" does not run them.
	// "run" lets whoever can write to a repository's directory run programs as the server's user.
	RepositoryHooks string `toml:"repository_hooks"`
}

func defaultPush() PushConfig {
	return PushConfig{
		Enabled:       true,
		SetHead:       true,
		MaxSize:       4 << 30,
		MaxMemory:     1 << 30,
		Fsck:          receivepack.DefaultFsck(),
		MaxCommands:   100_000,
		MaxOptions:    100,
		Queue:         256,
		Wait:          Duration{time.Minute},
		TimeLimit:     Duration{time.Hour},
		HookTimeLimit: Duration{time.Minute},

		RepositoryHooks: string(receivepack.RefuseHooks),
	}
}

func (c *PushConfig) checkNumbers(b bounds) {
	b.size("push.max_size", c.MaxSize, 0)
	b.size("push.max_memory", c.MaxMemory, 0)
	for _, err := range receivepack.ValidateFsck(c.Fsck) {
		b.bad("push.fsck: %w", err)
	}
	b.number("push.max_commands", c.MaxCommands, 1, many)
	b.number("push.max_options", c.MaxOptions, 0, 10_000)
	b.number("push.slots", c.Slots, 0, 1024)
	b.number("push.queue", c.Queue, 0, many)
	b.time("push.wait", c.Wait)
	b.time("push.time_limit", c.TimeLimit)
	b.time("push.hook_time_limit", c.HookTimeLimit)
}

// slots is how many pushes are taken at the same time.
func (c *PushConfig) slots() int {
	if c.Slots == 0 {
		return 2 * runtime.GOMAXPROCS(0)
	}
	return c.Slots
}

// limits bound the git commands that take pushes.
func (c *PushConfig) limits(nice int, anonymous float64) process.Limits {
	return process.Limits{Slots: c.slots(), Queue: c.Queue, Wait: c.Wait.Duration, Nice: nice, Time: c.TimeLimit.Duration, Anonymous: anonymous}
}

// hookLimits bound hooks: each belongs to a push, which has had to wait already.
func (c *PushConfig) hookLimits(nice int) process.Limits {
	return process.Limits{Slots: 2 * c.slots(), Queue: c.Queue, Nice: nice, PerRepository: -1}
}

// HookPolicy is what becomes of repositories' own hooks; "": no pushes are taken.
func (c *PushConfig) HookPolicy() receivepack.RepositoryHooks {
	if !c.Enabled {
		return ""
	}
	return receivepack.RepositoryHooks(c.RepositoryHooks)
}
