package gateway

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/httpguard"
	"github.com/packhorse-git/packhorse/internal/node"
)

// done counts the request, writes its line into the log, and cuts the connection of an answer that is not whole. It stops a
// panic: net/http would report it among what clients do wrong.
func (e *exchange) done() {
	if cause := recover(); cause != nil {
		e.panicked(cause)
	}
	result, took := e.count()
	e.log(result, took, e.attributesOfHTTP)
	e.span.Number("http.response.status_code", int64(e.status))
	e.endSpan(result, "http")
	if e.abort {
		if !e.r.ProtoAtLeast(1, 1) {
			bulk.Reset(e.w)
		}
		panic(http.ErrAbortHandler)
	}
}

// Refused logs and counts a request that a guard refused, of which nobody knows more.
func (h *HTTP) Refused(client net.Addr, why *httpguard.Refusal) {
	ctx, running := h.Board.Begin(context.Background(), string(opOther), "")
	defer running.End()
	c := call{Options: &h.Options, ctx: ctx, running: running, start: time.Now(), op: opOther, err: why}
	result, took := c.count()
	c.log(result, took, func(a []slog.Attr) []slog.Attr {
		return append(a, slog.String("transport", "http"), slog.Int("status", why.Status), slog.String("client", client.String()), slog.String("reason", why.Reason))
	})
}

func (e *exchange) panicked(cause any) {
	e.Log.Error("panic while answering a request", "repository", auth.Redact(e.repo.String()), "panic", cause, "stack", string(debug.Stack()))
	e.err = fault.New(fault.Internal, "internal error; the server's log says more")
	if e.status == 0 {
		e.fail(e.err)
	} else {
		e.abort = true
	}
}

// errorKind is the result label of a failed request. An error of the connection is the client's.
func (c *call) errorKind() string {
	if _, malformed := errors.AsType[*httpguard.Refusal](c.err); malformed { // which ends the context, too
		return fault.Invalid.String()
	}
	if _, broken := errors.AsType[*node.ClientConnError](c.err); broken || c.ctx.Err() != nil {
		return fault.Cancelled.String()
	}
	return fault.KindOf(c.err).String()
}

// attributesOfHTTP are those that requests over HTTP alone have.
func (e *exchange) attributesOfHTTP(a []slog.Attr) []slog.Attr {
	a = append(a,
		slog.String("transport", "http"),
		slog.Int("status", e.status),
		slog.String("client", e.client()),
		slog.String("protocol", e.protocol()),
		slog.String("agent", auth.Redact(clip(cmp.Or(e.outcome.Agent, e.r.UserAgent())))),
	)
	if e.peer != "" {
		a = append(a, slog.String("proxy", e.peer))
	}
	if e.op == opOther || e.op == opPage || e.op == opSearch || e.op == opApp {
		a = append(a, slog.String("method", clip(e.r.Method)), slog.String("path", auth.Redact(clip(e.r.URL.Path))))
	}
	if e.visitor != nil {
		a = append(a, e.visitor.notes...)
	}
	if e.served != nil {
		a = append(a, e.served.Attrs...)
	}
	return a
}

// protocol is that of the request, and git's version where it may be git's.
func (e *exchange) protocol() string {
	if e.op == opApp {
		return e.r.Proto
	}
	return e.r.Proto + " " + protocol.ParseVersion(e.r.Header.Get("Git-Protocol")).String()
}

// attributes are those that follow in the line of every request.
func (c *call) attributes(a []slog.Attr) []slog.Attr {
	o := &c.outcome
	if c.id.Name != "" {
		a = append(a, slog.String("user", c.id.Name), slog.String("auth", c.id.By))
		if c.id.Credential != "" {
			a = append(a, slog.String("credential", c.id.Credential))
		}
	}
	if c.hidden {
		a = append(a, slog.Bool("hidden", true))
	}
	if c.node != "" {
		a = append(a, slog.String("node", c.node))
	}
	if len(c.failed) > 0 {
		a = append(a, slog.Any("failed_nodes", c.failed))
	}
	if o.Session != "" {
		a = append(a, slog.String("session", o.Session))
	}
	switch {
	case o.Command == protocol.CommandLsRefs, o.Refs > 0:
		a = append(a, slog.Int("refs", o.Refs))
	case o.Command == protocol.CommandFetch:
		a = append(a, slog.Int("wants", o.Wants), slog.Int("haves", o.Haves), slog.Int("common", o.Common))
	}
	if o.Pack != "" {
		a = append(a, slog.String("pack", o.Pack), slog.String("key", o.Key[:min(len(o.Key), 16)]),
			slog.Uint64("objects", uint64(o.Objects)), slog.Int64("pack_bytes", o.Bytes),
			milliseconds("parse_ms", o.Parse), milliseconds("negotiate_ms", o.Negotiate), milliseconds("wait_ms", o.Wait),
			milliseconds("first_byte_ms", o.FirstByte), milliseconds("copy_ms", o.Copy))
	}
	a = append(a, c.attributesOfGit()...)
	a = append(a, slog.Int64("bytes", c.bytes.Sent))
	if c.bytes.Kernel > 0 || o.Pack != "" {
		a = append(a, slog.Int64("kernel_bytes", c.bytes.Kernel))
	}
	if len(o.Updates) > 0 {
		a = append(a, node.UpdateAttrs(o.Updates)...)
	}
	if c.err != nil {
		if o.Reason != "" {
			a = append(a, slog.String("reason", o.Reason))
		}
		a = append(a, slog.String("error", auth.Redact(clipError(c.err.Error()))))
	}
	return a
}

// attributesOfGit are the totals of the git commands that ran for the request, here or on the nodes that were asked.
func (c *call) attributesOfGit() []slog.Attr {
	u := c.running.Git()
	if u.Commands == 0 {
		if c.outcome.Pack == "" {
			return nil
		}
		return []slog.Attr{milliseconds("git_cpu_ms", c.outcome.ChildCPU)}
	}
	return []slog.Attr{
		slog.Int("git_commands", u.Commands), milliseconds("git_cpu_ms", u.User+u.System), milliseconds("git_queue_ms", u.Queue),
		slog.Int64("git_max_rss", u.MaxRSS), slog.Int64("git_in", u.In), slog.Int64("git_out", u.Out),
	}
}

// clip bounds in bytes what a client says of itself.
func clip(s string) string { return s[:min(len(s), 200)] }

// maxLoggedError bounds an error in bytes: paths in a repository can be as long as whoever wrote them liked.
const maxLoggedError = 4 << 10

func clipError(s string) string {
	if len(s) <= maxLoggedError {
		return s
	}
	return s[:maxLoggedError] + "..."
}

// milliseconds logs a duration as a number that can be summed.
func milliseconds(key string, d time.Duration) slog.Attr {
	return slog.Float64(key, float64(d.Microseconds())/1000)
}
