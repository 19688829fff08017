package gateway

import (
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// FrontEnd is the part of a front end in the end of a request.
type FrontEnd interface {
	// Transport is the name of the front end in logs and traces: "http", "ssh".
	Transport() string
	// Attributes appends the attributes that log lines of this front end have.
	Attributes([]slog.Attr) []slog.Attr
	// Panicked sends Err to the client of a request that ended in a panic, if that is still possible.
	Panicked()
}

// End ends the request: it counts it, rates it, writes its log line, ends its trace, and removes it from the board.
// Call it with defer: it recovers a panic.
func (r *Request) End(front FrontEnd) {
	defer r.running.End()
	if cause := recover(); cause != nil {
		r.Log.Error("panic while answering a request", "repository", auth.Redact(r.Repo.String()), "panic", cause,
			"stack", string(debug.Stack()))
		r.Err = fault.New(fault.Internal, "internal error; see the server's log")
		front.Panicked()
	}
	r.Publish()
	took := time.Since(r.start)
	result := "ok"
	if r.Err != nil {
		result = r.errorKind()
	}
	r.Metrics.count(r, result, took)
	r.Pump.Count(&r.Bytes)
	r.rate(result, took)
	r.log(result, took, front)
	r.endSpan(result, front.Transport())
}

// errorKind returns the result of a failed request, as in metrics.
func (r *Request) errorKind() string {
	if r.Result != "" {
		return r.Result
	}
	if _, broken := errors.AsType[*node.ClientConnError](r.Err); broken || r.Ctx.Err() != nil {
		return fault.Cancelled.String()
	}
	return fault.KindOf(r.Err).String()
}

// endSpan ends the request's part of its trace.
func (r *Request) endSpan(result, transport string) {
	if r.span == nil {
		return
	}
	r.span.SetName(r.Op.Name)
	for key, text := range map[string]string{
		"packhorse.result": result, "packhorse.transport": transport,
		"packhorse.repository": auth.Redact(r.Repo.String()),
		"packhorse.node":       r.node, "enduser.id": r.ID.Name,
	} {
		r.span.Text(key, text)
	}
	r.span.Number("packhorse.bytes", r.Bytes.Sent)
	if r.Status != 0 {
		r.span.Number("http.response.status_code", int64(r.Status))
	}
	failure := ""
	if result != "ok" {
		failure = result
	}
	r.span.End(failure)
}

// level returns the level of the request's log line. A push that failed is at least a warning: its commits are not on
// the server.
func (r *Request) level(result string) slog.Level {
	push := r.Op == Push || r.Op == LFSUpload
	if r.WarnOnly {
		return slog.LevelWarn
	}
	switch result {
	case "ok":
		if r.Outcome.LFS.Refused > 0 && (r.isPush || r.Outcome.Reason == fault.Unavailable.String()) {
			return slog.LevelWarn
		}
		return slog.LevelInfo
	case fault.Internal.String(), fault.Corrupt.String():
		return slog.LevelError
	case fault.Unavailable.String(): // mostly temporary, for example because the process shuts down
		switch {
		case push && r.Outcome.Reason != "": // a full disk, for example
			return slog.LevelError
		case !r.Op.Quiet || errors.Unwrap(r.Err) != nil:
			return slog.LevelWarn
		}
	case fault.Unauthenticated.String(): // a step of HTTP's authentication
		return slog.LevelInfo
	}
	if push {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// log writes the request's log line, and further lines for the updates of a push that do not fit into it.
func (r *Request) log(result string, took time.Duration, front FrontEnd) {
	level := r.level(result)
	if !r.Log.Enabled(r.Ctx, level) {
		return
	}
	kept := attributeLists.Get().(*[]slog.Attr)
	a := (*kept)[:0]
	if id := r.running.ID(); id != "" {
		a = append(a, slog.String("request", id))
	}
	if r.span != nil {
		if id := inflight.TraceID(r.Ctx); id != "" {
			a = append(a, slog.String("trace", id))
		}
	}
	a = append(a,
		slog.String("operation", r.Op.Name), slog.String("result", result),
		slog.String("repository", auth.Redact(r.Repo.String())),
		node.Milliseconds("ms", took), slog.String("transport", front.Transport()))
	a = r.attributes(front.Attributes(a))
	// Like LogAttrs, but without the source location.
	record := slog.NewRecord(time.Now(), level, "request", 0)
	// a group without a name is inlined, and its attributes are not copied
	record.AddAttrs(slog.Attr{Value: slog.GroupValue(a...)})
	_ = r.Log.Handler().Handle(r.Ctx, record)
	node.LogUpdates(r.Ctx, r.Log, level, r.Outcome.Push.Updates,
		slog.String("request", r.running.ID()), slog.String("repository", auth.Redact(r.Repo.String())),
		slog.String("user", r.ID.Name))
	clear(a)
	*kept = a
	attributeLists.Put(kept)
}

// attributeLists has lists of attributes for log lines. Handlers do not keep them.
var attributeLists = sync.Pool{New: func() any {
	const usual = 24 // a few more than the line of a small request has
	list := make([]slog.Attr, 0, usual)
	return &list
}}

// attributes appends the attributes that the log line of every request has.
func (r *Request) attributes(a []slog.Attr) []slog.Attr {
	o := &r.Outcome
	if r.ID.Name != "" {
		a = append(a, slog.String("user", r.ID.Name), slog.String("auth", r.ID.By))
		if r.ID.Credential != "" {
			a = append(a, slog.String("credential", r.ID.Credential))
		}
	}
	if r.hidden {
		a = append(a, slog.Bool("hidden", true))
	}
	if r.node != "" {
		a = append(a, slog.String("node", r.node))
	}
	if len(r.failed) > 0 {
		a = append(a, slog.Any("failed_nodes", r.failed))
	}
	a = r.running.Usage().Attrs(a)
	a = append(a, slog.Int64("bytes", r.Bytes.Sent))
	if r.Bytes.Kernel > 0 || o.Fetch.Pack != "" {
		a = append(a, slog.Int64("kernel_bytes", r.Bytes.Kernel))
	}
	if r.lock != nil {
		a = append(a, slog.String("path", LogText(r.lock.Path)), slog.String("owner", LogText(r.lock.Owner)))
	}
	a = o.Attrs(a)
	if r.Err != nil {
		a = append(a, slog.String("error", logError(r.Err)))
	}
	return a
}

// LogText returns text that a client has sent for a log: at most 200 bytes, without access tokens.
func LogText(s string) string { return fault.Short(auth.Redact(s)) }

// maxLoggedError is the maximum size of a logged error in bytes. Paths in a repository can be of any length.
const maxLoggedError = 4 << 10

func logError(err error) string {
	s := err.Error()
	if len(s) > maxLoggedError {
		s = s[:maxLoggedError] + "..."
	}
	return auth.Redact(s)
}
