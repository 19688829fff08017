package config

import (
	"fmt"
	"slices"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/node/webhook"
)

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
		f.at("webhook")("there are %d webhooks: at most %d are allowed", len(c.Webhook), maxTargets)
	}
	for i := range c.Webhook {
		w := &c.Webhook[i]
		key := fmt.Sprintf("webhook %q", w.Name)
		at := func(name string) func(string, ...any) { return f.at(fmt.Sprintf("webhook[%d].%s", i, name)) }
		if err := webhook.CheckName(w.Name); err != nil {
			at("name")("%s: name: %w", key, err)
		} else if names[w.Name] {
			at("name")("%s: there are two of that name", key)
		}
		names[w.Name] = true
		if _, err := webhook.ParseURL(w.URL); err != nil {
			at("url")("%s: %w", key, err)
		}
		if len(w.Events) == 0 || slices.ContainsFunc(w.Events,
			func(e string) bool { return e != EventPre && e != EventPost }) {
			at("events")("%s: events is %q; it has to have %q, %q or both", key, w.Events, EventPre, EventPost)
		}
		if _, err := auth.ParsePatterns(w.Repositories); err != nil {
			at("repositories")("%s: repositories: %w", key, err)
		}
	}
}
