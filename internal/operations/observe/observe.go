// Package observe has the log of the process, its metrics registry, the resources of its children, the export of
// traces, and the private listener for metrics, health and profiles. It has no knowledge of Git: other packages supply
// collectors and log records.
package observe

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/term"
)

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// ParseLevel reads "debug", "info", "warn" or "error".
func ParseLevel(level string) (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return l, fmt.Errorf("log level %q: use debug, info, warn or error", level)
	}
	return l, nil
}

// LogFormat resolves "auto" to "terminal" or "json", depending on w. It returns other formats unchanged.
func LogFormat(format string, w io.Writer) string {
	switch {
	case format != "auto":
		return format
	case IsTerminal(w):
		return "terminal"
	}
	return "json"
}

// NewLogger returns a logger. The level may change while it is in use. The format is "json", "text" (key=value),
// "terminal" (short lines for people) or "auto": terminal on a terminal, JSON elsewhere. color applies to terminal
// only. redact removes secrets from all text.
func NewLogger(w io.Writer, level slog.Leveler, format string, color bool,
	redact func(string) string) (*slog.Logger, error) {
	opts := &slog.HandlerOptions{Level: level}
	switch LogFormat(format, w) {
	case "terminal":
		return slog.New(&terminal{to: lines{to: w, redact: redact}, level: level, color: color}), nil
	case "json":
		return slog.New(slog.NewJSONHandler(lines{to: w, redact: redact, escape: true}, opts)), nil
	case "text":
		return slog.New(slog.NewTextHandler(lines{to: w, redact: redact}, opts)), nil
	}
	return nil, fmt.Errorf("log format %q: use auto, terminal, text or json", format)
}

// lines writes lines of the log. It redacts whole lines, which costs less than redacting each value and misses none.
//
// In JSON it escapes all invisible characters. JSON allows them and slog writes them, but U+009B starts a terminal
// command as ESC [ does, and U+202E reverses the following text. Clients choose names of repositories and user agents.
// The other formats quote such characters.
type lines struct {
	to     io.Writer
	redact func(string) string // keeps nothing of what it is given
	escape bool
}

func (l lines) Write(line []byte) (int, error) {
	same := unsafe.String(unsafe.SliceData(line), len(line)) // not used after the call, and line does not change meanwhile
	text := l.redact(same)
	if l.escape && !isASCII(text) {
		text = escaped(text)
	}
	clean := line
	if text != same {
		clean = []byte(text)
	}
	if _, err := l.to.Write(clean); err != nil {
		return 0, err
	}
	return len(line), nil
}

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= 0x7f { // DEL is not visible
			return false
		}
	}
	return true
}

// escaped returns a text of JSON without invisible characters.
func escaped(text string) string {
	hidden := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	if strings.IndexFunc(text, hidden) < 0 {
		return text
	}
	clean := make([]byte, 0, 2*len(text))
	for _, r := range text {
		switch {
		case !hidden(r):
			clean = utf8.AppendRune(clean, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			clean = fmt.Appendf(clean, `\u%04x\u%04x`, high, low)
		default:
			clean = fmt.Appendf(clean, `\u%04x`, r)
		}
	}
	return string(clean)
}

// NewRegistry returns a metrics registry with collectors of the Go runtime, the process and the build.
func NewRegistry(version string) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "packhorse_build_info",
		Help:        "Always 1, with the version as a label.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	// The collector does not show the cost of garbage collection by default.
	runtime := collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(
		collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/cpu/classes/gc/total:cpu-seconds$`)}))
	reg.MustRegister(build, runtime, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}
