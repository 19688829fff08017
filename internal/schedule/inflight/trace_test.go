package inflight

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
)

// recording is a tracer whose spans say that they are recorded, and are not.
type recording struct{ embedded.Tracer }

func (r *recording) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	parent := trace.SpanContextFromContext(ctx)
	id := trace.TraceID{1}
	if parent.IsValid() {
		id = parent.TraceID()
	}
	span := &recorded{Span: trace.SpanFromContext(context.Background()), context: trace.NewSpanContext(
		trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
			TraceState: parent.TraceState()})}
	return trace.ContextWithSpan(ctx, span), span
}

type recorded struct {
	trace.Span
	context trace.SpanContext
}

func (s *recorded) IsRecording() bool              { return true }
func (s *recorded) SpanContext() trace.SpanContext { return s.context }

const (
	callersTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceparent  = "00-" + callersTrace + "-00f067aa0ba902b7-01"
)

func TestCallersTraces(t *testing.T) {
	t.Parallel()
	header := func(parent ...string) http.Header { return http.Header{"Traceparent": parent} }
	long := header(traceparent)
	long.Set("Tracestate", "a="+strings.Repeat("x", 10_000))
	with := header(traceparent)
	with.Set("Tracestate", "a=b")
	with.Set("Baggage", strings.Repeat("secret=x,", 1000))
	for what, test := range map[string]struct {
		header http.Header
		want   string // ID of the trace
		state  string
	}{
		"a trace":          {header(traceparent), callersTrace, ""},
		"with a state":     {with, callersTrace, "a=b"},
		"too long a state": {long, callersTrace, ""},
		"not traced":       {header(strings.TrimSuffix(traceparent, "1") + "0"), "", ""},
		"none":             {header(), "", ""},
		"nil":              {nil, "", ""},
		"two":              {header(traceparent, traceparent), "", ""},
		"garbage":          {header("00-zz"), "", ""},
		"zeros":            {header("00-00000000000000000000000000000000-0000000000000000-01"), "", ""},
		"endless":          {header(traceparent + strings.Repeat("-x", 100_000)), "", ""},
		"a newer version":  {header("cc" + traceparent[2:] + "-what-follows"), callersTrace, ""},
		"no version":       {header("ff" + traceparent[2:]), "", ""},
	} {
		for _, from := range []string{"anybody", "gateway"} {
			tracer := NewTracer(&recording{}, 0, 1)
			begin := tracer.StartPublic
			if from == "gateway" {
				begin = tracer.StartInternal
			}
			ctx, span := begin(t.Context(), test.header)
			out := http.Header{}
			InjectTrace(ctx, out)
			if TraceID(ctx) != test.want || (span != nil) != (test.want != "") ||
				(out.Get("Traceparent") != "") != (test.want != "") ||
				out.Get("Tracestate") != test.state || out.Get("Baggage") != "" {
				t.Errorf("%s from %s: trace = %q, sent on = %v, want trace %q and state %q", what, from, TraceID(ctx), out,
					test.want, test.state)
			}
			span.End("")
		}
	}
}

// TestCallersAreBounded has a caller that asks to trace all of its requests. Most are not traced.
func TestCallersAreBounded(t *testing.T) {
	t.Parallel()
	h := http.Header{"Traceparent": {traceparent}}
	tracer, now := NewTracer(&recording{}, 0, 10), time.Unix(1_000_000_000, 0)
	for range 3 {
		allowed := 0
		for range 1000 {
			if tracer.allow(now) {
				allowed++
			}
		}
		if allowed != 10 {
			t.Errorf("traces in a second = %d, want 10", allowed)
		}
		now = now.Add(time.Second)
	}
	deaf := NewTracer(&recording{}, 1, 0)
	if ctx, _ := deaf.StartPublic(t.Context(), h); TraceID(ctx) == callersTrace || TraceID(ctx) == "" {
		t.Errorf("trace without traces of callers = %q, want a new one", TraceID(ctx))
	}
	var off *Tracer
	if ctx, span := off.StartPublic(t.Context(), h); span != nil || ctx != t.Context() {
		t.Error("StartPublic without a tracer returns a span, want none")
	}
	if ctx, span := off.StartInternal(t.Context(), h); span != nil || ctx != t.Context() {
		t.Error("StartInternal without a tracer returns a span, want none")
	}
}

// TestWorkThatGoesOn keeps the request and the trace, and not their end.
func TestWorkThatGoesOn(t *testing.T) {
	t.Parallel()
	begun, end := context.WithCancel(t.Context())
	ctx, r := NewBoard().Begin(begun, "fetch", "")
	defer r.End()
	ctx, _ = NewTracer(&recording{}, 1, 0).StartPublic(ctx, nil)
	on := Continue(ctx, context.Background())
	end()
	if on.Err() != nil || From(on) != r || TraceID(on) != TraceID(ctx) || TraceID(on) == "" {
		t.Errorf("error = %v, request = %v, trace = %q, want nil and those of the caller", on.Err(), From(on), TraceID(on))
	}
	if none := Continue(context.Background(), context.Background()); From(none) != nil || TraceID(none) != "" {
		t.Error("Continue without a request returns one, want none")
	}
}

func TestTracesAreLinked(t *testing.T) {
	t.Parallel()
	ctx, r := NewBoard().Begin(t.Context(), "fetch", "abc")
	defer r.End()
	ctx, _ = NewTracer(&recording{}, 1, 0).StartPublic(ctx, nil)
	h := seconds()
	new(Exemplars).Observe(ctx, h, time.Second)
	if all, _ := linked(t, h.(prometheus.Histogram)); len(all) != 1 || !strings.HasPrefix(all[0], "trace_id=01") {
		t.Errorf("exemplars = %v, want one with the trace", all)
	}
}

// BenchmarkUntraced measures the cost of tracing for a request that is not traced.
func BenchmarkUntraced(b *testing.B) {
	ctx, r := NewBoard().Begin(b.Context(), "fetch", "")
	defer r.End()
	h := http.Header{"User-Agent": {"git"}}
	for name, tracer := range map[string]*Tracer{"off": nil, "on": NewTracer(&recording{}, 0, 10)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ctx, span := tracer.StartPublic(ctx, h)
				_, child := Trace(ctx, "child")
				child.End("")
				span.End("")
			}
		})
	}
}
