package config

import "time"

// WebhookConfig is somebody whom a node asks or tells about pushes by HTTP (docs/how-to/webhooks.md); each has a table of its own.
type WebhookConfig struct {
	// What directories, logs and metrics call it: letters, digits, ".", "_" and "-".
	Name string `toml:"name"`

	// Where requests are sent with POST: "http://..." or "https://...".
	URL string `toml:"url"`

	// When: "pre-receive", before refs change: it decides; "post-receive", after they have: it is told.
	Events []string `toml:"events"`

	// Patterns of the repositories that it is about, as in auth.rule. Empty: all.
	Repositories []string `toml:"repositories"`

	// File with the secret by which requests are signed (Packhorse-Signature); see storage.secret_file. Empty: they are not.
	SecretFile string `toml:"secret_file"`

	// How long one request may take, its answer included.
	Timeout Duration `toml:"timeout"`

	// What becomes of a push about which it does not decide: "closed", it is refused, or "open", it is taken.
	OnFailure string `toml:"on_failure"`

	// Whether its address may be one of a private network or of this machine.
	AllowPrivate bool `toml:"allow_private"`

	// How long a delivery is tried before it is put aside.
	GiveUp Duration `toml:"give_up"`
}

func defaultWebhook() WebhookConfig {
	return WebhookConfig{Events: []string{EventPost}, Timeout: Duration{10 * time.Second}, OnFailure: failClosed, GiveUp: Duration{7 * 24 * time.Hour}}
}
