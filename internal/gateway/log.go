package gateway

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// done counts the request, writes its line into the log, and cuts the connection of an answer that is not whole. It stops a
// panic: net/http would report it among what clients do wrong.
func (e *exchange) done() {
	if cause := recover(); cause != nil {
		e.panicked(cause)
	}
	took := time.Since(e.start)
	result := "ok"
	if e.err != nil {
		result = e.errorKind()
	}
	e.Metrics.countRequest(e.op, result, took)
	e.Metrics.countStages(e.outcome)
	e.Metrics.served.Add(float64(e.bytes.Sent))
	e.Pump.Count(&e.bytes)
	level := slog.LevelInfo
	switch result {
	case fault.Internal.String(), fault.Corrupt.String():
		level = slog.LevelError
	case fault.Unavailable.String(): // it passes, as the end of the process does
		level = slog.LevelWarn
	}
	if ctx := e.r.Context(); e.Log.Enabled(ctx, level) {
		e.Log.LogAttrs(ctx, level, "request", e.attributes(result, took)...)
	}
	if e.abort {
		panic(http.ErrAbortHandler)
	}
}

func (e *exchange) panicked(cause any) {
	e.Log.Error("panic while answering a request", "repository", e.repo.String(), "panic", cause, "stack", string(debug.Stack()))
	e.err = fault.New(fault.Internal, "internal error; the server's log says more")
	if e.status == 0 {
		e.fail(e.err)
	} else {
		e.abort = true
	}
}

// errorKind is the result label of a failed request. An error of the connection is the client's.
func (e *exchange) errorKind() string {
	if _, broken := errors.AsType[*protocol.BrokenReply](e.err); broken || e.r.Context().Err() != nil {
		return fault.Cancelled.String()
	}
	return fault.KindOf(e.err).String()
}

func (e *exchange) attributes(result string, took time.Duration) []slog.Attr {
	o := &e.outcome
	a := []slog.Attr{
		slog.String("operation", string(e.op)),
		slog.String("result", result),
		slog.Int("status", e.status),
		slog.String("repository", e.repo.String()),
		slog.String("client", e.r.RemoteAddr),
		slog.String("protocol", e.r.Proto+" "+e.session().Version.String()),
		slog.String("agent", clip(cmp.Or(o.Agent, e.r.UserAgent()))),
		milliseconds("ms", took),
	}
	if e.node != "" {
		a = append(a, slog.String("node", e.node))
	}
	if len(e.failed) > 0 {
		a = append(a, slog.Any("failed_nodes", e.failed))
	}
	if o.Session != "" {
		a = append(a, slog.String("session", o.Session))
	}
	if e.op == opOther {
		a = append(a, slog.String("method", clip(e.r.Method)), slog.String("path", clip(e.r.URL.Path)))
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
			milliseconds("first_byte_ms", o.FirstByte), milliseconds("copy_ms", o.Copy), milliseconds("git_cpu_ms", o.ChildCPU))
	}
	a = append(a, slog.Int64("bytes", e.bytes.Sent))
	if e.reply != nil {
		a = append(a, slog.Int64("kernel_bytes", e.bytes.Kernel))
	}
	if e.err != nil {
		a = append(a, slog.String("error", clipError(e.err.Error())))
	}
	return a
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
