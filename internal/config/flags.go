package config

import (
	"reflect"

	"github.com/spf13/pflag"
)

// Which roles a flag is for.
const (
	inServe = 1 << iota
	inStorage
	inGateway
	inSearch
	repositories = inServe | inStorage  // roles that own repositories
	public       = inServe | inGateway  // roles that clients reach
	asking       = inGateway | inSearch // roles that ask storage nodes
	everywhere   = repositories | public | inSearch
)

// configFlags are the flags that stand for a key; everything else is in the file.
var configFlags = []struct {
	flag, key string
	roles     int
	usage     string
}{
	{"root", "root", repositories, "serve the repositories below `DIR`"},
	{"state", "state", everywhere, "keep the lock, the cache and the admin socket in `DIR` (default ROOT/.packhorse; of a gateway or search process below ~/.local/state/packhorse)"},
	{"http", "http.address", public, "public listener, `HOST:PORT`; port 0 picks a free one"},
	{"public-read", "http.public_read", public, "let everybody who reaches the listener read every repository"},
	{"tls-cert", "http.tls_cert", public, "TLS certificate and chain, PEM `FILE`; read again when it changes"},
	{"tls-key", "http.tls_key", public, "private key of --tls-cert, PEM `FILE`"},
	{"ssh", "ssh.address", public, "SSH listener, `HOST:PORT`; none unless given"},
	{"ssh-keys", "ssh.authorized_keys", public, "public keys of users for --ssh, `FILE|DIR`"},
	{"listen", "storage.listen", repositories, "port for gateways and the control API, `HOST:PORT|unix:PATH`"},
	{"listen", "search.listen", inSearch, "port for gateways, `HOST:PORT|unix:PATH`"},
	{"search", "search.address", inGateway, "have the search process at `HOST:PORT|unix:PATH` answer searches"},
	{"ops", "ops.address", everywhere, "private listener for metrics, health and profiles, `HOST:PORT`"},
	{"ops-expose", "ops.expose", everywhere, "accept an --ops address that other machines can reach"},
	{"shutdown-grace", "shutdown.grace", everywhere, "how long running requests may take to end after SIGTERM (`DURATION`)"},
	{"cache-dir", "cache.dir", repositories, "directory of the pack cache, `DIR` (default STATE/cache)"},
	{"cache-max-bytes", "cache.max_bytes", repositories, "most bytes in the pack cache, as a `SIZE` like 10GiB; 0: 10 GiB or a tenth of the disk"},
	{"git", "git.program", repositories, "the git program, a name or `PATH`"},
	{"git-slots", "git.slots", repositories, "how many git processes may make packs at once; 0: one for each CPU"},
	{"wants", "fetch.wants", repositories, "what may be asked for by object ID: `auto|any|reachable|tip`"},
	{"log-level", "log.level", everywhere, "`LEVEL`: debug, info, warn or error"},
	{"log-format", "log.format", everywhere, "`FORMAT`: terminal, text, json, or auto (terminal on a terminal, else json)"},
}

// AddFlags defines the flags of a role on a command; those of no role are all.
func AddFlags(flags *pflag.FlagSet, role Role, getenv func(string) string) *Source {
	s := &Source{Role: role, defined: role, getenv: getenv, flags: flags, values: DefaultConfig()}
	flags.StringVar(&s.File, "config", "", "read the configuration from `FILE` (TOML); flags go over it")
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
		flags.BoolVar(&s.noCache, "no-cache", false, "make every pack anew and keep none")
	}
	if role.asksNodes() {
		flags.Var(&s.nodes, "node", "ask the storage node at `NAME=ADDRESS[,WEIGHT]`, HOST:PORT or unix:PATH; give one for each node")
	}
	return s
}
