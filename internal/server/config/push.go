package config

import (
	"runtime"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// PushConfig sets how pushes are received. A push needs write permission.
type PushConfig struct {
	// Enabled accepts pushes.
	Enabled bool `toml:"enabled" default:"true"`

	// MaxSize is the maximum size of the pack of a push. 0 means no limit. A lower receive.maxInputSize of a repository
	// wins.
	MaxSize Size `toml:"max_size" default:"4GiB"`

	// MaxMemory is the maximum size of one memory allocation of Git while it receives a push, and so of objects that are
	// deltas or not blobs. 0 means no limit.
	MaxMemory Size `toml:"max_memory" default:"1GiB"`

	// Fsck sets the severities of Git's checks of pushed objects (git-fsck(1), "FSCK MESSAGES"), by name: "error", "warn"
	// or "ignore". Checks without a severity are errors. The receive.fsck.* keys of a repository win.
	Fsck stringTable `toml:"fsck"`

	// Slots is the number of pushes that are received at the same time. 0 means two for each CPU.
	Slots int `toml:"slots" range:"0..1024"`

	// HooksDir is the directory of the administrator's hooks for all repositories (docs/how-to/hooks.md).
	HooksDir string `toml:"hooks_dir" path:"directory"`

	// HooksGitConfig is the global Git configuration of hooks (GIT_CONFIG_GLOBAL). Programs in it win over those in the
	// configuration of a repository. Empty means none.
	HooksGitConfig string `toml:"hooks_git_config" path:"file"`

	// HookTimeLimit is how long a hook may run. Then it is killed, which counts as a refusal if the hook can refuse.
	HookTimeLimit Duration `toml:"hook_time_limit" default:"1m" range:">0s"`

	// RepositoryHooks sets the treatment of hooks in a repository and of its hook.* keys: "refuse" pushes, "ignore" the
	// hooks, or "run" them as the server's user.
	RepositoryHooks string `toml:"repository_hooks" default:"refuse" values:"refuse run ignore"`
}

// slots returns the number of pushes that are received at the same time.
func (c *PushConfig) slots() int {
	if c.Slots == 0 {
		return 2 * runtime.GOMAXPROCS(0)
	}
	return c.Slots
}

// limits returns the limits of the Git commands that receive pushes.
func (c *PushConfig) limits(limit time.Duration) process.Limits {
	return process.Limits{Slots: c.slots(), Queue: gitQueue, Wait: gitWait, Nice: gitNice, Time: limit,
		Anonymous: AnonymousShare}
}

// hookLimits returns the limits of hooks. They do not wait, because their pushes have waited.
func (c *PushConfig) hookLimits() process.Limits {
	return process.Limits{Slots: 2 * c.slots(), Queue: gitQueue, Nice: gitNice, PerRepository: -1}
}

// HookPolicy returns the treatment of hooks of repositories, or "" if pushes are off.
func (c *PushConfig) HookPolicy() receivepack.RepositoryHooks {
	if !c.Enabled {
		return ""
	}
	return receivepack.RepositoryHooks(c.RepositoryHooks)
}
