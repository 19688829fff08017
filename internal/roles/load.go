package roles

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/spf13/pflag"
)

// setting is one key of the configuration: its dotted name and its field in a Config.
type setting struct {
	Key   string
	Value reflect.Value
}

// settings lists the keys in the order of the struct. What stands in an array of tables has the number of its table, counted from 0, in
// its key: "node[1].weight".
func settings(c *Config) []setting {
	var list []setting
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			key := prefix + v.Type().Field(i).Tag.Get("toml")
			field := v.Field(i)
			_, isText := field.Addr().Interface().(encoding.TextUnmarshaler)
			switch {
			case field.Kind() == reflect.Struct && !isText:
				walk(key+".", field)
			case isTables(field.Type()):
				for j := range field.Len() {
					walk(fmt.Sprintf("%s[%d].", key, j), field.Index(j))
				}
			default:
				list = append(list, setting{key, field})
			}
		}
	}
	walk("", reflect.ValueOf(c).Elem())
	return list
}

// isTables tells an array of tables.
func isTables(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct
}

// arrays calls do for each array of tables with its name.
func arrays(c *Config, do func(name string, array reflect.Value)) {
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			name, field := prefix+v.Type().Field(i).Tag.Get("toml"), v.Field(i)
			_, isText := field.Addr().Interface().(encoding.TextUnmarshaler)
			switch {
			case field.Kind() == reflect.Struct && !isText:
				walk(name+".", field)
			case isTables(field.Type()):
				do(name, field)
			}
		}
	}
	walk("", reflect.ValueOf(c).Elem())
}

// keys lists every key that a configuration may have, with its default: of an array of tables those of its first table.
func keys() []setting {
	cfg := DefaultConfig()
	arrays(&cfg, func(name string, array reflect.Value) {
		array.Set(reflect.Append(array, reflect.ValueOf(defaultElement(name))))
	})
	list := settings(&cfg)
	for i := range list {
		list[i].Key = plainKey(list[i].Key)
	}
	return list
}

var numberOfTable = regexp.MustCompile(`\[[0-9]+\]`)

// plainKey is a key without the number of its table.
func plainKey(key string) string { return numberOfTable.ReplaceAllString(key, "") }

// String is the value as a flag takes it.
func (s setting) String() string { return fmt.Sprint(s.Value.Interface()) }

// TOML is the value as a file has it.
func (s setting) TOML() string {
	if words, ok := s.Value.Interface().([]string); ok {
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = strconv.Quote(w)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	}
	if _, ok := s.Value.Interface().(encoding.TextMarshaler); ok || s.Value.Kind() == reflect.String {
		return strconv.Quote(s.String())
	}
	return s.String()
}

// Set and Type, with String, make a setting a pflag.Value.
func (s setting) Set(text string) error {
	if u, ok := s.Value.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch s.Value.Kind() {
	case reflect.String:
		s.Value.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is not true or false", text)
		}
		s.Value.SetBool(b)
	case reflect.Slice:
		return errors.New("this is no list")
	default:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		s.Value.SetInt(int64(n))
	}
	return nil
}

// Type names the kind of value in --help.
func (s setting) Type() string {
	switch s.Value.Interface().(type) {
	case Size:
		return "size"
	case Duration:
		return "duration"
	case bool:
		return "bool"
	case int:
		return "number"
	}
	return "text"
}

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

// source tells what the configuration is read from: a file, and flags over it. It can be read again.
type source struct {
	role    role
	env     Env
	file    string
	flags   *pflag.FlagSet
	defined role   // whose flags these are
	values  Config // where the flags are parsed to
	noCache bool
	nodes   nodeFlags
}

// addConfigFlags defines the flags of a role on a command; those of no role are all.
func addConfigFlags(flags *pflag.FlagSet, role role, env Env) *source {
	s := &source{role: role, defined: role, env: env, flags: flags, values: DefaultConfig()}
	flags.StringVar(&s.file, "config", "", "read the configuration from `FILE` (TOML); flags go over it")
	byKey := map[string]setting{}
	for _, f := range settings(&s.values) {
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
	if role.flags()&repositories != 0 {
		flags.BoolVar(&s.noCache, "no-cache", false, "make every pack anew and keep none")
	}
	if role.flags()&asking != 0 {
		flags.Var(&s.nodes, "node", "ask the storage node at `NAME=ADDRESS[,WEIGHT]`, HOST:PORT or unix:PATH; give one for each node")
	}
	return s
}

// origins tells for each key where its value came from: "default", "FILE:LINE" or "--FLAG".
type origins map[string]string

// load reads the configuration: defaults, then the file, then flags.
func (s *source) load() (Config, origins, error) {
	cfg := DefaultConfig()
	from := origins{}
	for _, f := range settings(&cfg) {
		from[f.Key] = "default"
	}
	if s.file != "" {
		if err := loadFile(s.file, &cfg, from); err != nil {
			return cfg, from, err
		}
	}
	given := map[string]setting{}
	for _, f := range settings(&s.values) {
		given[f.Key] = f
	}
	target := map[string]setting{}
	for _, f := range settings(&cfg) {
		target[f.Key] = f
	}
	for _, f := range configFlags {
		if f.roles&s.defined.flags() != 0 && s.flags.Changed(f.flag) {
			target[f.key].Value.Set(given[f.key].Value)
			from[f.key] = "--" + f.flag
		}
	}
	if s.noCache {
		cfg.Cache.Enabled = false
		from["cache.enabled"] = "--no-cache"
	}
	s.nodes.addTo(&cfg, from)
	cfg.complete(s.role, s.env)
	return cfg, from, nil
}

// maxConfigFile bounds a configuration file in bytes.
const maxConfigFile = 1 << 20

func loadFile(file string, cfg *Config, from origins) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigFile+1))
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	if len(text) > maxConfigFile {
		return fmt.Errorf("%s: a configuration file has at most %s", file, Size(maxConfigFile))
	}
	if err := decode(text, cfg); err != nil {
		return inFile(file, text, err)
	}
	at := places(text)
	if err := singleTables(file, cfg, at); err != nil {
		return err
	}
	setElementDefaults(cfg, at)
	for _, s := range settings(cfg) {
		if p, given := at[s.Key]; given {
			from[s.Key] = fmt.Sprintf("%s:%d", file, p.line)
		} else {
			from[s.Key] = "default"
		}
	}
	return nil
}

// singleTables finds [node] where [[node]] is meant: the decoder takes it for one of them.
func singleTables(file string, cfg *Config, given map[string]place) error {
	line, name := 0, ""
	arrays(cfg, func(array string, _ reflect.Value) {
		for key, at := range given {
			if strings.HasPrefix(key, array+".") && (line == 0 || at.line < line) {
				line, name = at.line, array
			}
		}
	})
	if line == 0 {
		return nil
	}
	return fmt.Errorf("%s:%d: there may be several %ss; write [[%s]]", file, line, name, name)
}

// setElementDefaults sets what the tables of arrays do not say; the decoder leaves it zero.
func setElementDefaults(cfg *Config, given map[string]place) {
	arrays(cfg, func(name string, array reflect.Value) {
		for i := range array.Len() {
			defaults := reflect.ValueOf(defaultElement(name))
			for j := range defaults.NumField() {
				key := fmt.Sprintf("%s[%d].%s", name, i, defaults.Type().Field(j).Tag.Get("toml"))
				if _, ok := given[key]; !ok {
					array.Index(i).Field(j).Set(defaults.Field(j))
				}
			}
		}
	})
}

func decode(text []byte, cfg *Config) error {
	return toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(cfg)
}

// inFile says where in the file each mistake is, one line each, and for unknown keys which key could have been meant.
func inFile(file string, text []byte, err error) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		var all []error
		for i := range unknown.Errors {
			e := &unknown.Errors[i]
			line, _ := e.Position()
			key := strings.Join(e.Key(), ".")
			all = append(all, fmt.Errorf("%s:%d: unknown key %.100q; %s", file, line, key, suggest(key)))
		}
		return errors.Join(all...)
	}
	var bad *toml.DecodeError
	if errors.As(err, &bad) {
		line, column := bad.Position()
		msg := strings.TrimPrefix(bad.Error(), "toml: ")
		if key := strings.Join(bad.Key(), "."); key != "" {
			msg = key + ": " + msg
		}
		return fmt.Errorf("%s:%d:%d: %s", file, line, column, msg)
	}
	// The decoder does not say where a bare number stood that should have been a string.
	known := map[string]setting{}
	for _, s := range keys() {
		known[s.Key] = s
	}
	at := places(text)
	for _, key := range slices.SortedFunc(maps.Keys(at), func(a, b string) int { return cmp.Compare(at[a].line, at[b].line) }) {
		s, ok := known[plainKey(key)]
		if !ok || s.Value.Kind() == reflect.Slice {
			continue
		}
		if err := s.Set(at[key].value); err != nil {
			return fmt.Errorf("%s:%d: %s: %w", file, at[key].line, s.Key, err)
		}
	}
	return fmt.Errorf("%s: %w", file, err)
}

// suggest names the key that an unknown one most resembles, or where to look.
func suggest(key string) string {
	const where = "docs/config.md and \"packhorse config show\" list the keys"
	if len(key) > 100 {
		return where
	}
	best, nearest := len(key)/2+1, ""
	consider := func(known string) {
		if d := editDistance(key, known); d < best {
			best, nearest = d, known
		}
	}
	inTable := ""
	for _, f := range keys() {
		table, last, nested := strings.Cut(f.Key, ".")
		if nested && key == last && inTable == "" {
			inTable = f.Key
		}
		consider(f.Key)
		consider(table)
	}
	if inTable != "" && best > 1 { // the right key outside its table, and nothing is a letter away
		nearest = inTable
	}
	if nearest == "" {
		return where
	}
	return fmt.Sprintf("did you mean %q?", nearest)
}

// editDistance counts the insertions, deletions and replacements that turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j]+1, row[j+1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// place is where a key stands in a document, and its value as it is written there.
type place struct {
	line  int
	value string
}

// places finds the keys of a valid document.
func places(text []byte) map[string]place {
	found := map[string]place{}
	var p unstable.Parser
	p.Reset(text)
	var table []string
	tables := map[string]int{} // of each array
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table:
			table, _ = keyOf(&p, e.Key())
		case unstable.ArrayTable:
			table, _ = keyOf(&p, e.Key())
			name := strings.Join(table, ".")
			table = []string{fmt.Sprintf("%s[%d]", name, tables[name])}
			tables[name]++
		case unstable.KeyValue:
			addPlaces(&p, e, table, found)
		}
	}
	return found
}

func addPlaces(p *unstable.Parser, e *unstable.Node, table []string, found map[string]place) {
	parts, line := keyOf(p, e.Key())
	key := append(table[:len(table):len(table)], parts...)
	v := e.Value()
	if v.Kind == unstable.InlineTable {
		for children := v.Children(); children.Next(); {
			addPlaces(p, children.Node(), key, found)
		}
		return
	}
	if v.Kind == unstable.Array {
		i := 0
		for children := v.Children(); children.Next(); i++ {
			if c := children.Node(); c.Kind == unstable.InlineTable { // node = [{...}, {...}]
				for fields := c.Children(); fields.Next(); {
					addPlaces(p, fields.Node(), []string{fmt.Sprintf("%s[%d]", strings.Join(key, "."), i)}, found)
				}
			}
		}
	}
	found[strings.Join(key, ".")] = place{line, string(v.Data)}
}

func keyOf(p *unstable.Parser, it unstable.Iterator) (parts []string, line int) {
	for it.Next() {
		n := it.Node()
		parts = append(parts, string(n.Data))
		if line == 0 {
			line = p.Shape(n.Raw).Start.Line
		}
	}
	return parts, line
}
