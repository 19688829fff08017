package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Setting is one key of the configuration: its dotted name and its field in a Config. It is a pflag.Value.
type Setting struct {
	Key   string
	Value reflect.Value

	subject string // the key in messages: `node "a": weight` is better known than "node[0].weight"
	tag     reflect.StructTag
}

// Settings lists the keys in the order of the struct. The key of a field in an array of tables contains the index of
// its table: "node[1].weight".
func Settings(c *Config) []Setting { return settingsOf("", reflect.ValueOf(c).Elem()) }

// Keys lists every key that a configuration may have, with its default. An array of tables is listed once, without an
// index.
func Keys() []Setting {
	c := DefaultConfig()
	c.Node, c.Route, c.Webhook = newTables[NodeConfig](), newTables[RouteConfig](), newTables[WebhookConfig]()
	c.Mirror = newTables[MirrorConfig]()
	c.Auth.OIDC = newTables[OIDCConfig]()
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
				if name := nameOf(value.Index(j)); name.IsValid() {
					for k := range element {
						element[k].subject = fmt.Sprintf("%s %q: %s", key, name, keyOf(value.Index(j).Type().Field(k)))
					}
				}
				list = append(list, element...)
			}
		default:
			list = append(list, Setting{key, value, key, field.Tag})
		}
	}
	return list
}

// nameOf returns the field that identifies a table of an array. It is not valid if there is none.
func nameOf(table reflect.Value) reflect.Value {
	if name := table.FieldByName("Name"); name.IsValid() {
		return name
	}
	return table.FieldByName("From")
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
