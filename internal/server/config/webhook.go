package config

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
	SecretFile string `toml:"secret_file" path:"yes"`

	// Timeout is how long one request may take, including the response.
	Timeout Duration `toml:"timeout" default:"10s" range:">0s"`

	// OnFailure is the result of a push if the webhook fails: "closed" refuses it, "open" accepts it.
	OnFailure string `toml:"on_failure" default:"closed" values:"closed open"`

	// AllowPrivate allows addresses of private networks and of this machine.
	AllowPrivate bool `toml:"allow_private"`
}
