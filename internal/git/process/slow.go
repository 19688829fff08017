package process

import (
	"context"
	"log/slog"
	"time"
)

// warnSlow logs a slow command: once while it runs, so that an operator can examine it, and once when it has ended.
func (r *Runner) warnSlow(p *Process, ended bool) {
	if p.slow.CompareAndSwap(false, true) {
		r.metrics.slowOne(&p.command)
	}
	now, running := p.now(time.Now())
	if !ended && !running {
		return
	}
	attrs := []slog.Attr{
		slog.String("subcommand", now.Subcommand), slog.String("class", string(now.Class)), slog.String("repository",
			now.Repository),
		slog.String("request", now.Request), slog.String("caller", printable(string(now.Caller))), slog.String("stage",
			now.Stage),
		slog.Int("pid", now.Pid), slog.String("args", now.Args), milliseconds("queue_ms", now.Queue),
		slog.Int64("in", now.In), slog.Int64("out", now.Out),
	}
	if ended {
		u := &p.usage
		attrs = append(attrs, milliseconds("wall_ms", u.Wall), milliseconds("user_ms", u.User),
			milliseconds("system_ms", u.System),
			slog.Int64("max_rss", u.MaxRSS), slog.String("exit", u.Exit))
		r.log.LogAttrs(context.Background(), slog.LevelWarn, "slow git", attrs...)
		return
	}
	attrs = append(attrs, milliseconds("age_ms", now.Age), milliseconds("user_ms", now.User), milliseconds("system_ms",
		now.System),
		milliseconds("delay_ms", now.Delay), slog.Int64("rss", now.RSS), slog.Int("processes", now.Processes))
	r.log.LogAttrs(context.Background(), slog.LevelWarn, "slow git still runs", attrs...)
}

func milliseconds(name string, d time.Duration) slog.Attr { return slog.Int64(name, d.Milliseconds()) }
