package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/server/cli"
)

// maxFileSize is the maximum size of a configuration file.
const maxFileSize Size = 1 << 20

// LoadFile reads a configuration file over cfg and notes in from where each value comes from. Its error joins every
// mistake in the file, each a *Mistake. Keys with a mistake keep their value.
func LoadFile(file string, cfg *Config, from Origins) error {
	text, err := readFile(file)
	if err != nil {
		return &Mistake{Text: "read the configuration: " + err.Error(), fatal: true}
	}
	if len(text) > int(maxFileSize) {
		return &Mistake{File: file, Text: "a configuration file has at most " + maxFileSize.String(), fatal: true}
	}
	return parseFile(file, text, cfg, from)
}

// readFile reads up to one byte more than maxFileSize. It does not wait for a writer of a named pipe: a process that
// did so at a SIGHUP could not be stopped.
func readFile(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, int64(maxFileSize)+1))
	if info, failed := f.Stat(); len(text) == 0 && failed == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		return nil, fmt.Errorf("%s is a pipe without a writer", file)
	}
	return text, err
}

// parseFile is LoadFile for the text of a file.
func parseFile(file string, text []byte, cfg *Config, from Origins) error {
	var document map[string]any
	if err := toml.Unmarshal(text, &document); err != nil {
		m := &Mistake{File: file, Text: strings.TrimPrefix(err.Error(), "toml: "), fatal: true}
		if at, ok := errors.AsType[*toml.DecodeError](err); ok {
			m.Line, m.Column = at.Position()
		}
		return m
	}
	d := &decoder{file: file, lines: keyLines(text), from: from, found: &Findings{}}
	d.table("", document, reflect.ValueOf(cfg).Elem())
	return d.found.Err()
}

// decoder copies the values of a TOML document into a Config and collects the mistakes.
type decoder struct {
	file  string
	lines map[string]int
	from  Origins
	found *Findings
}

// table copies a TOML table into a struct. The prefix is the table's key and a dot, or empty.
func (d *decoder) table(prefix string, values map[string]any, to reflect.Value) {
	fields := map[string]reflect.Value{}
	for i := range to.NumField() {
		fields[keyOf(to.Type().Field(i))] = to.Field(i)
	}
	for name, value := range values {
		key := prefix + name
		d.locate(key)
		field, known := fields[name]
		switch {
		case !known:
			d.mistake(key, "%s", unknownKey(PlainKey(key)))
		case isTable(field):
			if sub, ok := value.(map[string]any); ok {
				d.table(key+".", sub, field)
			} else {
				d.mistake(key, "%s is a table; write [%s]", key, key)
			}
		case isTables(field):
			d.tables(key, value, field)
		case field.Kind() == reflect.Map:
			d.strings(key, value, field.Addr().Interface().(*stringTable))
		default:
			if err := assign(field, value); err != nil {
				d.mistake(key, "%s: %w", PlainKey(key), err)
			}
		}
	}
}

// tables appends the tables of a TOML array to a slice of structs. Keys that a table does not have get their defaults.
func (d *decoder) tables(key string, value any, to reflect.Value) {
	list, ok := value.([]any)
	if !ok {
		d.mistake(key, "there may be several tables %s; write [[%s]]", key, key)
		d.found.All[len(d.found.All)-1].fatal = true
		return
	}
	to.SetZero()
	for i, element := range list {
		name := fmt.Sprintf("%s[%d]", key, i)
		d.locate(name)
		to.Set(reflect.Append(to, reflect.Zero(to.Type().Elem())))
		setDefaults(to.Index(i).Addr().Interface())
		d.from.setDefaults(name+".", to.Index(i))
		if sub, ok := element.(map[string]any); ok {
			d.table(name+".", sub, to.Index(i))
		} else {
			d.mistake(name, "%s is an array of tables; write [[%s]]", key, key)
		}
	}
}

// strings sets the keys that a TOML table has in a table of strings.
func (d *decoder) strings(key string, value any, to *stringTable) {
	table, ok := value.(map[string]any)
	if !ok {
		d.mistake(key, "%s is a table; write [%s]", key, key)
	}
	merged := make(stringTable, len(*to)+len(table))
	maps.Copy(merged, *to)
	for name, element := range table {
		if text, ok := element.(string); ok {
			merged[name] = text
		} else {
			d.mistake(key+"."+name, "%s.%s: %#v is not a string", key, name, element)
		}
	}
	*to = merged
}

// locate notes the line of a key, or of the nearest table around it whose line is known.
func (d *decoder) locate(key string) {
	for at := key; at != ""; at = above(at) {
		if line, ok := d.lines[at]; ok {
			d.from[key] = fmt.Sprintf("%s:%d", d.file, line)
			return
		}
	}
	d.from[key] = d.file
}

func (d *decoder) mistake(key, format string, args ...any) {
	m := &Mistake{File: d.file, Key: key, Text: fmt.Errorf(format, args...).Error()}
	for at := key; at != "" && m.Line == 0; at = above(at) {
		m.Line = d.lines[at]
	}
	d.found.All = append(d.found.All, m)
}

// assign sets a field to a value of a TOML document.
func assign(field reflect.Value, value any) error {
	s := Setting{Value: field}
	if list, ok := field.Addr().Interface().(*[]string); ok {
		elements, isArray := value.([]any)
		all := make([]string, len(elements))
		for i, element := range elements {
			text, isString := element.(string)
			all[i], isArray = text, isArray && isString
		}
		if !isArray {
			return fmt.Errorf("%#v is not an array of strings", value)
		}
		*list = all
		return nil
	}
	_, isText := field.Addr().Interface().(encoding.TextUnmarshaler)
	ok, want := false, ""
	switch field.Kind() {
	case reflect.String:
		_, ok = value.(string)
		want = "a string"
	case reflect.Bool:
		_, ok = value.(bool)
		want = "true or false"
	case reflect.Int:
		_, ok = value.(int64)
		want = "a whole number"
	case reflect.Float64:
		_, isInt := value.(int64)
		_, ok = value.(float64)
		ok, want = ok || isInt, "a number"
	}
	if ok || isText {
		return s.Set(fmt.Sprint(value))
	}
	return fmt.Errorf("%#v is not %s", value, want)
}

var (
	headerLine = regexp.MustCompile(`^\s*(\[\[?)([\w\s.-]+)\]`)
	keyLine    = regexp.MustCompile(`^\s*([\w-]+(?:\s*\.\s*[\w-]+)*)\s*=`)
	spaces     = strings.NewReplacer(" ", "", "\t", "")
)

// keyLines finds the lines of tables and keys, counted from 1, for messages. It expects a valid document, and knows
// neither quoted keys nor those in inline tables.
func keyLines(text []byte) map[string]int {
	lines, tables := map[string]int{}, map[string]int{}
	add := func(key string, line int) {
		if _, ok := lines[key]; !ok {
			lines[key] = line
		}
	}
	prefix, number := "", 0
	for line := range bytes.Lines(text) {
		number++
		if m := headerLine.FindSubmatch(line); m != nil {
			name := spaces.Replace(string(m[2]))
			if len(m[1]) == 2 {
				tables[name]++
				add(name, number)
				name = fmt.Sprintf("%s[%d]", name, tables[name]-1)
			}
			add(name, number)
			prefix = name + "."
		} else if m := keyLine.FindSubmatch(line); m != nil {
			add(prefix+spaces.Replace(string(m[1])), number)
		}
	}
	return lines
}

// unknownKey describes the mistake of an unknown key.
func unknownKey(key string) string {
	if remedy, ok := removed[key]; ok {
		return fmt.Sprintf("%s was removed: %s", key, remedy)
	}
	return fmt.Sprintf("unknown key %.100q; %s", key, suggest(key))
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
