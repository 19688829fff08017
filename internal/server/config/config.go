// Package config is the configuration: its keys, the origins of their values, and their checks.
//
// Config has a field for every key. The comment of a field is its documentation, and its tags have the name, the
// default and the bounds:
//
//	default  the default as a configuration file has it; zero without this tag
//	range    the bounds of a number, a size or a duration: "1..100", "64KiB..", ">0s", ">0..1"
//	values   the words that a text may have
//	needs    other keys of the table, without which the key has no effect
//	path     marks a path, which is made absolute; "secret", "authorities", "file" and "directory" are checked
//
// A Source loads a Config: the defaults, a TOML file over them, and flags over both. Findings collects all mistakes in
// it, each with its line. Methods turn values into the plain options of other packages. Code that opens files for a
// server or starts something is in package roles.
package config

import (
	_ "embed"
	"fmt"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Config is everything that can be set, in the order in which docs/reference/config.md shows it. The comments on the
// fields are that page: `make docs` writes it. Large tables are in separate files, with their defaults
// and bounds.
type Config struct {
	// Root is the directory that contains the repositories, at any depth: bare repositories and ".git" directories. With a
	// store it has the local copies. In "packhorse mirror" empty means packhorse/mirror below $XDG_STATE_HOME or
	// ~/.local/state.
	Root string `toml:"root" path:"yes"`

	// State is the directory for the process's own files: lock, pack cache, tokens, admin socket. One process uses it
	// at a time. Empty means ROOT/.packhorse, or for a gateway or a search process packhorse/gateway or packhorse/search
	// below $XDG_STATE_HOME or ~/.local/state.
	State string `toml:"state" path:"yes"`

	// TrustedProxies lists the networks of the proxies in front of this server, as in "10.0.0.0/8". Limits, rules and the
	// log see the client in their X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Host, or PROXY headers
	// (http.proxy_protocol, ssh.proxy_protocol). These headers of others, and Forwarded, are ignored.
	TrustedProxies []string `toml:"trusted_proxies"`

	HTTP     HTTPConfig      `toml:"http"`
	Pages    PagesConfig     `toml:"pages"`
	SSH      SSHConfig       `toml:"ssh"`
	App      AppConfig       `toml:"app"`
	Auth     AuthConfig      `toml:"auth"`
	Storage  StorageConfig   `toml:"storage"`
	Store    StoreConfig     `toml:"store"`
	Node     []NodeConfig    `toml:"node"`
	Route    []RouteConfig   `toml:"route"`
	Mirror   []MirrorConfig  `toml:"mirror"`
	Ops      OpsConfig       `toml:"ops"`
	Shutdown ShutdownConfig  `toml:"shutdown"`
	Cache    CacheConfig     `toml:"cache"`
	Packs    PacksConfig     `toml:"packs"`
	Git      GitConfig       `toml:"git"`
	Fetch    FetchConfig     `toml:"fetch"`
	Push     PushConfig      `toml:"push"`
	LFS      LFSConfig       `toml:"lfs"`
	Webhook  []WebhookConfig `toml:"webhook"`
	Lanes    LanesConfig     `toml:"lanes"`
	Limits   LimitsConfig    `toml:"limits"`
	Log      LogConfig       `toml:"log"`

	Maintenance MaintenanceConfig `toml:"maintenance"`
	Warmup      WarmupConfig      `toml:"warmup"`
	Search      SearchConfig      `toml:"search"`
	Index       IndexConfig       `toml:"index"`
	Resolver    ResolverConfig    `toml:"resolver"`
	SLI         SLIConfig         `toml:"sli"`
	Watchdog    WatchdogConfig    `toml:"watchdog"`
	Tracing     TracingConfig     `toml:"tracing"`
}

// ShutdownConfig sets how the process stops.
type ShutdownConfig struct {
	// Delay is how long the process accepts requests after readiness turns red, so that load balancers notice.
	// Responses have Connection: close meanwhile.
	Delay Duration `toml:"delay"`

	// Grace is how long running requests may take to finish. Then they are cut off.
	Grace Duration `toml:"grace" default:"30s"`
}

// DefaultConfig returns the defaults: those in the tags of the fields, and the lists that other packages define.
func DefaultConfig() Config {
	var c Config
	setDefaults(&c)
	algorithms := gitssh.DefaultAlgorithms()
	c.SSH.KeyExchanges, c.SSH.Ciphers = algorithms.KeyExchanges, algorithms.Ciphers
	c.Push.Fsck = receivepack.DefaultFsck()
	return c
}

// automatic returns the choices of the server for keys whose value leaves the choice to it. A choice that depends on a
// disk is known at the start only.
func (c *Config) automatic() map[string]string {
	auto := map[string]string{}
	add := func(key string, left bool, choice string) {
		if left {
			auto[key] = "auto" + choice
		}
	}
	add("git.slots", c.Git.Slots == 0, fmt.Sprintf(": %d here", c.Git.slots()))
	add("push.slots", c.Push.Slots == 0, fmt.Sprintf(": %d here", c.Push.slots()))
	add("cache.max_bytes", c.Cache.MaxBytes == 0, "")
	add("lfs.min_free", c.LFS.Enabled && c.LFS.MinFree == 0, "")
	add("store.cache", c.Store.Enabled() && c.Store.Cache == 0, "")
	return auto
}

// Complete fills in values that follow from others and makes paths absolute, so that `config show` prints the values
// that are used.
func (c *Config) Complete(role Role, getenv func(string) string) {
	if role == RoleMirror && c.Root == "" {
		c.Root = DefaultRoot(getenv)
	}
	if c.State == "" {
		c.State = DefaultState(role, c.Root, getenv)
	}
	for i := range c.Mirror {
		c.Mirror[i].complete()
	}
	if c.Auth.Tokens == "" && c.State != "" && role.FacesClients() {
		c.Auth.Tokens = filepath.Join(c.State, "tokens")
	}
	if c.Cache.Dir == "" && c.State != "" && role.OwnsRepositories() {
		c.Cache.Dir = filepath.Join(c.State, "cache")
	}
	if c.Index.Dir == "" && c.State != "" && role != RoleStorage && role != RoleGateway {
		c.Index.Dir = filepath.Join(c.State, "search")
	}
	for _, s := range Settings(c) {
		if path := s.Value.String(); s.tag.Get("path") != "" && path != "" {
			if abs, err := filepath.Abs(path); err == nil {
				s.Value.SetString(abs)
			}
		}
	}
}

// CreatesRoot reports whether a process creates its root: that of mirrors, and that of a store's local copies.
func (c *Config) CreatesRoot(role Role) bool { return role == RoleMirror || c.Store.Enabled() }

// DefaultState returns the state directory of a process without a configured one, or "" if there is no place for it.
func DefaultState(role Role, root string, getenv func(string) string) string {
	if role == RoleMirror && root == "" {
		root = DefaultRoot(getenv)
	}
	if role != RoleGateway && role != RoleSearch {
		if root == "" {
			return ""
		}
		return filepath.Join(root, ".packhorse")
	}
	if home := stateHome(getenv); home != "" {
		return filepath.Join(home, "packhorse", string(role))
	}
	return ""
}

// stateHome returns the user's directory for state, or "" if there is none.
func stateHome(getenv func(string) string) string {
	home := getenv("XDG_STATE_HOME")
	if filepath.IsAbs(home) { // The XDG Base Directory Specification ignores relative paths.
		return home
	}
	if home = getenv("HOME"); home == "" {
		return ""
	}
	return filepath.Join(home, ".local", "state")
}

// AdminSocket returns the path of the admin socket of a process with a state directory (package adminapi).
func AdminSocket(state string) string { return filepath.Join(state, "admin.sock") }

// DumpDir returns the directory of the watchdog's dumps of a process with a state directory.
func DumpDir(state string) string { return filepath.Join(state, "dumps") }

// Starter is a configuration file to start from. It has the keys that most servers set, with comments. Keys that are
// commented out show their defaults.
//
//go:embed starter.toml
var Starter string
