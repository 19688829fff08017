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

	// MaxMemory is the maximum size of one memory allocation of Git while it receives a push. 0 means no limit. It
	// limits the size of objects that are stored as deltas or are not blobs, and so protects against packs that expand
	// to many GB.
	MaxMemory Size `toml:"max_memory" default:"1GiB"`

	// Fsck sets the severities of Git's checks of pushed objects (git-fsck(1), "FSCK MESSAGES"), by name: "error" refuses
	// the push, "warn" sends the client a warning, "ignore" is silent. A table [push.fsck] sets single checks and keeps
	// the other defaults. Checks without a severity are errors. The receive.fsck.* keys of a repository win
	// (docs/how-to/push.md).
	Fsck stringTable `toml:"fsck"`

	// Slots is the number of pushes that are received at the same time, each with one Git process. 0 means two for each
	// CPU.
	Slots int `toml:"slots" range:"0..1024"`

	// HooksDir is the directory of the administrator's hooks for all repositories: pre-receive, update,
	// reference-transaction, post-receive and post-update (docs/how-to/hooks.md). Empty means none.
	HooksDir string `toml:"hooks_dir" path:"yes"`

	// HooksGitConfig is the global Git configuration of hooks (GIT_CONFIG_GLOBAL): signature verification, credential
	// helpers. Programs in it win over those in the configuration of a repository. Empty means none.
	HooksGitConfig string `toml:"hooks_git_config" path:"yes"`

	// HookTimeLimit is how long a hook may run. Then it is killed, which counts as a refusal if the hook can refuse.
	HookTimeLimit Duration `toml:"hook_time_limit" default:"1m" range:">0s"`

	// RepositoryHooks sets the treatment of hooks in a repository: executable files in its hooks directory, and hook.*
	// keys of its configuration. "refuse" refuses pushes to such a repository. "run" runs the hooks after those of the
	// administrator. "ignore" does not run them. With "run", users who can write to the directory of a repository can
	// run programs as the server's user. With a store it has no effect: repositories in a store have no hooks.
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
