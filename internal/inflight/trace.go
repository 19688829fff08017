package inflight

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Tracer decides which requests are traced, and begins their traces. Where a request is not, its context has no span, and all that works for it finds that
// out by a look at the context. It is safe for concurrent use; nil traces nothing.
type Tracer struct {
	tracer trace.Tracer
	ratio  float64
	asked  int64 // how many traces callers may ask for in a second

	// The second that is counted in, in the upper half, and how many there were in it.
	window atomic.Uint64
}

// NewTracer traces a part of all requests, from 0 to 1, and so many in a second whose callers say that they trace them.
func NewTracer(t trace.Tracer, ratio float64, asked int) *Tracer {
	return &Tracer{tracer: t, ratio: ratio, asked: int64(asked)}
}

// FromAnybody begins the trace of a request that came from outside, or the part of its caller's trace that is ours. The caller has no more say than
// NewTracer allows. The span, which is nil if the request is not traced, is the caller's to end.
func (t *Tracer) FromAnybody(ctx context.Context, h http.Header) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	var caller trace.SpanContext
	if t.asked > 0 {
		caller = extract(h)
	}
	if rand.Float64() >= t.ratio && !(caller.IsSampled() && t.allow(time.Now())) {
		return ctx, nil
	}
	return t.begin(ctx, caller)
}

// FromGateway begins our part of a trace that a gateway, or another program that is trusted, has begun; there is none without.
func (t *Tracer) FromGateway(ctx context.Context, h http.Header) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	caller := extract(h)
	if !caller.IsSampled() {
		return ctx, nil
	}
	return t.begin(ctx, caller)
}

func (t *Tracer) begin(ctx context.Context, caller trace.SpanContext) (context.Context, *Span) {
	if caller.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, caller)
	}
	ctx, span := t.tracer.Start(ctx, "request", trace.WithSpanKind(trace.SpanKindServer))
	s := &Span{span}
	if id := From(ctx).ID(); id != "" {
		s.Text("packhorse.request", id)
	}
	return ctx, s
}

// allow counts a trace that a caller asks for.
func (t *Tracer) allow(now time.Time) bool {
	second := uint64(now.Unix()) << 32
	for {
		old := t.window.Load()
		next := second + 1
		if old>>32 == second>>32 {
			next = old + 1
		}
		if int64(next&(1<<32-1)) > t.asked {
			return false
		}
		if t.window.CompareAndSwap(old, next) {
			return true
		}
	}
}

// How long the headers of a trace may be, in bytes (W3C Trace Context, sections 3.2 and 3.3.1.5). Baggage is not taken: it is for whoever sent it.
const (
	maxTraceParent = 128
	maxTraceState  = 512
)

// extract reads what a caller says of its trace; nothing where that is not as it has to be.
func extract(h http.Header) trace.SpanContext {
	parent := h["Traceparent"]
	if len(parent) != 1 || len(parent[0]) > maxTraceParent {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{"traceparent": parent[0]}
	if state := strings.Join(h["Tracestate"], ","); len(state) <= maxTraceState {
		carrier["tracestate"] = state
	}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

// Span is a part of what a trace tells. All methods of nil do nothing.
type Span struct{ span trace.Span }

// Trace begins a span of what is done for a request, if that is traced; nil if not. Whoever calls it ends it.
func Trace(ctx context.Context, name string) (context.Context, *Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, nil
	}
	ctx, span := parent.TracerProvider().Tracer("packhorse").Start(ctx, name)
	return ctx, &Span{span}
}

// LeaveTrace gives a call to another process the headers of the trace.
func LeaveTrace(ctx context.Context, h http.Header) {
	if trace.SpanFromContext(ctx).IsRecording() {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	}
}

// TraceParent is how another process is told of a trace, in a header traceparent, when there is no context any more; empty where there is no trace.
func TraceParent(ctx context.Context) string {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ""
	}
	h := http.Header{}
	LeaveTrace(ctx, h)
	return h.Get("Traceparent")
}

// TraceID is the ID of the trace of a request; empty where it has none.
func TraceID(ctx context.Context) string {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return ""
	}
	return span.SpanContext().TraceID().String()
}

// GoOn is the context to, for work that goes on for the request that from belongs to, whatever becomes of from.
func GoOn(from, to context.Context) context.Context {
	to = From(from).On(to)
	if span := trace.SpanFromContext(from); span.IsRecording() {
		to = trace.ContextWithSpan(to, span)
	}
	return to
}

// maxText bounds a text in a span, in bytes.
const maxText = 256

// Named says what it turned out to be.
func (s *Span) Named(name string) {
	if s != nil {
		s.span.SetName(name)
	}
}

// Text adds a text; it may be anything.
func (s *Span) Text(key, value string) {
	if s != nil && value != "" {
		s.span.SetAttributes(attribute.String(key, strings.ToValidUTF8(value[:min(len(value), maxText)], "?")))
	}
}

// Number adds a number.
func (s *Span) Number(key string, n int64) {
	if s != nil && n != 0 {
		s.span.SetAttributes(attribute.Int64(key, n))
	}
}

// Took adds a span of time, in milliseconds.
func (s *Span) Took(key string, d time.Duration) {
	if s != nil && d != 0 {
		s.span.SetAttributes(attribute.Float64(key+"_ms", float64(d.Microseconds())/1000))
	}
}

// End ends it. An error, whose text is as it may stand in a log, makes it a failed one; it may be empty.
func (s *Span) End(failure string) {
	if s == nil {
		return
	}
	if failure != "" {
		s.span.SetStatus(codes.Error, strings.ToValidUTF8(failure[:min(len(failure), maxText)], "?"))
	}
	s.span.End()
}
