package process

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// beginSpan adds the command to the trace of its request, if that is traced.
func (p *Process) beginSpan(ctx context.Context) {
	if _, p.span = inflight.Trace(ctx, p.command.String()); p.span == nil {
		return
	}
	p.span.Text("packhorse.class", string(p.command.Class))
	p.span.Duration("packhorse.queue", p.waited)
	p.span.Number("process.pid", int64(p.process.Pid))
}

// endSpan ends the span with the use of the command.
func (p *Process) endSpan() {
	if p.span == nil {
		return
	}
	u := &p.usage
	p.span.Text("packhorse.exit", u.Exit)
	p.span.Duration("packhorse.user", u.User)
	p.span.Duration("packhorse.system", u.System)
	p.span.Number("packhorse.max_rss", u.MaxRSS)
	p.span.Number("packhorse.in", u.In)
	p.span.Number("packhorse.out", u.Out)
	failure := ""
	if p.err != nil {
		failure = u.Exit
	}
	p.span.End(failure)
}
