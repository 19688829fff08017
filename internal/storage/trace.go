package storage

import (
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/node"
)

// traceOutcome ends the span of a session's request with what came of it.
func traceOutcome(span *inflight.Span, o *node.Outcome, err error) {
	if span == nil {
		return
	}
	span.Text("packhorse.command", string(o.Command))
	span.Text("packhorse.pack", o.Pack)
	span.Number("packhorse.refs", int64(o.Refs))
	span.Number("packhorse.wants", int64(o.Wants))
	span.Number("packhorse.haves", int64(o.Haves))
	span.Number("packhorse.objects", int64(o.Objects))
	span.Number("packhorse.pack_bytes", o.Bytes)
	span.Took("packhorse.parse", o.Parse)
	span.Took("packhorse.negotiate", o.Negotiate)
	span.Took("packhorse.wait", o.Wait)
	span.Took("packhorse.first_byte", o.FirstByte)
	span.Took("packhorse.copy", o.Copy)
	failure := ""
	if err != nil {
		failure = fault.KindOf(err).String()
	}
	span.End(failure)
}
