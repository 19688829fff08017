// Package observe is how the process is watched: its log, its metrics registry, and the private listener for metrics,
// health and profiles. It knows nothing of Git; what there is to tell comes from the packages, as collectors and log
// records.
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

// IsTerminal reports whether a person probably reads w.
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

// LogFormat is the format that "auto" stands for on w, "terminal" or "json"; another format is returned as it is.
func LogFormat(format string, w io.Writer) string {
	switch {
	case format != "auto":
		return format
	case IsTerminal(w):
		return "terminal"
	}
	return "json"
}

// NewLogger makes the process's log. The level may change while it runs. The format is "json", "text" (key=value),
// "terminal" (short lines for people) or "auto": terminal on a terminal, JSON elsewhere; color is for terminal alone.
// All text goes through redact, which takes out what no log may show.
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

// lines writes lines of the log, redacted as a whole: that costs less than each value by itself, and misses none.
//
// In lines of JSON all that is no visible character is escaped. JSON allows it as it is, beyond ASCII, and slog leaves
// it: U+009B begins a terminal's commands as ESC [ does, and U+202E turns around what follows it. Clients choose what
// repositories and agents are called. The other formats quote it.
type lines struct {
	to     io.Writer
	redact func(string) string // keeps nothing of what it is given
	escape bool
}

func (l lines) Write(line []byte) (int, error) {
	same := unsafe.String(unsafe.SliceData(line), len(line)) // nobody keeps it beyond the call, or changes line meanwhile
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
		if text[i] >= 0x7f { // DEL is no visible character
			return false
		}
	}
	return true
}

// escaped is a text of JSON without invisible characters.
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

// NewRegistry makes the process's metrics registry, with the Go runtime, the process and the build in it.
func NewRegistry(version string) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "packhorse_build_info",
		Help:        "Always 1; the label says which version runs.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	// What the garbage collector costs is not among what the collector shows by itself.
	runtime := collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(
		collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/cpu/classes/gc/total:cpu-seconds$`)}))
	reg.MustRegister(build, runtime, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}
