package config

import (
	"reflect"

	"github.com/spf13/pflag"
)

// Roles that have a flag.
const (
	inServe = 1 << iota
	inStorage
	inGateway
	inSearch
	inMirror
	repositories = inServe | inMirror | inStorage // roles that own repositories
	public       = inServe | inMirror | inGateway // roles that clients reach
	asking       = inGateway | inSearch           // roles that ask storage nodes
	everywhere   = repositories | public | inSearch
)

// configFlags are the flags that set a key. Other keys are set in the file only.
var configFlags = []struct {
	flag, key string
	roles     int
	usage     string
}{
	{"root", "root", repositories, "serve the repositories below `DIR`"},
	{"state", "state", everywhere,
		"keep the server's own files in `DIR` (default ROOT/.packhorse; for gateway and search below ~/.local/state/packhorse)"},
	{"store", "store.url", inServe | inStorage,
		"keep repositories in the store at `URL`, s3://BUCKET/PREFIX; the root is a cache"},
	{"http", "http.address", public, "public listener, `HOST:PORT`; port 0 chooses a free port"},
	{"public-read", "http.public_read", public, "let everybody read every repository"},
	{"tls-cert", "http.tls_cert", public, "PEM `FILE` with the TLS certificate and chain; changes apply at once"},
	{"tls-key", "http.tls_key", public, "PEM `FILE` with the private key of --tls-cert"},
	{"ssh", "ssh.address", public, "SSH listener, `HOST:PORT` (default none)"},
	{"ssh-keys", "ssh.authorized_keys", public, "public keys of SSH users, `FILE|DIR`"},
	{"listen", "storage.listen", repositories, "port for gateways and the control API, `HOST:PORT|unix:PATH`"},
	{"listen", "search.listen", inSearch, "port for gateways, `HOST:PORT|unix:PATH`"},
	{"search", "search.address", inGateway, "send searches to the search process at `HOST:PORT|unix:PATH`"},
	{"ops", "ops.address", everywhere, "private listener for metrics, health and profiles, `HOST:PORT`"},
	{"ops-expose", "ops.expose", everywhere, "allow an --ops address that other machines can reach"},
	{"shutdown-grace", "shutdown.grace", everywhere, "let running requests finish for `DURATION` after SIGTERM"},
	{"cache-dir", "cache.dir", repositories, "directory of the pack cache, `DIR` (default STATE/cache)"},
	{"cache-max-bytes", "cache.max_bytes", repositories,
		"maximum `SIZE` of the pack cache, like 10GiB (default 10 GiB or a tenth of the disk)"},
	{"packs", "packs.source", repositories, "what makes packs: `auto|native|git`"},
	{"git", "git.program", repositories, "the Git program, a name or `PATH`"},
	{"git-slots", "git.slots", repositories, "number of packs that are made at the same time (default one for each CPU)"},
	{"wants", "fetch.wants", repositories, "which objects may be requested by ID: `auto|any|reachable|tip`"},
	{"log-level", "log.level", everywhere, "`LEVEL`: debug, info, warn or error"},
	{"log-format", "log.format", everywhere, "`FORMAT`: terminal, text, json or auto"},
}

// AddFlags defines the flags of a role on a command. RoleAny defines those of all roles with clients or repositories.
func AddFlags(flags *pflag.FlagSet, role Role, getenv func(string) string) *Source {
	s := &Source{Role: role, defined: role, getenv: getenv, flags: flags, values: DefaultConfig()}
	if role == RoleMirror {
		s.values.HTTP.Address = mirrorAddress // for the help
	}
	flags.StringVar(&s.File, "config", "", "read the configuration from `FILE` (TOML); flags win over it")
	byKey := map[string]Setting{}
	for _, f := range Settings(&s.values) {
		byKey[f.Key] = f
	}
	for _, f := range configFlags {
		if f.roles&role.flags() == 0 {
			continue
		}
		flag := flags.VarPF(byKey[f.key], f.flag, "", f.usage)
		if byKey[f.key].Value.Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}
	if role.OwnsRepositories() {
		flags.BoolVar(&s.noCache, "no-cache", false, "do not cache packs")
	}
	if role.asksNodes() {
		flags.Var(&s.nodes, "node",
			"use the storage node at `NAME=ADDRESS[,WEIGHT]`, HOST:PORT or unix:PATH; repeat it for each node")
	}
	if role == RoleMirror {
		flags.Lookup("root").Usage += " (default ~/.local/state/packhorse/mirror)"
		s.mirrors.define(flags)
	}
	return s
}
