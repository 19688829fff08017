package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
)

// MirrorConfig mirrors the repositories of a Git host, the origin (docs/how-to/mirror.md). Each origin is a separate
// table. The flag --origin of "packhorse mirror" adds a table. SIGHUP reads the tables again. Storage nodes and their
// gateways need the same tables.
type MirrorConfig struct {
	// From is the URL of the origin: "https://HOST/", "http://HOST/" or "ssh://USER@HOST/". With a path only the
	// repositories below it are mirrored.
	From string `toml:"from"`

	// To is the path of the mirrors below the root: the mirror of https://github.com/acme/app is github.com/acme/app.
	// Empty means the host, without its port, and the path of from.
	To string `toml:"to"`

	// Allow lists patterns of the repositories that may be mirrored, by their paths below from: "acme/**" (see auth.rule).
	// Empty means all.
	Allow []string `toml:"allow"`

	// Deny lists patterns of the repositories that are not mirrored. It wins over allow, and ignores case.
	Deny []string `toml:"deny"`

	// Refs lists the refs that are mirrored. One "*" matches any characters, as in "refs/pull/*/head".
	Refs []string `toml:"refs" default:"refs/heads/* refs/tags/*"`

	// Fresh sets when a fetch asks the origin for changes: "always", after a duration such as "30s", or "webhook": after
	// the origin has announced a change, and every ten minutes.
	Fresh string `toml:"fresh" default:"always"`

	// StaleFor is how long a mirror is served while its origin does not answer.
	StaleFor Duration `toml:"stale_for" default:"24h"`

	// Push sends pushes to the origin with the caller's credential ("origin"), or refuses them ("refuse"). Pushes to an
	// SSH origin are always refused.
	Push string `toml:"push" default:"origin" values:"origin refuse"`

	// Auth sets who decides about readers: "origin" tries the caller's own credential there; with "rules" [auth] decides,
	// and the mirror fetches with its own credential. SSH origins need "rules".
	Auth string `toml:"auth" default:"origin" values:"origin rules"`

	// ChangeRequests lets readers of a mirror with auth = "rules" fetch pull, merge and change requests by their IDs,
	// although they are not in refs. Each such fetch asks the origin for their list.
	ChangeRequests bool `toml:"change_requests"`

	// FirstUse creates a mirror when a repository is first requested. Otherwise "packhorse mirror add" does.
	FirstUse bool `toml:"first_use" default:"true"`

	// FoldCase gives paths that only differ in case the same mirror, as GitHub, GitLab and Gitea do.
	FoldCase bool `toml:"fold_case"`

	// User is the user name of the mirror's own credential. Forges accept any name with most tokens.
	User string `toml:"user" needs:"token_file"`

	// TokenFile is the file with the token of the mirror's own credential; see storage.secret_file for its mode. Changes
	// apply at once.
	TokenFile string `toml:"token_file" path:"yes"`

	// AppID is the ID of a GitHub App, whose installation tokens are the mirror's own credential.
	AppID int `toml:"app_id" range:"0.." needs:"app_installation app_key_file"`

	// AppInstallation is the ID of the installation of the GitHub App.
	AppInstallation int `toml:"app_installation" range:"0.." needs:"app_id"`

	// AppKeyFile is the PEM file with the private key of the GitHub App.
	AppKeyFile string `toml:"app_key_file" path:"yes" needs:"app_id"`

	// SSHKey is the file with the private key for an SSH origin.
	SSHKey string `toml:"ssh_key" path:"yes" needs:"known_hosts"`

	// KnownHosts is the file with the host keys of an SSH origin, in the format of ssh-keyscan(1).
	KnownHosts string `toml:"known_hosts" path:"yes" needs:"ssh_key"`

	// CA is the PEM file with the authorities of the origin's certificate. Empty means those of the system.
	CA string `toml:"ca" path:"authorities"`

	// Proxy is the URL of an HTTP proxy for requests to the origin. Empty means none. Variables of the environment are
	// ignored.
	Proxy string `toml:"proxy"`

	// Private allows an origin whose name has addresses of private networks or of this machine. URLs with an address, or
	// localhost, are always allowed.
	Private bool `toml:"private"`

	// Requests is the maximum number of requests that run at the origin at the same time.
	Requests int `toml:"requests" default:"16" range:"1..1000"`

	// PerMinute is the maximum number of requests to the origin in a minute. Zero means no limit. Tables with the
	// same host share requests and per_minute of the first one.
	PerMinute int `toml:"per_minute" range:"0.."`

	// MaxPack is the maximum size of one pack from the origin. 0 means no limit.
	MaxPack Size `toml:"max_pack"`

	// LFSHosts lists other hosts that the origin may name for the transfer of LFS objects: "HOST", "HOST:PORT", or
	// "*.DOMAIN" for all hosts in a domain. An error names a host that is missing.
	LFSHosts []string `toml:"lfs_hosts"`

	// WebhookSecretFile is the file with the secret of the origin's webhooks; see storage.secret_file. Empty means that
	// there are none.
	WebhookSecretFile string `toml:"webhook_secret_file" path:"secret"`
}

// Values of keys of [[mirror]].
const (
	MirrorByOrigin   = "origin"  // auth and push: the origin decides
	MirrorByRules    = "rules"   // auth
	MirrorAlways     = "always"  // fresh
	MirrorByWebhooks = "webhook" // fresh
)

// mirrorAddress is the default of http.address for "packhorse mirror".
const mirrorAddress = ":8080"

// setMirrorDefaults sets the defaults that "packhorse mirror" has and serve does not. Its clients are on other
// machines, and an index of all mirrors would cost more than it is used.
func (c *Config) setMirrorDefaults(from Origins) {
	if len(c.Mirror) > 0 && from["http.address"] == "default" {
		c.HTTP.Address = mirrorAddress
	}
	if from["search.enabled"] == "default" {
		c.Search.Enabled = false
	}
}

// maxMirrors is the maximum number of [[mirror]] tables.
const maxMirrors = 1000

// URL returns the origin's URL, whose path ends with a slash. The error contains the correct form.
func (m *MirrorConfig) URL() (*url.URL, error) {
	if m.From == "" {
		return nil, errors.New("which origin? write its URL, as in \"https://github.com/\"")
	}
	if strings.Contains(m.From, "@") && !strings.HasPrefix(m.From, "ssh://") {
		return nil, errors.New("the URL contains a user name or a password: name a file with the token as token_file, or " +
			"write ssh://USER@HOST/ for SSH")
	}
	u, err := origin.ParseURL(m.From)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawPath = path.Join("/", u.Path), ""
	if u.Path != "/" {
		u.Path += "/"
	}
	return u, nil
}

// name returns from for messages, without a user name or a password.
func (m *MirrorConfig) name() string {
	scheme, rest, ok := strings.Cut(m.From, "://")
	if authority, _, _ := strings.Cut(rest, "/"); ok && scheme != "ssh" && strings.Contains(authority, "@") {
		return scheme + "://..." + rest[strings.Index(rest, "@"):]
	}
	return m.From
}

// complete sets To if it is empty.
func (m *MirrorConfig) complete() {
	if u, err := m.URL(); err == nil && m.To == "" {
		m.To = path.Join(u.Hostname(), u.Path)
	}
	m.To = strings.Trim(m.To, "/")
}

// Freshness parses fresh.
func (m *MirrorConfig) Freshness() (mirror.Freshness, error) {
	switch m.Fresh {
	case MirrorAlways:
		return mirror.Freshness{}, nil
	case MirrorByWebhooks:
		return mirror.Freshness{Webhook: true}, nil
	}
	every, err := time.ParseDuration(m.Fresh)
	if err != nil || every <= 0 {
		return mirror.Freshness{}, fmt.Errorf("%q is not \"always\", \"webhook\" or a duration, as in \"30s\"", m.Fresh)
	}
	return mirror.Freshness{Every: every}, nil
}

// Allowed returns a function that reports whether a repository may be mirrored, by its path below from.
func (m *MirrorConfig) Allowed() (func(git.RepoPath) bool, error) {
	allow, err := foldPatterns(m.Allow, m.FoldCase)
	if err != nil {
		return nil, err
	}
	deny, err := foldPatterns(m.Deny, true) // the origin may ignore case even if fold_case is not set
	return func(repo git.RepoPath) bool {
		folded, err := git.ParseRepoPath(strings.ToLower(repo.String()))
		if m.FoldCase {
			repo = folded
		}
		return err == nil && (len(allow) == 0 || covers(allow, repo)) && !covers(deny, folded)
	}, err
}

func covers(patterns []auth.Pattern, repo git.RepoPath) bool {
	return slices.ContainsFunc(patterns, func(p auth.Pattern) bool { return p.Covers(repo) })
}

// foldPatterns parses patterns, in lower case if fold is set.
func foldPatterns(list []string, fold bool) ([]auth.Pattern, error) {
	if fold {
		list = slices.Clone(list)
		for i := range list {
			list[i] = strings.ToLower(list[i])
		}
	}
	return auth.ParsePatterns(list)
}

// checkMirrors reports mistakes in [[mirror]] tables.
func (c *Config) checkMirrors(f *Findings) {
	if len(c.Mirror) > maxMirrors {
		f.at("mirror", "there are %d mirrors: at most %d are allowed", len(c.Mirror), maxMirrors)
	}
	places := map[string]bool{}
	for i := range c.Mirror {
		m := &c.Mirror[i]
		bad := func(key, format string, args ...any) {
			f.at(fmt.Sprintf("mirror[%d].%s", i, key), "mirror %q: %w", m.name(), fmt.Errorf(key+": "+format, args...))
		}
		u, err := m.URL()
		if err != nil {
			bad("from", "%w", err)
			continue
		}
		if _, err := git.ParseRepoPath(m.To); err != nil {
			bad("to", "%w", err)
		} else if places[strings.ToLower(m.To)] {
			bad("to", "there are two mirrors at %q; write a separate to for each", m.To)
		}
		places[strings.ToLower(m.To)] = true
		m.check(u, bad)
		m.checkCredential(u, bad)
	}
}

// check reports mistakes in the values of a table with the URL u.
func (m *MirrorConfig) check(u *url.URL, bad func(key, format string, args ...any)) {
	for key, patterns := range map[string][]string{"allow": m.Allow, "deny": m.Deny} {
		if _, err := auth.ParsePatterns(patterns); err != nil {
			bad(key, "%w", err)
		}
	}
	if len(m.Refs) == 0 {
		bad("refs", "there are none; remove the key to mirror branches and tags")
	}
	for _, pattern := range m.Refs {
		if err := mirror.CheckRefPattern(pattern); err != nil {
			bad("refs", "%w", err)
		}
	}
	for _, host := range m.LFSHosts {
		if err := origin.ParseHost(host); err != nil {
			bad("lfs_hosts", "%w", err)
		}
	}
	if fresh, err := m.Freshness(); err != nil {
		bad("fresh", "%w", err)
	} else if fresh.Webhook && m.WebhookSecretFile == "" {
		bad("fresh", "\"webhook\" needs webhook_secret_file, the secret that the origin signs its webhooks with")
	}
	if u.Scheme == "ssh" && m.Auth == MirrorByOrigin {
		bad("auth", "an SSH origin cannot decide about readers: set auth = \"rules\", and give them permissions with "+
			"[[auth.rule]] tables or tokens")
	}
	if m.Proxy != "" {
		if p, err := url.Parse(m.Proxy); err != nil || p.Scheme != "http" && p.Scheme != "https" || p.Host == "" {
			bad("proxy", "it is not a URL with http or https and a host") // not shown, because it may contain a password
		}
	}
}

// checkCredential reports mistakes in the mirror's own credential.
func (m *MirrorConfig) checkCredential(u *url.URL, bad func(key, format string, args ...any)) {
	switch {
	case m.AppID != 0 && m.TokenFile != "":
		bad("token_file", "there is more than one credential: use one of token_file and app_id")
	case u.Scheme == "ssh" && (m.AppID != 0 || m.TokenFile != ""):
		bad("from", "an SSH origin uses ssh_key, and not token_file or app_id")
	}
	switch {
	case u.Scheme == "ssh" && m.SSHKey == "":
		bad("ssh_key", "an SSH origin needs ssh_key and known_hosts")
	case u.Scheme != "ssh" && m.SSHKey != "":
		bad("ssh_key", "ssh_key and known_hosts are for origins with ssh://")
	}
}

// checkDisk checks the files with the credential of a table.
func (m *MirrorConfig) checkDisk(prefix string, f *Findings, quiet *slog.Logger) {
	bad := func(key string, err error) {
		f.addAbout(prefix+key, fmt.Sprintf("mirror %q: %s", m.name(), key), err)
	}
	u, err := m.URL()
	if err != nil {
		return
	}
	o := origin.Options{URL: u, Log: quiet}
	if m.TokenFile != "" {
		_, err := origin.NewTokenFile(m.TokenFile, m.User, quiet)
		bad("token_file", err)
	}
	if m.AppKeyFile != "" {
		_, err := origin.NewGitHubApp(origin.GitHubAppOptions{Origin: o, KeyFile: m.AppKeyFile, Log: quiet})
		bad("app_key_file", err)
	}
	if m.SSHKey != "" && m.KnownHosts != "" && u.Scheme == "ssh" {
		o.SSH = &origin.SSHOptions{KeyFile: m.SSHKey, KnownHosts: m.KnownHosts}
		host, err := origin.New(o)
		if err == nil {
			err = host.Close()
		}
		bad("ssh_key", err)
	}
}

// originsDecide reports whether an origin decides about readers of its repositories. Then callers on other machines get
// no other repository without a rule or a token.
func (c *Config) originsDecide() bool { return c.Auth.Origin.URL != "" || c.mirrorsAskOrigin() }

// mirrorsAskOrigin is originsDecide without a forge on the same disk.
func (c *Config) mirrorsAskOrigin() bool {
	return slices.ContainsFunc(c.Mirror, func(m MirrorConfig) bool { return m.Auth == MirrorByOrigin })
}

// mirrorFlags are the flags of "packhorse mirror" for its tables.
type mirrorFlags struct {
	origins  []string
	fresh    string
	staleFor Duration
}

func (m *mirrorFlags) define(flags *pflag.FlagSet) {
	flags.StringArrayVar(&m.origins, "origin", nil,
		"mirror the repositories of the Git host at `URL`, as in https://github.com; repeat it for each host")
	flags.StringVar(&m.fresh, "fresh", MirrorAlways,
		"`WHEN` to ask an origin for changes: always, webhook, or after a duration such as 30s")
	m.staleFor.Duration = 24 * time.Hour
	flags.Var(Setting{Value: reflect.ValueOf(&m.staleFor).Elem()}, "stale-for",
		"serve a mirror for `DURATION` while its origin does not answer")
}

// addTo adds a table for each origin that has none, and sets the keys of all tables.
func (m *mirrorFlags) addTo(cfg *Config, from Origins, flags *pflag.FlagSet) {
	for _, origin := range m.origins {
		if slices.ContainsFunc(cfg.Mirror, func(c MirrorConfig) bool { return c.From == origin }) {
			continue
		}
		table := newTables[MirrorConfig]()
		table[0].From = origin
		prefix := fmt.Sprintf("mirror[%d].", len(cfg.Mirror))
		from.setDefaults(prefix, reflect.ValueOf(&table[0]).Elem())
		from[prefix+"from"] = "--origin"
		cfg.Mirror = append(cfg.Mirror, table...)
	}
	for i := range cfg.Mirror {
		if flags.Changed("fresh") {
			cfg.Mirror[i].Fresh, from[fmt.Sprintf("mirror[%d].fresh", i)] = m.fresh, "--fresh"
		}
		if flags.Changed("stale-for") {
			cfg.Mirror[i].StaleFor, from[fmt.Sprintf("mirror[%d].stale_for", i)] = m.staleFor, "--stale-for"
		}
	}
}

// DefaultRoot returns the root of "packhorse mirror" without a configured one, or "" if there is no place for it.
func DefaultRoot(getenv func(string) string) string {
	if home := stateHome(getenv); home != "" {
		return filepath.Join(home, "packhorse", string(RoleMirror))
	}
	return ""
}
