package inflight

import (
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// UsageHeader is the header or trailer with the usage of git commands for a call. It is absent if there were none.
const UsageHeader = "Packhorse-Git"

// Header returns the value of UsageHeader: seven numbers, with times in microseconds. It is empty if no command has
// ended.
func (u Usage) Header() string {
	if u.Commands == 0 {
		return ""
	}
	text := make([]byte, 0, 64)
	for i, n := range u.numbers() {
		if i > 0 {
			text = append(text, ' ')
		}
		text = strconv.AppendInt(text, n, 10)
	}
	return string(text)
}

// Attrs appends the attributes for a log line; none if no command has ended.
func (u Usage) Attrs(a []slog.Attr) []slog.Attr {
	if u.Commands == 0 {
		return a
	}
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return append(a, slog.Int("git_commands", u.Commands), slog.Float64("git_cpu_ms", milliseconds(u.User+u.System)),
		slog.Float64("git_queue_ms", milliseconds(u.Queue)), slog.Int64("git_max_rss", u.MaxRSS),
		slog.Int64("git_in", u.In), slog.Int64("git_out", u.Out))
}

func (u Usage) numbers() [7]int64 {
	return [...]int64{
		int64(u.Commands), u.User.Microseconds(), u.System.Microseconds(), u.Queue.Microseconds(), u.MaxRSS, u.In, u.Out,
	}
}

// AddUsageHeader adds the usage in the UsageHeader of another process. It ignores invalid values.
func (r *Request) AddUsageHeader(header string) {
	if r == nil || header == "" {
		return
	}
	fields := strings.Split(header, " ")
	var n [7]int64
	if len(fields) != len(n) {
		return
	}
	for i, field := range fields {
		v, err := strconv.ParseInt(field, 10, 53) // so that sums and nanoseconds do not overflow
		if err != nil || v < 0 {
			return
		}
		n[i] = v
	}
	r.AddUsage(Usage{
		Commands: int(min(n[0], 1<<31-1)), User: time.Duration(n[1]) * time.Microsecond,
		System: time.Duration(n[2]) * time.Microsecond,
		Queue:  time.Duration(n[3]) * time.Microsecond, MaxRSS: n[4], In: n[5], Out: n[6],
	})
}
