// Package config is the configuration: its keys, where their values come from, and the checks of them.
//
// Config has every key as a field, and the field's comment is its documentation. A Source loads it: the defaults, a
// TOML file over them, and flags over both. Findings are all that is wrong with it, each with its place in the file.
// Methods turn values into the plain options of the packages that take them; what has files opened or anything started
// is in package roles.
package config

import (
	"fmt"
	"path/filepath"
	"time"
)

// Config is everything that can be set, in the order in which docs/reference/config.md shows it. The comments on the
// fields are that page: `make docs` writes it. Tables with much in them have files of their own, with their defaults
// and bounds.
type Config struct {
	// Root is the directory that contains the repositories, at any depth: bare repositories and ".git" directories. It
	// must exist.
	Root string `toml:"root"`

	// State is the directory for the process's own files: lock, pack cache, tokens, admin socket. One process uses it
	// at a time. Empty means ROOT/.packhorse. A gateway or a search process has no root: empty means packhorse/gateway
	// or packhorse/search below $XDG_STATE_HOME or ~/.local/state. A server notes another directory in
	// ROOT/.packhorse/state.json, where commands find it.
	State string `toml:"state"`

	// TrustedProxies lists the networks of the proxies in front of this server, as in "10.0.0.0/8". The server believes
	// their X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Host, and with http.proxy_protocol and
	// ssh.proxy_protocol their PROXY headers. Limits, rules and the log then see the client. These headers of others
	// are ignored. The Forwarded header is always ignored, because many proxies forward it from clients.
	TrustedProxies []string `toml:"trusted_proxies"`

	HTTP     HTTPConfig      `toml:"http"`
	SSH      SSHConfig       `toml:"ssh"`
	App      AppConfig       `toml:"app"`
	Auth     AuthConfig      `toml:"auth"`
	Storage  StorageConfig   `toml:"storage"`
	Node     []NodeConfig    `toml:"node"`
	Route    []RouteConfig   `toml:"route"`
	Ops      OpsConfig       `toml:"ops"`
	Shutdown ShutdownConfig  `toml:"shutdown"`
	Cache    CacheConfig     `toml:"cache"`
	Git      GitConfig       `toml:"git"`
	Cgroup   CgroupConfig    `toml:"cgroup"`
	Fetch    FetchConfig     `toml:"fetch"`
	Push     PushConfig      `toml:"push"`
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

// OpsConfig is the private listener for metrics, health and profiles.
type OpsConfig struct {
	// Address is the host and port of the private listener. Empty means none. It serves profiles to everybody who can
	// connect.
	Address string `toml:"address"`

	// Expose allows an address that other machines can reach. Set it only if the network is trusted.
	Expose bool `toml:"expose"`

	// Tree makes each scrape measure all child processes, for the metrics packhorse_tree_*
	// (docs/explanation/observability.md). It needs Linux.
	Tree bool `toml:"tree"`

	// Activity lists the requests in flight and the repositories and callers that were most expensive in the last
	// minutes, for /debug/top and "packhorse top". It also provides the IDs in log lines and the totals of Git
	// commands. It costs about a microsecond for each request.
	Activity bool `toml:"activity"`
}

// ShutdownConfig sets how the process stops.
type ShutdownConfig struct {
	// Delay is how long the process accepts requests after readiness turns red, so that load balancers notice.
	// Responses have Connection: close meanwhile.
	Delay Duration `toml:"delay"`

	// Grace is how long running requests may take to finish. Then they are cut off.
	Grace Duration `toml:"grace"`
}

// LogConfig is the log on standard error.
type LogConfig struct {
	// Level is the least severe level that is logged: "debug", "info", "warn" or "error".
	Level string `toml:"level"`

	// Format is "json", "text" (key=value), "terminal" (short lines for people) or "auto": terminal on a terminal, JSON
	// elsewhere. Lines on a terminal are colored unless NO_COLOR is set or TERM is "dumb".
	Format string `toml:"format"`
}

// DefaultConfig is what holds where nothing was said.
func DefaultConfig() Config {
	return Config{
		TrustedProxies: []string{},

		HTTP:     defaultHTTP(),
		SSH:      defaultSSH(),
		App:      defaultApp(),
		Auth:     defaultAuth(),
		Storage:  defaultStorage(),
		Ops:      OpsConfig{Address: "127.0.0.1:9090", Tree: true, Activity: true},
		Shutdown: ShutdownConfig{Grace: Duration{30 * time.Second}},
		Cache:    defaultCache(),
		Git:      defaultGit(),
		Cgroup:   defaultCgroup(),
		Fetch:    defaultFetch(),
		Push:     defaultPush(),
		Lanes:    defaultLanes(),
		Log:      LogConfig{Level: "info", Format: "auto"},

		Warmup:      defaultWarmup(),
		Maintenance: defaultMaintenance(),
		Search:      defaultSearch(),
		Index:       defaultIndex(),
		Resolver:    defaultResolver(),
		SLI:         defaultSLI(),
		Watchdog:    defaultWatchdog(),
		Tracing:     defaultTracing(),
	}
}

// defaultElement is what holds in a table of an array where nothing was said.
func defaultElement(array string) any {
	switch array {
	case "node":
		return defaultNode()
	case "route":
		return RouteConfig{}
	case "webhook":
		return defaultWebhook()
	case "auth.rule":
		return RuleConfig{}
	case "app.pool":
		return defaultPool()
	}
	panic("no array " + array)
}

// automatic tells for the keys whose value leaves the choice to serve what is chosen, as far as it is known before a
// start.
func (c *Config) automatic() map[string]string {
	auto := map[string]string{}
	add := func(key string, left bool, choice string) {
		if left {
			auto[key] = "auto" + choice
		}
	}
	add("git.slots", c.Git.Slots == 0, fmt.Sprintf(": %d here", c.Git.slots()))
	add("git.threads", c.Git.Threads == 0, fmt.Sprintf(": %d here", c.Git.ThreadsPerPack()))
	add("push.slots", c.Push.Slots == 0, fmt.Sprintf(": %d here", c.Push.slots()))
	add("cache.max_bytes", c.Cache.MaxBytes == 0, "")
	add("cache.min_free", c.Cache.MinFree == 0, "")
	return auto
}

// Complete fills in what follows from other values and makes paths absolute, so that `config show` tells what is used.
func (c *Config) Complete(role Role, getenv func(string) string) {
	if c.State == "" {
		c.State = DefaultState(role, c.Root, getenv)
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
	paths := []*string{&c.Root, &c.State, &c.Cache.Dir, &c.Index.Dir, &c.HTTP.TLSCert, &c.HTTP.TLSKey, &c.Cgroup.Path,
		&c.SSH.HostKeys, &c.SSH.AuthorizedKeys, &c.SSH.TrustedUserCA, &c.SSH.RevokedKeys,
		&c.Auth.Tokens, &c.Auth.Hook.SecretFile, &c.Storage.SecretFile, &c.Storage.TLSCert, &c.Storage.TLSKey,
		&c.Storage.ClientCA,
		&c.Push.HooksDir, &c.Push.HooksGitConfig, &c.Search.SecretFile, &c.Search.TLSCert, &c.Search.TLSKey,
		&c.Search.ClientCA, &c.Search.TLSCA,
		&c.Resolver.RedisCA, &c.Resolver.RedisPasswordFile, &c.Resolver.RedisSecretFile,
		&c.Watchdog.Dir}
	for i := range c.Webhook {
		paths = append(paths, &c.Webhook[i].SecretFile)
	}
	for i := range c.Node {
		n := &c.Node[i]
		paths = append(paths, &n.SecretFile, &n.TLSCA, &n.TLSCert, &n.TLSKey)
	}
	for _, p := range paths {
		if *p == "" {
			continue
		}
		if abs, err := filepath.Abs(*p); err == nil {
			*p = abs
		}
	}
}

// DefaultState is the state directory of a process that was told of none; "" if there is no place for it.
func DefaultState(role Role, root string, getenv func(string) string) string {
	if role != RoleGateway && role != RoleSearch {
		if root == "" {
			return ""
		}
		return filepath.Join(root, ".packhorse")
	}
	home := getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(home) { // as its specification has it
		home = getenv("HOME")
		if home == "" {
			return ""
		}
		home = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(home, "packhorse", string(role))
}
