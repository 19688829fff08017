package roles

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
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

// settings lists the keys in the order of the struct.
func settings(c *Config) []setting {
	var list []setting
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			key := prefix + v.Type().Field(i).Tag.Get("toml")
			field := v.Field(i)
			if _, isText := field.Addr().Interface().(encoding.TextUnmarshaler); field.Kind() == reflect.Struct && !isText {
				walk(key+".", field)
				continue
			}
			list = append(list, setting{key, field})
		}
	}
	walk("", reflect.ValueOf(c).Elem())
	return list
}

// String is the value as a flag takes it.
func (s setting) String() string { return fmt.Sprint(s.Value.Interface()) }

// TOML is the value as a file has it.
func (s setting) TOML() string {
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

// configFlags are the flags of serve that stand for a key; everything else is in the file.
var configFlags = []struct{ flag, key, usage string }{
	{"root", "root", "serve the repositories below `DIR`"},
	{"state", "state", "keep the cache and the lock in `DIR` (default ROOT/.packhorse)"},
	{"http", "http.address", "public listener, `HOST:PORT`; port 0 picks a free one"},
	{"public-read", "http.public_read", "let everybody who reaches the listener read every repository"},
	{"tls-cert", "http.tls_cert", "TLS certificate and chain, PEM `FILE`; read again when it changes"},
	{"tls-key", "http.tls_key", "private key of --tls-cert, PEM `FILE`"},
	{"ops", "ops.address", "private listener for metrics, health and profiles, `HOST:PORT`"},
	{"ops-expose", "ops.expose", "accept an --ops address that other machines can reach"},
	{"shutdown-grace", "shutdown.grace", "how long running requests may take to end after SIGTERM (`DURATION`)"},
	{"cache-dir", "cache.dir", "directory of the pack cache, `DIR` (default STATE/cache)"},
	{"cache-max-bytes", "cache.max_bytes", "most bytes in the pack cache, as a `SIZE` like 10GiB; 0: 10 GiB or a tenth of the disk"},
	{"git", "git.program", "the git program, a name or `PATH`"},
	{"git-slots", "git.slots", "how many git processes may make packs at once; 0: one for each CPU"},
	{"wants", "fetch.wants", "what may be asked for by object ID: `any|reachable|tip`"},
	{"log-level", "log.level", "`LEVEL`: debug, info, warn or error"},
	{"log-format", "log.format", "`FORMAT`: text, json, or auto (text on a terminal)"},
}

// source tells what the configuration is read from: a file, and flags over it.
type source struct {
	file    string
	flags   *pflag.FlagSet
	values  Config // where the flags are parsed to
	noCache bool
}

// addConfigFlags defines the configuration's flags on a command.
func addConfigFlags(flags *pflag.FlagSet) *source {
	s := &source{flags: flags, values: DefaultConfig()}
	flags.StringVar(&s.file, "config", "", "read the configuration from `FILE` (TOML); flags go over it")
	byKey := map[string]setting{}
	for _, f := range settings(&s.values) {
		byKey[f.Key] = f
	}
	for _, f := range configFlags {
		flag := flags.VarPF(byKey[f.key], f.flag, "", f.usage)
		if byKey[f.key].Value.Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}
	flags.BoolVar(&s.noCache, "no-cache", false, "make every pack anew and keep none")
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
		if s.flags.Changed(f.flag) {
			target[f.key].Value.Set(given[f.key].Value)
			from[f.key] = "--" + f.flag
		}
	}
	if s.noCache {
		cfg.Cache.Enabled = false
		from["cache.enabled"] = "--no-cache"
	}
	cfg.complete()
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
	for key, at := range places(text) {
		if _, known := from[key]; known {
			from[key] = fmt.Sprintf("%s:%d", file, at.line)
		}
	}
	return nil
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
	var scratch Config
	at := places(text)
	for _, s := range settings(&scratch) {
		if p, given := at[s.Key]; given {
			if err := s.Set(p.value); err != nil {
				return fmt.Errorf("%s:%d: %s: %w", file, p.line, s.Key, err)
			}
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
	var cfg Config
	for _, f := range settings(&cfg) {
		table, last, nested := strings.Cut(f.Key, ".")
		if nested && key == last { // the right key outside its table
			return fmt.Sprintf("did you mean %q?", f.Key)
		}
		consider(f.Key)
		consider(table)
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
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table:
			table, _ = keyOf(&p, e.Key())
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
