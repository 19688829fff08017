package inflight

import (
	"context"
	"log/slog"
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

// Tracer selects the requests to trace and begins their traces. The context of other requests has no span. A nil Tracer
// traces nothing. Safe for concurrent use.
type Tracer struct {
	tracer trace.Tracer
	ratio  float64
	limit  int64 // maximum number of traces that callers request in a second

	// The current second in the upper half, and the number of requested traces in it in the lower half.
	window atomic.Uint64
}

// NewTracer returns a tracer for a part of all requests, from 0 to 1, and for at most limit requests in a second whose
// callers request a trace.
func NewTracer(t trace.Tracer, ratio float64, limit int) *Tracer {
	return &Tracer{tracer: t, ratio: ratio, limit: int64(limit)}
}

// StartPublic begins the trace of a request from outside, or our part of its caller's trace. The caller of this
// function ends the span, which is nil if the request is not traced.
func (t *Tracer) StartPublic(ctx context.Context, h http.Header) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	var caller trace.SpanContext
	if t.limit > 0 {
		caller = extract(h)
	}
	if rand.Float64() >= t.ratio && !(caller.IsSampled() && t.allow(time.Now())) {
		return ctx, nil
	}
	return t.begin(ctx, caller)
}

// StartInternal begins our part of a trace from a gateway or another trusted program. Without such a trace the span is
// nil.
func (t *Tracer) StartInternal(ctx context.Context, h http.Header) (context.Context, *Span) {
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

// allow reports whether another requested trace is within the limit, and counts it.
func (t *Tracer) allow(now time.Time) bool {
	second := uint64(now.Unix()) << 32
	for {
		old := t.window.Load()
		next := second + 1
		if old>>32 == second>>32 {
			next = old + 1
		}
		if int64(next&(1<<32-1)) > t.limit {
			return false
		}
		if t.window.CompareAndSwap(old, next) {
			return true
		}
	}
}

// Maximum lengths of the trace headers in bytes (W3C Trace Context, sections 3.2 and 3.3.1.5). Baggage is ignored.
const (
	maxTraceParent = 128
	maxTraceState  = 512
)

// extract parses the trace headers of a caller. Invalid ones give an empty context.
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

// Span is a span of a trace. All methods of a nil Span do nothing.
type Span struct{ span trace.Span }

// Trace begins a span, which the caller ends. It is nil if the request is not traced.
func Trace(ctx context.Context, name string) (context.Context, *Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, nil
	}
	ctx, span := parent.TracerProvider().Tracer("packhorse").Start(ctx, name)
	return ctx, &Span{span}
}

// InjectTrace sets the trace headers for a call to another process.
func InjectTrace(ctx context.Context, h http.Header) {
	if trace.SpanFromContext(ctx).IsRecording() {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	}
}

// TraceParent returns the value of the traceparent header, or an empty text without a trace.
func TraceParent(ctx context.Context) string {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ""
	}
	h := http.Header{}
	InjectTrace(ctx, h)
	return h.Get("Traceparent")
}

// TraceID returns the ID of the trace, or an empty text without a trace.
func TraceID(ctx context.Context) string {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return ""
	}
	return span.SpanContext().TraceID().String()
}

// Continue returns the context to with the request and span of from, for work that continues after from ends.
func Continue(from, to context.Context) context.Context {
	to = From(from).WithRequest(to)
	if span := trace.SpanFromContext(from); span.IsRecording() {
		to = trace.ContextWithSpan(to, span)
	}
	return to
}

// maxText is the maximum length of a text in a span in bytes.
const maxText = 256

// SetName sets the name of the span.
func (s *Span) SetName(name string) {
	if s != nil {
		s.span.SetName(name)
	}
}

// Text adds a text, which may be invalid UTF-8.
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

// Duration adds a duration in milliseconds.
func (s *Span) Duration(key string, d time.Duration) {
	if s != nil && d != 0 {
		s.span.SetAttributes(attribute.Float64(key+"_ms", float64(d.Microseconds())/1000))
	}
}

// Attributes adds the attributes of a log line, with a prefix of their keys, except empty texts and zeros.
func (s *Span) Attributes(prefix string, attributes []slog.Attr) {
	if s == nil {
		return
	}
	for _, a := range attributes {
		switch key := prefix + a.Key; a.Value.Kind() {
		case slog.KindInt64:
			s.Number(key, a.Value.Int64())
		case slog.KindUint64:
			s.Number(key, int64(a.Value.Uint64()))
		case slog.KindFloat64:
			s.Duration(strings.TrimSuffix(key, "_ms"), time.Duration(a.Value.Float64()*float64(time.Millisecond)))
		case slog.KindString:
			s.Text(key, a.Value.String())
		}
	}
}

// End ends the span. A failure that is not empty marks it as failed. Its text must be safe for logs.
func (s *Span) End(failure string) {
	if s == nil {
		return
	}
	if failure != "" {
		s.span.SetStatus(codes.Error, strings.ToValidUTF8(failure[:min(len(failure), maxText)], "?"))
	}
	s.span.End()
}
