package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// interceptor intercepts every call. It counts and logs the call, recovers panics, and converts errors. It admits unary
// calls to the small lane, and heavy ones first to a slot, except those in ownAdmission. Streams enter a lane
// themselves.
type interceptor struct{ *Server }

func (c *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (response connect.AnyResponse, err error) {
		err = c.intercept(ctx, request.Spec(), request.Header(), func() http.Header { return response.Header() },
			func(ctx context.Context) error {
				if named, ok := request.Any().(interface{ GetRepository() string }); ok {
					inflight.From(ctx).Describe("", named.GetRepository(), "")
				}
				if err := c.visibility(ctx, request.Header())(request.Any()); err != nil {
					return err
				}
				admission, err := c.admissionOf(ctx, request.Spec().Procedure, shareOf(request.Header()))
				if err != nil {
					return err
				}
				defer admission.end()
				response, err = next(ctx, request)
				return err
			})
		if err != nil {
			return nil, err
		}
		return response, nil
	}
}

// ownAdmission lists the unary calls that the interceptor does not admit to a lane. Health checks must work on a busy
// node, maintenance has its own slots, waits are mostly idle, and sessions of Git and Git LFS enter a lane themselves.
var ownAdmission = []string{
	healthCheck, packhorsev1connect.RepositoryServiceMaintainProcedure,
	packhorsev1connect.RepositoryServiceCollectProcedure, packhorsev1connect.RepositoryServicePurgeProcedure,
	packhorsev1connect.RepositoryServiceDetachProcedure,
	internalv1connect.SessionServiceUnarySessionProcedure,
	internalv1connect.NodeServiceWaitProcedure, internalv1connect.LFSServiceBatchProcedure,
	internalv1connect.LFSServicePartProcedure, internalv1connect.LFSServiceLocksProcedure,
}

// admissionOf admits a unary call.
func (c *interceptor) admissionOf(ctx context.Context, procedure, caller string) (*admission, error) {
	switch {
	case slices.Contains(ownAdmission, procedure):
		return &admission{seat: new(admit.Seat)}, nil
	case slices.Contains(pushCalls, procedure):
		return c.enterPush()
	case slices.Contains(heavyCalls, procedure):
		return c.enterHeavy(ctx, caller)
	case slices.Contains(workCalls, procedure):
		return c.enterWork(ctx, caller)
	}
	return c.enter()
}

func (c *interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return c.intercept(ctx, conn.Spec(), conn.RequestHeader(), conn.ResponseTrailer,
			func(ctx context.Context) error {
				return next(ctx, &checkedStream{conn, c.visibility(ctx, conn.RequestHeader())})
			})
	}
}

func (c *interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// unlisted are the calls that are not listed among the running requests, because they always run.
var unlisted = []string{
	healthCheck, packhorsev1connect.RefServiceWatchProcedure, packhorsev1connect.EventServiceWatchProcedure,
}

// intercept runs one call, and adds Git's resource usage to the header that end returns. It returns an error of
// Connect.
func (c *interceptor) intercept(ctx context.Context, spec connect.Spec, header http.Header, end func() http.Header,
	call func(context.Context) error) (answer error) {
	start := time.Now()
	if !slices.Contains(unlisted, spec.Procedure) {
		var running *inflight.Request
		ctx, running = c.Board.Begin(ctx, spec.Procedure[strings.LastIndexByte(spec.Procedure, '.')+1:],
			header.Get(inflight.Header))
		defer running.End()
		running.Describe("", "", cmp.Or(header.Get(inflight.CallerHeader), header.Get(callerHeader)))
		running.SetStage(inflight.Working)
	}
	actor, _ := url.QueryUnescape(header.Get(node.ActorHeader))
	if by, err := pusherOf(&internalv1.Pusher{Name: actor}); err == nil {
		ctx = node.WithActor(ctx, by.Name)
	}
	ctx, span := c.Tracer.StartInternal(ctx, header)
	err := c.recoverPanic(spec, func() error {
		if err := c.checkStore(header.Get(node.StoreHeader)); err != nil {
			return err
		}
		return call(ctx)
	})
	took := time.Since(start)
	answer = faultrpc.Error(err)
	addUsage(ctx, spec, answer, end)
	code := "ok"
	if answer != nil {
		code = connect.CodeOf(answer).String()
	}
	c.metrics.calls.WithLabelValues(spec.Procedure, code).Inc()
	c.metrics.links.Observe(ctx, c.metrics.seconds.WithLabelValues(spec.Procedure), took)
	c.recordSLI(spec, answer, took)
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

// addUsage adds Git's resource usage to the response or the error. Sessions have it in their outcome.
func addUsage(ctx context.Context, spec connect.Spec, answer error, end func() http.Header) {
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

// isTransfer reports whether a call is a session of Git or Git LFS.
func isTransfer(spec connect.Spec) bool {
	return strings.HasPrefix(spec.Procedure, "/"+internalv1connect.SessionServiceName+"/") ||
		strings.HasPrefix(spec.Procedure, "/"+internalv1connect.LFSServiceName+"/")
}

// recordSLI records the latency and the failure of a look-up. The gateway does that for Git's sessions.
func (c *interceptor) recordSLI(spec connect.Spec, answer error, took time.Duration) {
	class := inflight.ClassCall
	switch {
	case spec.StreamType != connect.StreamTypeUnary || slices.Contains(ownAdmission, spec.Procedure):
		return
	case slices.Contains(heavyCalls, spec.Procedure), slices.Contains(workCalls, spec.Procedure):
		class = inflight.ClassHeavy
	}
	if answer == nil {
		c.SLI.Answered(class, took)
		return
	}
	switch connect.CodeOf(answer) {
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeDataLoss, connect.CodeUnavailable,
		connect.CodeResourceExhausted, connect.CodeDeadlineExceeded:
		c.SLI.Failed(class)
	}
}

// recoverPanic converts a panic to an error.
func (c *interceptor) recoverPanic(spec connect.Spec, call func() error) (err error) {
	defer func() {
		cause := recover()
		if cause == nil {
			return
		}
		if cause == http.ErrAbortHandler {
			panic(cause)
		}
		c.Log.Error("panic in a call", "procedure", spec.Procedure, "panic", cause, "stack", string(debug.Stack()))
		err = fault.Wrap(fault.Internal, "internal error; see the node's log", fmt.Errorf("panic: %v", cause))
	}()
	return call()
}

// slowCall is the duration from which a look-up is logged as a warning.
const slowCall = time.Second

// log logs a call. Sessions have their own line, and successful health checks are not logged.
func (c *interceptor) log(ctx context.Context, spec connect.Spec, header http.Header, code string, took time.Duration,
	err error) {
	level := slog.LevelDebug
	switch {
	case isTransfer(spec), spec.Procedure == healthCheck && err == nil:
		return
	case code == connect.CodeInternal.String(), code == connect.CodeDataLoss.String(),
		code == connect.CodeUnknown.String():
		level = slog.LevelError
	case took > slowCall && spec.StreamType == connect.StreamTypeUnary &&
		spec.Procedure != internalv1connect.NodeServiceWaitProcedure:
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
		node.Milliseconds("ms", took))
	attributes = inflight.From(ctx).Usage().Attrs(attributes)
	if err != nil {
		attributes = append(attributes, slog.String("error", clip(err.Error())))
	}
	c.Log.LogAttrs(ctx, level, "call", attributes...)
}

// maxLogged is the maximum size of a text in the log in bytes.
const maxLogged = 4 << 10

func clip(s string) string { return s[:min(len(s), maxLogged)] }
