package observe

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"
)

// Colored reports whether log lines on w should have colors: on a terminal with colors, unless the user turns them off
// (https://no-color.org). getenv returns environment variables.
func Colored(w io.Writer, getenv func(string) string) bool {
	return IsTerminal(w) && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// shortLines are the messages of requests, with the attributes that a terminal shows, in this order. Missing attributes
// and usual values are omitted.
var shortLines = map[string][]string{
	"request": {"operation", "method", "path", "repository", "result", "status", "ms", "bytes", "pack", "user",
		"objects_refused", "reason", "error"},
	"transfer": {"operation", "repository", "result", "ms", "bytes", "pack", "caller", "objects_refused", "reason",
		"error"},
	"call": {"procedure", "code", "ms", "caller", "error"},
}

// terminal is a slog.Handler for people: time of day, level, message and key=value in one line. It quotes control
// characters and is safe for concurrent use.
type terminal struct {
	to    io.Writer // one Write for each line
	level slog.Leveler
	color bool
	group string      // prefix of keys, "a.b."
	attrs []slog.Attr // of WithAttrs, with whole keys
}

var terminalLines = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (t *terminal) Enabled(_ context.Context, level slog.Level) bool { return level >= t.level.Level() }

func (t *terminal) WithGroup(name string) slog.Handler {
	if name == "" {
		return t
	}
	next := *t
	next.group += name + "."
	return &next
}

func (t *terminal) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *t
	next.attrs = slices.Clone(t.attrs)
	for _, a := range attrs {
		next.attrs = flatten(next.attrs, t.group, a)
	}
	return &next
}

func (t *terminal) Handle(_ context.Context, r slog.Record) error {
	attrs := slices.Clip(t.attrs)
	r.Attrs(func(a slog.Attr) bool {
		attrs = flatten(attrs, t.group, a)
		return true
	})
	line := terminalLines.Get().(*bytes.Buffer)
	line.Reset()
	defer terminalLines.Put(line)
	line.WriteString(r.Time.Format(time.TimeOnly))
	line.WriteByte(' ')
	t.writeLevel(line, r.Level)
	if short, ok := shortLines[r.Message]; ok {
		writeShort(line, short, attrs)
	} else {
		line.WriteByte(' ')
		line.WriteString(printable(r.Message))
		for _, a := range attrs {
			fmt.Fprintf(line, " %s=%s", printable(a.Key), valueText(a.Value))
		}
	}
	line.WriteByte('\n')
	_, err := t.to.Write(line.Bytes())
	return err
}

// writeLevel writes the level in five columns and in its color.
func (t *terminal) writeLevel(line *bytes.Buffer, level slog.Level) {
	color := "36" // cyan
	switch {
	case level >= slog.LevelError:
		color = "31;1"
	case level >= slog.LevelWarn:
		color = "33"
	case level < slog.LevelInfo:
		color = "2"
	}
	if !t.color {
		fmt.Fprintf(line, "%-5s", level)
		return
	}
	fmt.Fprintf(line, "\x1b[%sm%-5s\x1b[0m", color, level)
}

// writeShort writes values of attributes, and omits keys that are clear from the value.
func writeShort(line *bytes.Buffer, keys []string, attrs []slog.Attr) {
	value := func(key string) (v slog.Value, ok bool) {
		i := slices.IndexFunc(attrs, func(a slog.Attr) bool { return a.Key == key })
		if i < 0 {
			return v, false
		}
		return attrs[i].Value, true
	}
	for _, key := range keys {
		v, ok := value(key)
		text := valueText(v)
		if !ok || v.Kind() == slog.KindString && v.String() == "" || key == "result" && text == "ok" {
			continue
		}
		if _, hasPath := value("path"); hasPath && key == "repository" {
			continue
		}
		if _, isRefusal := value("objects_refused"); !isRefusal && key == "reason" { // the error has it
			continue
		}
		switch key {
		case "ms":
			text = strings.TrimSuffix(strconv.FormatFloat(asFloat(v), 'f', 1, 64), ".0") + "ms"
		case "bytes":
			text = strings.ReplaceAll(humanize.IBytes(uint64(asFloat(v))), " ", "")
		case "pack", "user", "caller", "objects_refused", "reason", "error":
			text = key + "=" + text
		}
		line.WriteByte(' ')
		line.WriteString(text)
	}
}

func asFloat(v slog.Value) float64 {
	switch v.Kind() {
	case slog.KindFloat64:
		return v.Float64()
	case slog.KindInt64:
		return float64(v.Int64())
	case slog.KindUint64:
		return float64(v.Uint64())
	}
	return 0
}

// flatten adds an attribute. Keys in a group get the name of the group as a prefix.
func flatten(list []slog.Attr, prefix string, a slog.Attr) []slog.Attr {
	a.Value = a.Value.Resolve()
	if a.Value.Kind() != slog.KindGroup {
		if a.Equal(slog.Attr{}) {
			return list
		}
		a.Key = prefix + a.Key
		return append(list, a)
	}
	if a.Key != "" {
		prefix += a.Key + "."
	}
	for _, member := range a.Value.Group() {
		list = flatten(list, prefix, member)
	}
	return list
}

// valueText returns a value as one word, quoted if necessary.
func valueText(v slog.Value) string {
	text := v.String()
	if v.Kind() == slog.KindTime {
		text = v.Time().Format(time.RFC3339)
	}
	if text == "" || strings.ContainsFunc(text, func(r rune) bool {
		return r == ' ' || r == '"' || r == '=' ||
			hidden(r)
	}) {
		return strconv.Quote(text)
	}
	return text
}

// printable returns a text without control characters.
func printable(text string) string {
	if !strings.ContainsFunc(text, hidden) {
		return text
	}
	return strings.Trim(strconv.Quote(text), `"`)
}

// hidden reports whether a terminal does not show a character as itself. This includes bytes that are not UTF-8.
func hidden(r rune) bool {
	return r < ' ' || r == unicode.ReplacementChar || r >= 0x7f && !unicode.IsPrint(r)
}
