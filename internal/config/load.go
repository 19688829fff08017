package config

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/cli"
)

// Setting is one key of the configuration: its dotted name and its field in a Config.
type Setting struct {
	Key   string
	Value reflect.Value
}

// Settings lists the keys in the order of the struct. What stands in an array of tables has the number of its table, counted from 0, in
// its key: "node[1].weight".
func Settings(c *Config) []Setting {
	var list []Setting
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
				list = append(list, Setting{key, field})
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

// Keys lists every key that a configuration may have, with its default: of an array of tables those of its first table.
func Keys() []Setting {
	cfg := DefaultConfig()
	arrays(&cfg, func(name string, array reflect.Value) {
		array.Set(reflect.Append(array, reflect.ValueOf(defaultElement(name))))
	})
	list := Settings(&cfg)
	for i := range list {
		list[i].Key = PlainKey(list[i].Key)
	}
	return list
}

var numberOfTable = regexp.MustCompile(`\[[0-9]+\]`)

// PlainKey is a key without the number of its table.
func PlainKey(key string) string { return numberOfTable.ReplaceAllString(key, "") }

// String is the value as a flag takes it.
func (s Setting) String() string { return fmt.Sprint(s.Value.Interface()) }

// TOML is the value as a file has it.
func (s Setting) TOML() string {
	if words, ok := s.Value.Interface().([]string); ok {
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = strconv.Quote(w)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	}
	if table, ok := s.Value.Interface().(fsckSeverities); ok {
		return table.TOML()
	}
	if _, ok := s.Value.Interface().(encoding.TextMarshaler); ok || s.Value.Kind() == reflect.String {
		return strconv.Quote(s.String())
	}
	return s.String()
}

// Set and Type, with String, make a setting a pflag.Value.
func (s Setting) Set(text string) error {
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
	case reflect.Map:
		return errors.New("this is no table")
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
func (s Setting) Type() string {
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

// Source tells what the configuration is read from: a file, and flags over it. It can be read again.
type Source struct {
	Role    Role
	getenv  func(string) string // variables of the environment
	File    string
	flags   *pflag.FlagSet
	defined Role   // whose flags these are
	values  Config // where the flags are parsed to
	noCache bool
	anyRoot bool // a file without a root is fine: --root will name it
	nodes   nodeFlags
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

// FromFile is the source that is a file alone. A file without a root is fine: a flag will name it.
func FromFile(role Role, file string, getenv func(string) string) *Source {
	return &Source{Role: role, defined: role, getenv: getenv, File: file, flags: pflag.NewFlagSet("", pflag.ContinueOnError), values: DefaultConfig(), anyRoot: true}
}

// Origins tells for each key where its value came from: "default", "FILE:LINE" or "--FLAG".
type Origins map[string]string

// Load reads the configuration: defaults, then the file, then flags. The error has all that is wrong with the file, as mistakes.
func (s *Source) Load() (cfg Config, from Origins, wrong error) {
	cfg, from = DefaultConfig(), Origins{}
	for _, f := range Settings(&cfg) {
		from[f.Key] = "default"
	}
	if s.File != "" {
		wrong = LoadFile(s.File, &cfg, from)
	}
	given := map[string]Setting{}
	for _, f := range Settings(&s.values) {
		given[f.Key] = f
	}
	target := map[string]Setting{}
	for _, f := range Settings(&cfg) {
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
	cfg.Complete(s.Role, s.getenv)
	return cfg, from, wrong
}

// maxConfigFile bounds a configuration file in bytes.
const maxConfigFile = 1 << 20

// LoadFile reads a configuration file over cfg; see parseConfig. It does not wait for somebody to open a named pipe: a
// process that does so at a SIGHUP could not be ended.
func LoadFile(file string, cfg *Config, from Origins) error {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return &Mistake{Text: "read the configuration: " + err.Error(), fatal: true}
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigFile+1))
	if err != nil {
		return &Mistake{Text: "read the configuration: " + err.Error(), fatal: true}
	}
	if info, err := f.Stat(); len(text) == 0 && err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		return &Mistake{Text: fmt.Sprintf("read the configuration: %s is a pipe that nobody writes to", file), fatal: true}
	}
	if len(text) > maxConfigFile {
		return &Mistake{File: file, Text: fmt.Sprintf("a configuration file has at most %s", Size(maxConfigFile)), fatal: true}
	}
	return parseConfig(file, text, cfg, from)
}

// parseConfig reads a configuration file's text into cfg. The error has every mistake; what they are about keeps its default.
func parseConfig(file string, text []byte, cfg *Config, from Origins) error {
	f := &Findings{}
	text = f.decode(file, text, cfg)
	at := places(text)
	if err := singleTables(file, cfg, at); err != nil && !f.Fatal() {
		f.take(err)
	}
	setElementDefaults(cfg, at)
	for _, s := range Settings(cfg) {
		from[s.Key] = "default"
	}
	for key, p := range at {
		from[key] = fmt.Sprintf("%s:%d", file, p.line)
	}
	for _, s := range Settings(cfg) {
		if p, given := placeOf(s, at); given && s.Value.Kind() == reflect.Map {
			from[s.Key] = fmt.Sprintf("%s:%d", file, p.line)
		}
	}
	return f.Err()
}

// maxMistakes bounds the mistakes that are looked for in the text of a file.
const maxMistakes = 100

// decode reads the text, and takes out what cannot be read, until the rest can be. It returns the text that was read.
func (f *Findings) decode(file string, text []byte, cfg *Config) []byte {
	begin, strict := *cfg, true
	syntax := parses(text)
	for range maxMistakes {
		*cfg = begin
		decoder := toml.NewDecoder(bytes.NewReader(text))
		if strict {
			decoder.DisallowUnknownFields()
		}
		err := decoder.Decode(cfg)
		if err == nil {
			break
		}
		found := inFile(file, text, err)
		for _, m := range found {
			m.fatal = syntax != nil
			f.All = append(f.All, m)
		}
		if _, unknown := errors.AsType[*toml.StrictMissingError](err); unknown {
			strict = false
			continue
		}
		rest := without(text, found[0].Line)
		if syntax != nil || rest == nil || parses(rest) != nil {
			found[0].fatal = true
			break
		}
		text = rest
	}
	return text
}

// parses is the error of the syntax of a document.
func parses(text []byte) error {
	var p unstable.Parser
	p.Reset(text)
	for p.NextExpression() {
	}
	return p.Error()
}

// without is a document without the key that is on a line or, if it has several lines, begins before it; nil if there is none.
func without(text []byte, line int) []byte {
	first, end, table := 0, math.MaxInt, false
	for _, p := range places(text) {
		switch {
		case p.line > line:
			end = min(end, p.line)
		case p.line >= first:
			first, table = p.line, p.table
		}
	}
	if first == 0 || table {
		return nil
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	for i := first - 1; i < min(end-1, len(lines)); i++ {
		lines[i] = []byte("\n")
	}
	return bytes.Join(lines, nil)
}

// placeOf tells where the first key of a table with free keys is.
func placeOf(s Setting, at map[string]place) (first place, given bool) {
	for key, p := range at {
		if (key == s.Key || strings.HasPrefix(key, s.Key+".")) && (!given || p.line < first.line) {
			first, given = p, true
		}
	}
	return first, given
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
	return &Mistake{File: file, Line: line, Key: name, Text: fmt.Sprintf("there may be several %ss; write [[%s]]", name, name), fatal: true}
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

// inFile says where in the file each mistake is, and for unknown keys which key could have been meant.
func inFile(file string, text []byte, err error) (all []*Mistake) {
	if unknown, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		for i := range unknown.Errors {
			e := &unknown.Errors[i]
			line, _ := e.Position()
			key := strings.Join(e.Key(), ".")
			all = append(all, &Mistake{File: file, Line: line, Key: key, Text: fmt.Sprintf("unknown key %.100q; %s", key, suggest(key))})
		}
		return all
	}
	if bad, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, column := bad.Position()
		msg, key := strings.TrimPrefix(bad.Error(), "toml: "), strings.Join(bad.Key(), ".")
		if key != "" {
			msg = key + ": " + msg
		}
		return []*Mistake{{File: file, Line: line, Column: column, Key: key, Text: msg}}
	}
	// The decoder does not say where a bare number stood that should have been a string.
	known := map[string]Setting{}
	for _, s := range Keys() {
		known[s.Key] = s
	}
	at := places(text)
	for _, key := range slices.SortedFunc(maps.Keys(at), func(a, b string) int { return cmp.Compare(at[a].line, at[b].line) }) {
		s, ok := known[PlainKey(key)]
		if !ok || s.Value.Kind() == reflect.Slice || s.Value.Kind() == reflect.Map {
			continue
		}
		if err := s.Set(at[key].value); err != nil {
			return []*Mistake{{File: file, Line: at[key].line, Key: key, Text: fmt.Sprintf("%s: %s", s.Key, err)}}
		}
	}
	return []*Mistake{{File: file, Text: err.Error()}}
}

// suggest names the key that an unknown one most resembles, or where to look.
func suggest(key string) string {
	const where = "docs/reference/config.md and \"packhorse config show\" list the keys"
	if len(key) > 100 {
		return where
	}
	best, nearest := len(key)/2+1, ""
	consider := func(known string) {
		if d := cli.EditDistance(key, known); d < best {
			best, nearest = d, known
		}
	}
	inTable := ""
	for _, f := range Keys() {
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

// place is where a key stands in a document, and its value as it is written there.
type place struct {
	line  int
	value string
	table bool // it is the header of a table
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
			var line int
			table, line = keyOf(&p, e.Key())
			found[strings.Join(table, ".")] = place{line: line, table: true}
		case unstable.ArrayTable:
			var line int
			table, line = keyOf(&p, e.Key())
			name := strings.Join(table, ".")
			table = []string{fmt.Sprintf("%s[%d]", name, tables[name])}
			tables[name]++
			found[table[0]] = place{line: line, table: true}
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
	found[strings.Join(key, ".")] = place{line: line, value: string(v.Data)}
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
