package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/admit"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/observe/sli"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// calls stands around every call: it counts it, writes its line into the log, stops a panic, and makes an answer of what a service
// returns as an error. A unary call is a look-up: it runs in the small lane, a heavy one in a slot before that, but for health, which a busy node
// has too, maintenance, which has slots of its own, waits, which do nothing mostly, and Git's sessions, which enter a lane by themselves as streams do.
type calls struct{ *Server }

func (c *calls) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (response connect.AnyResponse, err error) {
		err = c.around(ctx, request.Spec(), request.Header(), func() http.Header { return response.Header() }, func(ctx context.Context) error {
			if named, ok := request.Any().(interface{ GetRepository() string }); ok {
				inflight.From(ctx).Describe("", named.GetRepository(), "")
			}
			place, err := c.placeOf(ctx, request.Spec().Procedure, request.Header().Get(callerHeader))
			if err != nil {
				return err
			}
			defer place.end()
			response, err = next(ctx, request)
			return err
		})
		if err != nil {
			return nil, err
		}
		return response, nil
	}
}

// ownPlace lists the unary calls that wait for no place here.
var ownPlace = []string{
	healthCheck, packhorsev1connect.RepositoryServiceMaintainProcedure, internalv1connect.SessionServiceUnarySessionProcedure,
	internalv1connect.NodeServiceWaitProcedure,
}

// placeOf lets a unary call into where it belongs.
func (c *calls) placeOf(ctx context.Context, procedure, caller string) (*place, error) {
	switch {
	case slices.Contains(ownPlace, procedure):
		return &place{seat: new(admit.Seat)}, nil
	case slices.Contains(heavyCalls, procedure):
		return c.enterHeavy(ctx, caller)
	}
	return c.enter()
}

func (c *calls) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return c.around(ctx, conn.Spec(), conn.RequestHeader(), conn.ResponseTrailer, func(ctx context.Context) error { return next(ctx, conn) })
	}
}

func (c *calls) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// unlisted are the calls that are not among the requests that run: they are there always.
var unlisted = []string{
	healthCheck, healthWatch, packhorsev1connect.RefServiceWatchProcedure,
}

// around runs one call, and adds to what end gives what git used for it. The error that it returns is an answer.
func (c *calls) around(ctx context.Context, spec connect.Spec, header http.Header, end func() http.Header, call func(context.Context) error) (answer error) {
	start := time.Now()
	if !slices.Contains(unlisted, spec.Procedure) {
		var running *inflight.Request
		ctx, running = c.Board.Begin(ctx, spec.Procedure[strings.LastIndexByte(spec.Procedure, '.')+1:], header.Get(inflight.Header))
		defer running.End()
		running.Describe("", "", cmp.Or(header.Get(inflight.CallerHeader), header.Get(callerHeader)))
		running.SetStage(inflight.Working)
	}
	ctx, span := c.Tracer.StartInternal(ctx, header)
	err := c.caught(spec, func() error { return call(ctx) })
	took := time.Since(start)
	answer = faultrpc.Error(err)
	tellUsage(ctx, spec, answer, end)
	code := "ok"
	if answer != nil {
		code = connect.CodeOf(answer).String()
	}
	c.Metrics.calls.WithLabelValues(spec.Procedure, code).Inc()
	c.Metrics.links.Observe(ctx, c.Metrics.seconds.WithLabelValues(spec.Procedure), took)
	c.judge(spec, answer, took)
	c.log(ctx, spec, header, code, took, err)
	if span != nil {
		span.SetName(strings.TrimPrefix(spec.Procedure, "/"))
		span.Text("packhorse.caller", header.Get(callerHeader))
		failure := ""
		if answer != nil {
			failure = code
		}
		span.End(failure)
	}
	return answer
}

// tellUsage tells the caller what git used for the call. Git's sessions tell it in their outcome.
func tellUsage(ctx context.Context, spec connect.Spec, answer error, end func() http.Header) {
	used := inflight.From(ctx).Usage().Header()
	if used == "" || isTransfer(spec) {
		return
	}
	if failure, ok := errors.AsType[*connect.Error](answer); ok {
		failure.Meta().Set(inflight.UsageHeader, used)
	} else if answer == nil {
		end().Set(inflight.UsageHeader, used)
	}
}

// isTransfer tells whether a call is a session of Git's.
func isTransfer(spec connect.Spec) bool {
	return strings.HasPrefix(spec.Procedure, "/"+internalv1connect.SessionServiceName+"/")
}

// judge has a look-up judged by what its class promises. Git's sessions are judged where their clients are.
func (c *calls) judge(spec connect.Spec, answer error, took time.Duration) {
	class := sli.Call
	switch {
	case spec.StreamType != connect.StreamTypeUnary || slices.Contains(ownPlace, spec.Procedure):
		return
	case slices.Contains(heavyCalls, spec.Procedure):
		class = sli.Heavy
	}
	if answer == nil {
		c.SLI.Answered(class, took)
		return
	}
	switch connect.CodeOf(answer) {
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeDataLoss, connect.CodeUnavailable, connect.CodeResourceExhausted, connect.CodeDeadlineExceeded:
		c.SLI.Failed(class)
	}
}

// caught makes an error of a panic.
func (c *calls) caught(spec connect.Spec, call func() error) (err error) {
	defer func() {
		cause := recover()
		if cause == nil {
			return
		}
		if cause == http.ErrAbortHandler {
			panic(cause)
		}
		c.Metrics.panics.Inc()
		c.Log.Error("panic in a call", "procedure", spec.Procedure, "panic", cause, "stack", string(debug.Stack()))
		err = fault.Wrap(fault.Internal, "internal error; the node's log says more", fmt.Errorf("panic: %v", cause))
	}()
	return call()
}

// slowCall is from when on a look-up is worth a warning.
const slowCall = time.Second

// log writes the call's line. A transfer writes its own; that the node is well is asked each second, and not worth one.
func (c *calls) log(ctx context.Context, spec connect.Spec, header http.Header, code string, took time.Duration, err error) {
	level := slog.LevelDebug
	switch {
	case isTransfer(spec), spec.Procedure == healthCheck && err == nil:
		return
	case code == connect.CodeInternal.String(), code == connect.CodeDataLoss.String(), code == connect.CodeUnknown.String():
		level = slog.LevelError
	case took > slowCall && spec.StreamType == connect.StreamTypeUnary && spec.Procedure != internalv1connect.NodeServiceWaitProcedure:
		level = slog.LevelWarn
	}
	if !c.Log.Enabled(ctx, level) {
		return
	}
	var attributes []slog.Attr
	if id := inflight.From(ctx).ID(); id != "" {
		attributes = append(attributes, slog.String("request", id))
	}
	attributes = append(attributes,
		slog.String("procedure", spec.Procedure), slog.String("code", code), slog.String("caller", header.Get(callerHeader)),
		milliseconds("ms", took))
	attributes = append(attributes, attributesOfGit(ctx)...)
	if err != nil {
		attributes = append(attributes, slog.String("error", clip(err.Error())))
	}
	c.Log.LogAttrs(ctx, level, "call", attributes...)
}

// attributesOfGit are the totals of the git commands that ran for a call.
func attributesOfGit(ctx context.Context) []slog.Attr {
	u := inflight.From(ctx).Usage()
	if u.Commands == 0 {
		return nil
	}
	return []slog.Attr{
		slog.Int("git_commands", u.Commands), milliseconds("git_cpu_ms", u.User+u.System), milliseconds("git_queue_ms", u.Queue),
		slog.Int64("git_max_rss", u.MaxRSS), slog.Int64("git_in", u.In), slog.Int64("git_out", u.Out),
	}
}

// maxLogged bounds a text in the log, in bytes.
const maxLogged = 4 << 10

func clip(s string) string { return s[:min(len(s), maxLogged)] }

// milliseconds logs a duration as a number that can be summed.
func milliseconds(key string, d time.Duration) slog.Attr {
	return slog.Float64(key, float64(d.Microseconds())/1000)
}
