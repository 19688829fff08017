package config

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/webhook"
)

// PushConfig sets how pushes are received. A push needs write permission.
type PushConfig struct {
	// Enabled accepts pushes.
	Enabled bool `toml:"enabled" default:"true"`

	// Create lists patterns of paths at which the first push creates the repository, as in auth.rule. "{name}" stands for
	// the name of the caller, and the rules must permit the caller to write there: "users/{name}/**". Empty means none.
	Create []string `toml:"create"`

	// MaxSize is the maximum size of the pack of a push. 0 means no limit. A lower receive.maxInputSize of a repository
	// wins.
	MaxSize Size `toml:"max_size" default:"4GiB"`

	// MaxMemory is the maximum size of one memory allocation of Git while it receives a push, and so of objects that are
	// deltas or not blobs. 0 means no limit.
	MaxMemory Size `toml:"max_memory" default:"1GiB"`

	// Fsck sets the severities of Git's checks of pushed objects (git-fsck(1), "FSCK MESSAGES"), by name: "error", "warn"
	// or "ignore". Checks without a severity are errors. The receive.fsck.* keys of a repository win.
	Fsck stringTable `toml:"fsck"`

	// SigningKey is the file of a private SSH key without a passphrase. It signs commits that callers of the API ask to
	// sign. Empty means that such calls are refused.
	SigningKey string `toml:"signing_key" path:"file"`

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

	// PrivateWebhooks lets webhooks that are added by calls use addresses of private networks and of this machine.
	PrivateWebhooks bool `toml:"private_webhooks"`
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

// WebhookConfig is a webhook, which is asked about pushes or notified of them by HTTP (docs/how-to/webhooks.md). Each
// webhook is a separate table.
type WebhookConfig struct {
	// Name is the name of the webhook in directories, logs and metrics: letters, digits, ".", "_" and "-".
	Name string `toml:"name"`

	// URL is the URL to which requests are sent with POST: "http://..." or "https://...".
	URL string `toml:"url"`

	// Events lists when requests are sent: "pre-receive" before refs change, and the response decides; "post-receive"
	// after they have changed.
	Events []string `toml:"events" default:"post-receive"`

	// Repositories lists patterns of repositories, as in auth.rule. Empty means all.
	Repositories []string `toml:"repositories"`

	// SecretFile is the file with the secret that signs requests (Packhorse-Signature); see storage.secret_file. Empty
	// means that they are not signed.
	SecretFile string `toml:"secret_file" path:"secret"`

	// Timeout is how long one request may take, including the response.
	Timeout Duration `toml:"timeout" default:"10s" range:">0s"`

	// OnFailure is the result of a push if the webhook fails: "closed" refuses it, "open" accepts it.
	OnFailure string `toml:"on_failure" default:"closed" values:"closed open"`

	// AllowPrivate allows addresses of private networks and of this machine.
	AllowPrivate bool `toml:"allow_private"`
}

// Values of webhook.events and webhook.on_failure.
const (
	EventPre   = "pre-receive"
	EventPost  = "post-receive"
	FailOpen   = "open"
	maxTargets = 16
)

// checkWebhooks reports mistakes in [[webhook]] tables.
func (c *Config) checkWebhooks(f *Findings) {
	names := map[string]bool{}
	if len(c.Webhook) > maxTargets {
		f.at("webhook", "there are %d webhooks: at most %d are allowed", len(c.Webhook), maxTargets)
	}
	if _, err := auth.ParsePatterns(c.Push.Create); err != nil {
		f.at("push.create", "%w", err)
	}
	for i := range c.Webhook {
		w := &c.Webhook[i]
		bad := func(key, format string, args ...any) {
			f.at(fmt.Sprintf("webhook[%d].%s", i, key), "webhook %q: %w", w.Name, fmt.Errorf(format, args...))
		}
		if err := webhook.CheckName(w.Name); err != nil {
			bad("name", "name: %w", err)
		} else if names[w.Name] {
			bad("name", "there are two of that name")
		}
		names[w.Name] = true
		if _, err := webhook.ParseURL(w.URL); err != nil {
			bad("url", "%w", err)
		}
		isUnknown := func(e string) bool { return e != EventPre && e != EventPost }
		if len(w.Events) == 0 || slices.ContainsFunc(w.Events, isUnknown) {
			bad("events", "events is %q; it has to have %q, %q or both", w.Events, EventPre, EventPost)
		}
		if _, err := auth.ParsePatterns(w.Repositories); err != nil {
			bad("repositories", "repositories: %w", err)
		}
	}
}
