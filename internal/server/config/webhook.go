package config

import (
	"fmt"
	"slices"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/node/webhook"
)

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
