package config

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Setting is one key of the configuration: its dotted name and its field in a Config. It is a pflag.Value.
type Setting struct {
	Key   string
	Value reflect.Value

	subject string // the key in messages: `node "a": weight` is better known than "node[0].weight"
	tag     reflect.StructTag
	table   reflect.Value // the struct with the field
}

// Settings lists the keys in the order of the struct. The key of a field in an array of tables contains the index of
// its table: "node[1].weight".
func Settings(c *Config) []Setting { return settingsOf("", reflect.ValueOf(c).Elem()) }

func settingsByKey(c *Config) map[string]Setting {
	all := map[string]Setting{}
	for _, s := range Settings(c) {
		all[s.Key] = s
	}
	return all
}

// Keys lists every key that a configuration may have, with its default. An array of tables is listed once, without an
// index.
func Keys() []Setting {
	c := DefaultConfig()
	c.Node, c.Route, c.Webhook = newTables[NodeConfig](), newTables[RouteConfig](), newTables[WebhookConfig]()
	c.Mirror = newTables[MirrorConfig]()
	c.Auth.OIDC = newTables[OIDCConfig]()
	c.Auth.Group = newTables[GroupConfig]()
	c.Auth.Rule, c.App.Pool = newTables[RuleConfig](), newTables[PoolConfig]()
	all := Settings(&c)
	for i := range all {
		all[i].Key = PlainKey(all[i].Key)
	}
	return all
}

// newTables returns an array with one table of defaults.
func newTables[T any]() []T {
	list := make([]T, 1)
	setDefaults(&list[0])
	return list
}

func settingsOf(prefix string, table reflect.Value) (list []Setting) {
	for i := range table.NumField() {
		field, value := table.Type().Field(i), table.Field(i)
		key := prefix + keyOf(field)
		switch {
		case isTable(value):
			list = append(list, settingsOf(key+".", value)...)
		case isTables(value):
			for j := range value.Len() {
				element := settingsOf(fmt.Sprintf("%s[%d].", key, j), value.Index(j))
				if name, ok := nameOf(value.Index(j)); ok {
					for k := range element {
						element[k].subject = fmt.Sprintf("%s %q: %s", key, name, keyOf(value.Index(j).Type().Field(k)))
					}
				}
				list = append(list, element...)
			}
		default:
			list = append(list, Setting{key, value, key, field.Tag, table})
		}
	}
	return list
}

// nameOf returns the name of a table of an array, if it has one.
func nameOf(table reflect.Value) (string, bool) {
	if m, ok := table.Addr().Interface().(*MirrorConfig); ok {
		return m.name(), true
	}
	name := table.FieldByName("Name")
	return name.String(), name.IsValid()
}

// setDefaults sets the fields of the struct that table points to. It panics if a tag is not valid.
func setDefaults(table any) {
	for _, s := range settingsOf("", reflect.ValueOf(table).Elem()) {
		text := s.tag.Get("default")
		if list, ok := s.Value.Addr().Interface().(*[]string); ok {
			*list = strings.Fields(text)
		} else if text != "" {
			if err := s.Set(text); err != nil {
				panic(fmt.Sprintf("default of %s: %v", s.Key, err))
			}
		}
	}
}

func keyOf(field reflect.StructField) string { return field.Tag.Get("toml") }

func isTable(field reflect.Value) bool {
	_, isText := reflect.New(field.Type()).Interface().(encoding.TextUnmarshaler)
	return field.Kind() == reflect.Struct && !isText
}

func isTables(field reflect.Value) bool {
	return field.Kind() == reflect.Slice && field.Type().Elem().Kind() == reflect.Struct
}

var tableIndex = regexp.MustCompile(`\[[0-9]+\]`)

// PlainKey returns key without the indexes of tables.
func PlainKey(key string) string { return tableIndex.ReplaceAllString(key, "") }

// String returns the value as a flag takes it.
func (s Setting) String() string { return fmt.Sprint(s.Value.Interface()) }

// TOML returns the value as a configuration file has it.
func (s Setting) TOML() string {
	if words, ok := s.Value.Interface().([]string); ok {
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = strconv.Quote(w)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	}
	if table, ok := s.Value.Interface().(stringTable); ok {
		return table.TOML()
	}
	if _, ok := s.Value.Interface().(encoding.TextMarshaler); ok || s.Value.Kind() == reflect.String {
		return strconv.Quote(s.String())
	}
	return s.String()
}

// Set parses text as the value of a flag.
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
	case reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", text)
		}
		s.Value.SetFloat(n)
	case reflect.Slice:
		return errors.New("a list cannot be set by a flag")
	case reflect.Map:
		return errors.New("a table cannot be set by a flag")
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

// maxNumber is the maximum of whole numbers whose range has no other.
const maxNumber = "16777216"

// check reports a value outside of the values or the range in the tags of its field, or without the values that it
// needs. The default is always allowed.
func (s Setting) check(f *Findings) {
	bad := func(format string, args ...any) { f.at(s.Key, format, args...) }
	if !s.Value.IsZero() {
		for name := range strings.FieldsSeq(s.tag.Get("needs")) {
			for i := range s.table.NumField() {
				if keyOf(s.table.Type().Field(i)) == name && s.table.Field(i).IsZero() {
					bad("%s needs %s", s.subject, s.other(name))
				}
			}
		}
	}
	text := s.Value.String()
	if values := strings.Fields(s.tag.Get("values")); len(values) > 0 && text != s.tag.Get("default") &&
		!slices.Contains(values, text) {
		bad("%s is %q; it has to be one of %q", s.subject, text, values)
	}
	low, high, ok := s.bounds()
	if !ok {
		return
	}
	low, exclusive := strings.CutPrefix(low, ">")
	n := numberOf(s.Value)
	aboveLow := low == "" || n > s.parse(low) || n == s.parse(low) && !exclusive
	if aboveLow && (high == "" || n <= s.parse(high)) {
		return
	}
	switch {
	case high == "" && exclusive:
		bad("%s is %s; it has to be more than %s", s.subject, s, low)
	case high == "":
		bad("%s is %s; it has to be at least %s", s.subject, s, low)
	case low == "":
		bad("%s is %s; it has to be at most %s", s.subject, s, high)
	case exclusive:
		bad("%s is %s; it has to be more than %s and at most %s", s.subject, s, low, high)
	default:
		bad("%s is %s; it has to be from %s to %s", s.subject, s, low, high)
	}
}

// other returns another key of the table for messages, with its flag.
func (s Setting) other(name string) string {
	if PlainKey(s.Key) != s.Key { // the subject names the table
		return name
	}
	key := s.Key[:strings.LastIndexByte(s.Key, '.')+1] + name
	for _, f := range configFlags {
		if f.key == key {
			return key + " (--" + f.flag + ")"
		}
	}
	return key
}

// bounds returns the bounds in the range tag as texts. An exclusive lower bound begins with ">".
func (s Setting) bounds() (low, high string, ok bool) {
	text, ok := s.tag.Lookup("range")
	low, high, _ = strings.Cut(text, "..")
	if _, isInt := s.Value.Interface().(int); ok && isInt && high == "" {
		high = maxNumber
	}
	return low, high, ok
}

// parse returns a bound of s as a number.
func (s Setting) parse(bound string) float64 {
	v := Setting{Value: reflect.New(s.Value.Type()).Elem()}
	if v.Set(bound) != nil {
		return math.NaN() // no value is in such a range: a test finds the tag
	}
	return numberOf(v.Value)
}

// numberOf returns a number, a size in bytes, or a duration in nanoseconds.
func numberOf(v reflect.Value) float64 {
	switch d := v.Interface().(type) {
	case Duration:
		return float64(d.Duration)
	case float64:
		return d
	}
	return float64(v.Int())
}

// Size is a number of bytes. In the configuration it is a number, or a string with a unit: "64KiB", "10GiB", "2GB".
type Size int64

var sizeUnits = []struct {
	name  string
	bytes int64
}{ // a name that ends in another comes first
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1},
}

// UnmarshalText reads a whole number and a unit; no unit means bytes.
func (s *Size) UnmarshalText(text []byte) error {
	number, factor := strings.TrimSpace(string(text)), int64(1)
	for _, unit := range sizeUnits {
		if rest, ok := strings.CutSuffix(number, unit.name); ok {
			number, factor = strings.TrimSpace(rest), unit.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return fmt.Errorf("%q is not a size: write a whole number and a unit (KiB, MiB, GiB or TiB), as in \"10GiB\"", text)
	}
	*s = Size(n * factor)
	return nil
}

// MarshalText writes the size in the shortest exact way.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s Size) String() string {
	shortest := strconv.FormatInt(int64(s), 10)
	for _, unit := range sizeUnits {
		if unit.bytes == 1 || s == 0 || int64(s)%unit.bytes != 0 {
			continue
		}
		if text := strconv.FormatInt(int64(s)/unit.bytes, 10) + unit.name; len(text) <= len(shortest) {
			shortest = text
		}
	}
	return shortest
}

// Duration is a span of time, written as a string: "500ms", "30s", "5m", "2h", "14d". It is a struct so that a number
// without a unit is refused.
type Duration struct{ time.Duration }

// UnmarshalText reads a duration as time.ParseDuration does; negative ones are refused.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if days, isDays := strings.CutSuffix(string(text), "d"); isDays {
		if n, daysErr := strconv.ParseUint(days, 10, 16); daysErr == nil {
			v, err = time.Duration(n)*24*time.Hour, nil
		}
	}
	if err == nil && v < 0 {
		err = errors.New("negative")
	}
	if err != nil {
		return fmt.Errorf("%q is not a duration: write a number and a unit, as in \"30s\" or \"5m\"", text)
	}
	d.Duration = v
	return nil
}

// MarshalText writes the duration without zero parts: "5m", not "5m0s".
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string {
	s := d.Duration.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// FileMode is the mode of a file, written as a string in octal: "0600".
type FileMode uint32

// UnmarshalText reads three or four octal digits.
func (m *FileMode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 8, 32)
	if err != nil || n > 0o777 {
		return fmt.Errorf("%q is not a file mode: write it in octal, as in \"0600\"", text)
	}
	*m = FileMode(n)
	return nil
}

// MarshalText writes four octal digits.
func (m FileMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m FileMode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// bareKey is a key of TOML that needs no quotation marks.
var bareKey = regexp.MustCompile(`^[\w-]+$`)

// stringTable is a table of strings with arbitrary keys.
type stringTable map[string]string

// TOML returns the table in one line.
func (t stringTable) TOML() string {
	if len(t) == 0 {
		return "{}"
	}
	pairs := make([]string, 0, len(t))
	for _, key := range slices.Sorted(maps.Keys(t)) {
		text := key
		if !bareKey.MatchString(key) {
			text = strconv.Quote(key)
		}
		pairs = append(pairs, text+" = "+strconv.Quote(t[key]))
	}
	return "{ " + strings.Join(pairs, ", ") + " }"
}
