package config

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Role is the role of a process.
type Role string

const (
	RoleServe   Role = "serve"   // gateway and node in one
	RoleStorage Role = "storage" // a storage node
	RoleGateway Role = "gateway" // listeners, without repositories
	RoleSearch  Role = "search"  // the index, for gateways
	RoleMirror  Role = "mirror"  // serve, with a root of its own for mirrors
	RoleAny     Role = ""        // unknown; for flags only
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

var roleFlags = map[Role]int{RoleServe: inServe, RoleStorage: inStorage, RoleGateway: inGateway, RoleSearch: inSearch,
	RoleMirror: inMirror, RoleAny: repositories | public}

// FacesClients reports whether Git clients connect to the role.
func (r Role) FacesClients() bool { return roleFlags[r]&public != 0 }

// OwnsRepositories reports whether the role has its own repositories.
func (r Role) OwnsRepositories() bool { return roleFlags[r]&repositories != 0 }

// IsServe reports whether the role has a gateway and a node in one process.
func (r Role) IsServe() bool { return r == RoleServe || r == RoleMirror }

// asksNodes reports whether the role asks storage nodes in other processes.
func (r Role) asksNodes() bool { return roleFlags[r]&asking != 0 }

// Set, String and Type make a role a pflag.Value.
func (r *Role) Set(text string) error {
	if _, ok := roleFlags[Role(text)]; !ok || text == "" {
		return fmt.Errorf("%q is not a role: use serve, mirror, storage, gateway or search", text)
	}
	*r = Role(text)
	return nil
}

func (r *Role) String() string { return string(*r) }

func (r *Role) Type() string { return "role" }

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
	byKey := settingsByKey(&s.values)
	for _, f := range configFlags {
		if f.roles&roleFlags[role] == 0 {
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

// Source is a file and flags from which a configuration is loaded. It can be loaded again.
type Source struct {
	Role    Role
	getenv  func(string) string // variables of the environment
	File    string
	flags   *pflag.FlagSet
	defined Role   // the role of the flags
	values  Config // of the flags
	noCache bool
	anyRoot bool // a missing root is not a mistake
	nodes   nodeFlags
	mirrors mirrorFlags
}

// FromFile returns a source without flags. A missing root is not a mistake, because --root can set it.
func FromFile(role Role, file string, getenv func(string) string) *Source {
	return &Source{Role: role, defined: role, getenv: getenv, File: file,
		flags: pflag.NewFlagSet("", pflag.ContinueOnError), values: DefaultConfig(), anyRoot: true}
}

// Origins are the origins of values by key: "default", "FILE:LINE" or "--FLAG".
type Origins map[string]string

// setDefaults notes that the values of a table are defaults.
func (o Origins) setDefaults(prefix string, table reflect.Value) {
	for _, s := range settingsOf(prefix, table) {
		o[s.Key] = "default"
	}
}

// Load reads the configuration: defaults, then the file, then flags. The error joins every mistake in
// the file.
func (s *Source) Load() (cfg Config, from Origins, wrong error) {
	cfg, from = DefaultConfig(), Origins{}
	from.setDefaults("", reflect.ValueOf(&cfg).Elem())
	if s.File != "" {
		wrong = LoadFile(s.File, &cfg, from)
	}
	given, target := settingsByKey(&s.values), settingsByKey(&cfg)
	for _, f := range configFlags {
		if f.roles&roleFlags[s.defined] != 0 && s.flags.Changed(f.flag) {
			target[f.key].Value.Set(given[f.key].Value)
			from[f.key] = "--" + f.flag
		}
	}
	if s.noCache {
		cfg.Cache.Enabled = false
		from["cache.enabled"] = "--no-cache"
	}
	s.nodes.addTo(&cfg, from)
	if s.Role == RoleMirror {
		s.mirrors.addTo(&cfg, from, s.flags)
		cfg.setMirrorDefaults(from)
	}
	cfg.Complete(s.Role, s.getenv)
	return cfg, from, wrong
}

// LoadChecked reads the configuration. The error joins everything that prevents the role from running.
func (s *Source) LoadChecked() (Config, error) {
	cfg, f := s.Inspect(true)
	return cfg, f.Err()
}

// Inspect reads the configuration and finds all mistakes that prevent the role from running. With machine it also
// checks the files and programs of this machine.
func (s *Source) Inspect(machine bool) (Config, *Findings) {
	cfg, from, err := s.Load()
	f := &Findings{from: from}
	f.take(err)
	if f.Fatal() {
		return cfg, f
	}
	if s.anyRoot && cfg.Root == "" {
		cfg.Root = "."
	}
	f.take(cfg.checkRole(s.Role))
	cfg.checkValues(f)
	if machine && (cfg.Root != "" || !s.Role.OwnsRepositories()) {
		cfg.checkDisk(s.Role, f)
	}
	return cfg, f
}

// ShowConfig prints a configuration as a file. Each line ends with the origin of the value.
func ShowConfig(w io.Writer, cfg *Config, from Origins) error {
	table, auto := "", cfg.automatic()
	var out strings.Builder
	for _, s := range Settings(cfg) {
		prefix, name := "", s.Key
		if dot := strings.LastIndex(s.Key, "."); dot >= 0 {
			prefix, name = s.Key[:dot], s.Key[dot+1:]
		}
		if prefix != table {
			table = prefix
			if array := PlainKey(table); array != table {
				fmt.Fprintf(&out, "\n[[%s]]\n", array)
			} else {
				fmt.Fprintf(&out, "\n[%s]\n", table)
			}
		}
		origin := from[s.Key]
		if choice := auto[s.Key]; choice != "" {
			origin += " (" + choice + ")"
		}
		fmt.Fprintf(&out, "%-40s # %s\n", name+" = "+s.TOML(), origin)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// ChangedKeys lists the keys whose values differ, without those of arrays of tables.
func ChangedKeys(a, b *Config) (list []string) {
	before := settingsByKey(a)
	for _, s := range Settings(b) {
		if PlainKey(s.Key) == s.Key && before[s.Key].String() != s.String() {
			list = append(list, s.Key)
		}
	}
	slices.Sort(list)
	return list
}
