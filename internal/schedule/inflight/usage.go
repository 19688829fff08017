package inflight

import (
	"encoding/json"
	"log/slog"
	"time"
)

// UsageHeader is the header or trailer with the usage of git commands for a call. It is absent if there were none.
const UsageHeader = "Packhorse-Git"

// Header returns the value of UsageHeader, which is JSON. It is empty if no command has ended.
func (u Usage) Header() string {
	if u.Commands == 0 {
		return ""
	}
	text, _ := json.Marshal(u) // it has numbers only
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

// AddUsageHeader adds the usage in the UsageHeader of another process. It ignores invalid values.
func (r *Request) AddUsageHeader(header string) {
	const most = 1 << 53 // so that sums do not overflow
	var u Usage
	if r == nil || header == "" || json.Unmarshal([]byte(header), &u) != nil {
		return
	}
	for _, n := range []int64{int64(u.Commands), int64(u.User), int64(u.System), int64(u.Queue), u.MaxRSS, u.In, u.Out} {
		if n < 0 || n > most {
			return
		}
	}
	r.AddUsage(u)
}
