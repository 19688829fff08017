package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// TracingOptions of an Exporter.
type TracingOptions struct {
	// Endpoint is the URL of the collector: http or https, host and port. Without a path HTTP uses /v1/traces.
	Endpoint string
	GRPC     bool        // speak gRPC, else HTTP with protobuf
	Headers  http.Header // of each export; see TracingHeaders
	Role     string      // of this process
	Version  string
	Log      *slog.Logger

	Registerer prometheus.Registerer // of metrics; may be nil

	// Queue is the maximum number of waiting spans. Zero means 4,096.
	Queue int
	// Timeout is for one export. Zero means 10 s.
	Timeout time.Duration
	// Every is the time that a span waits for others, to be sent together. Zero means 2 s.
	Every time.Duration
}

const (
	defaultQueue   = 4096
	defaultTimeout = 10 * time.Second
	defaultEvery   = 2 * time.Second
	batch          = 512             // spans in one export at most
	closeTimeout   = 2 * time.Second // for the remaining spans at the end
	complainEvery  = time.Minute
)

// Exporter sends the spans of traced requests to a collector, by OTLP. Its Tracer makes them. It alone knows the
// OpenTelemetry SDK; the packages that make spans do so through package inflight.
//
// No request waits for the collector. Ended spans wait in a bounded queue. If it is full, spans are dropped and
// counted. Spans that the collector does not accept within the timeout of one export, retries included, are dropped.
type Exporter struct {
	provider *sdk.TracerProvider
	queue    *queue
}

// ParseCollector reads the URL of a collector.
func ParseCollector(text string, grpc bool) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("not a URL")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.Opaque != "":
		return nil, errors.New("it has to be a URL like http://127.0.0.1:4318")
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return nil, errors.New("it may have neither a user nor a query")
	case grpc && u.Path != "" && u.Path != "/":
		return nil, errors.New("gRPC has no path")
	}
	if !grpc && (u.Path == "" || u.Path == "/") {
		u.Path = "/v1/traces"
	}
	return u, nil
}

// NewExporter returns an exporter. The collector need not be reachable yet.
func NewExporter(o TracingOptions) (*Exporter, error) {
	u, err := ParseCollector(o.Endpoint, o.GRPC)
	if err != nil {
		return nil, err
	}
	if o.Queue == 0 {
		o.Queue = defaultQueue
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Every == 0 {
		o.Every = defaultEvery
	}
	exporter, err := otlptrace.New(context.Background(), newCollector(u, o)) // connects later
	if err != nil {
		return nil, fmt.Errorf("make the exporter of traces: %w", err)
	}
	q := newQueue(exporter, o)
	provider := sdk.NewTracerProvider(
		sdk.WithSampler(sdk.AlwaysSample()), // which requests are traced is decided before (inflight.Tracer)
		sdk.WithSpanProcessor(q),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "packhorse"), attribute.String("service.version", o.Version),
			attribute.String("packhorse.role", o.Role))),
		sdk.WithRawSpanLimits(sdk.SpanLimits{AttributeValueLengthLimit: 1 << 10, AttributeCountLimit: 64, EventCountLimit: 16,
			LinkCountLimit: 4, AttributePerEventCountLimit: 8, AttributePerLinkCountLimit: 8}),
	)
	return &Exporter{provider, q}, nil
}

// Tracer makes spans.
func (e *Exporter) Tracer() trace.Tracer { return e.provider.Tracer("packhorse") }

// Close sends the queued spans, for at most closeTimeout.
func (e *Exporter) Close() error {
	e.queue.close()
	return nil
}

// queue is what spans that have ended wait in.
type queue struct {
	exporter sdk.SpanExporter
	o        TracingOptions
	metrics  *exportMetrics

	ended  chan sdk.ReadOnlySpan
	closed atomic.Bool
	stop   chan struct{}
	done   sync.WaitGroup

	complained time.Time // of run alone
}

func newQueue(exporter sdk.SpanExporter, o TracingOptions) *queue {
	q := &queue{exporter: exporter, o: o, ended: make(chan sdk.ReadOnlySpan, o.Queue), stop: make(chan struct{})}
	q.metrics = newExportMetrics(o.Registerer)
	q.done.Go(q.run)
	return q
}

// OnStart, OnEnd, Shutdown and ForceFlush make it a span processor of the SDK's.
func (q *queue) OnStart(context.Context, sdk.ReadWriteSpan) {}

func (q *queue) OnEnd(s sdk.ReadOnlySpan) {
	if q.closed.Load() {
		q.metrics.dropped.Inc()
		return
	}
	select {
	case q.ended <- s:
	default:
		q.metrics.dropped.Inc()
	}
}

func (q *queue) Shutdown(context.Context) error   { return nil }
func (q *queue) ForceFlush(context.Context) error { return nil }

func (q *queue) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	q.done.Go(func() { // an export in progress at the end gets no more time than the last one
		<-q.stop
		time.AfterFunc(closeTimeout, cancel)
	})
	defer func() {
		limit, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = q.exporter.Shutdown(limit) // of connections; spans are sent or given up
	}()
	spans := make([]sdk.ReadOnlySpan, 0, batch)
	tick := time.NewTicker(q.o.Every)
	defer tick.Stop()
	for {
		select {
		case s := <-q.ended:
			if spans = append(spans, s); len(spans) < batch {
				continue
			}
		case <-tick.C:
		case <-q.stop:
			for more := true; more; {
				select {
				case s := <-q.ended:
					spans = append(spans, s)
				default:
					more = false
				}
				if len(spans) >= batch || !more {
					q.send(ctx, spans)
					spans = spans[:0]
				}
			}
			return
		}
		q.send(ctx, spans)
		clear(spans)
		spans = spans[:0]
	}
}

func (q *queue) send(ctx context.Context, spans []sdk.ReadOnlySpan) {
	if len(spans) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, q.o.Timeout)
	defer cancel()
	err := q.exporter.ExportSpans(ctx, spans)
	if err == nil {
		q.metrics.sent.Add(float64(len(spans)))
		return
	}
	q.metrics.failed.Add(float64(len(spans)))
	if now := time.Now(); now.Sub(q.complained) > complainEvery {
		q.complained = now
		q.o.Log.Warn("trace export failed", "endpoint", q.o.Endpoint, "spans",
			len(spans), "error", err)
	}
}

func (q *queue) close() {
	if q.closed.Swap(true) {
		return
	}
	close(q.stop)
	q.done.Wait()
}
