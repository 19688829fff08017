package observe

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// receiver is a collector, over HTTP and gRPC.
type receiver struct {
	collectorpb.UnimplementedTraceServiceServer
	mu   sync.Mutex
	got  []*collectorpb.ExportTraceServiceRequest
	keys []string      // headers api-key of the requests
	hold chan struct{} // unless nil: answers wait for it
}

func (r *receiver) Export(ctx context.Context,
	request *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, request)
	if m, ok := metadata.FromIncomingContext(ctx); ok {
		r.keys = append(r.keys, m.Get("api-key")...)
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if r.hold != nil {
		<-r.hold
	}
	body, err := io.ReadAll(request.Body)
	m := new(collectorpb.ExportTraceServiceRequest)
	if err == nil {
		err = proto.Unmarshal(body, m)
	}
	if err != nil || request.URL.Path != "/v1/traces" || request.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, "bad", http.StatusBadRequest)
		return
	}
	r.Export(metadata.NewIncomingContext(request.Context(), metadata.Pairs("api-key", request.Header.Get("Api-Key"))), m)
}

// names lists the spans that came, with their attributes.
func (r *receiver) names() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, request := range r.got {
		for _, resource := range request.GetResourceSpans() {
			for _, a := range resource.GetResource().GetAttributes() {
				b.WriteString(a.GetKey() + "=" + a.GetValue().GetStringValue() + " ")
			}
			for _, scope := range resource.GetScopeSpans() {
				for _, s := range scope.GetSpans() {
					b.WriteString(s.GetName() + "(")
					for _, a := range s.GetAttributes() {
						b.WriteString(a.GetKey() + "=" + a.GetValue().GetStringValue() + " ")
					}
					b.WriteString(s.GetStatus().GetMessage() + ") ")
				}
			}
		}
	}
	return b.String()
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	gittest.WaitFor(t, what, holds)
}

func newExporter(t *testing.T, o TracingOptions) (*Exporter, *inflight.Tracer) {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e, err := NewExporter(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e, inflight.NewTracer(e.Tracer(), 1, 0)
}

// request makes the spans of one request.
func request(tracer *inflight.Tracer, text string) {
	ctx, span := tracer.StartPublic(context.Background(), nil)
	_, child := inflight.Trace(ctx, "child")
	child.Text("text", text)
	child.End("")
	span.SetName("fetch")
	span.End("internal")
}

func TestSpansArrive(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			r := &receiver{}
			var url string
			if protocol == "http" {
				s := httptest.NewServer(r)
				t.Cleanup(s.Close)
				url = s.URL
			} else {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				s := grpc.NewServer()
				collectorpb.RegisterTraceServiceServer(s, r)
				go s.Serve(l)
				t.Cleanup(s.Stop)
				url = "http://" + l.Addr().String()
			}
			e, tracer := newExporter(t, TracingOptions{Endpoint: url, GRPC: protocol == "grpc", Role: "serve", Version: "v1",
				Headers: http.Header{"Api-Key": {"secret, 1"}}, Every: 10 * time.Millisecond})
			request(tracer, "a\xff\nb"+strings.Repeat("x", 10_000)) // as a repository may be called
			eventually(t, "two spans sent", func() bool { return testutil.ToFloat64(e.queue.metrics.sent) == 2 })
			got := r.names()
			for _, want := range []string{"service.name=packhorse", "service.version=v1", "packhorse.role=serve",
				"child(text=a?\nb", "fetch(internal)"} {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in %q", want, got)
				}
			}
			if len(got) > 1000 {
				t.Errorf("%d bytes for two spans", len(got))
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, key := range r.keys {
				if key != "secret, 1" {
					t.Errorf("header api-key = %q, want %q", key, "secret, 1")
				}
			}
			if len(r.keys) == 0 {
				t.Error("no export had the header api-key")
			}
		})
	}
}

// TestCloseSendsQueue: a process that ends sends the spans of its last requests.
func TestCloseSendsQueue(t *testing.T) {
	t.Parallel()
	r := &receiver{}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	e, tracer := newExporter(t, TracingOptions{Endpoint: s.URL, Every: time.Hour})
	for range batch { // two batches, of which one is not full
		request(tracer, "")
	}
	request(tracer, "last")
	e.Close()
	if got := r.names(); !strings.Contains(got, "child(text=last ") ||
		testutil.ToFloat64(e.queue.metrics.sent) != 2*batch+2 {
		t.Errorf("%v were sent", testutil.ToFloat64(e.queue.metrics.sent))
	}
	request(tracer, "after the end")
	if n := testutil.ToFloat64(e.queue.metrics.dropped); n != 2 {
		t.Errorf("%v were dropped", n)
	}
}

// TestNoWait: neither for a collector that is gone nor for one that does not answer, and the queue does not grow.
func TestNoWait(t *testing.T) {
	t.Parallel()
	r := &receiver{hold: make(chan struct{})}
	stuck := httptest.NewServer(r)
	t.Cleanup(stuck.Close)
	t.Cleanup(func() { close(r.hold) }) // before
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := "http://" + l.Addr().String()
	l.Close()
	for name, url := range map[string]string{"stuck": stuck.URL, "gone": gone} {
		for _, protocol := range []string{"http", "grpc"} {
			var log bytes.Buffer
			e, tracer := newExporter(t, TracingOptions{
				Endpoint: url, GRPC: protocol == "grpc", Queue: 100, Timeout: 50 * time.Millisecond, Every: time.Millisecond,
				Log: slog.New(slog.NewTextHandler(&log, nil)),
			})
			for range 5000 {
				request(tracer, "")
			}
			eventually(t, name+": given up", func() bool {
				return testutil.ToFloat64(e.queue.metrics.failed) > 0 && len(e.queue.ended) == 0
			})
			if testutil.ToFloat64(e.queue.metrics.dropped) == 0 {
				t.Errorf("%s: nothing was dropped of 10,000 spans with a queue of 100", name)
			}
			e.Close()
			if sum := testutil.ToFloat64(e.queue.metrics.dropped) + testutil.ToFloat64(e.queue.metrics.failed); sum != 10_000 {
				t.Errorf("%s: %v of 10,000 spans are accounted for", name, sum)
			}
			if n := strings.Count(log.String(), "trace export failed"); n != 1 {
				t.Errorf("%s: said %d times: %s", name, n, &log)
			}
		}
	}
}

// An export is repeated if the collector asks for it, and fails with the collector's reason otherwise.
func TestCollectorErrors(t *testing.T) {
	t.Parallel()
	var status, calls int
	var body []byte
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls++; calls > 1 {
			return
		}
		w.WriteHeader(status)
		w.Write(body)
	}))
	t.Cleanup(s.Close)
	u, err := ParseCollector(s.URL, false)
	if err != nil {
		t.Fatal(err)
	}
	c := newCollector(u, TracingOptions{Timeout: 20 * time.Millisecond})
	partial, err := proto.Marshal(&collectorpb.ExportTraceServiceResponse{
		PartialSuccess: &collectorpb.ExportTracePartialSuccess{RejectedSpans: 3, ErrorMessage: "too old"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		status    int
		body      []byte
		wantCalls int
		wantError string
	}{
		{200, nil, 1, "<nil>"},
		{503, nil, 2, "<nil>"},
		{429, nil, 2, "<nil>"},
		{400, []byte("bad spans"), 1, `collector: HTTP status 400 Bad Request: "bad spans"`},
		{200, partial, 1, `collector: rejected 3 spans: "too old"`},
		{200, []byte("\xff\xff"), 1, "<nil>"},
	} {
		status, body, calls = test.status, test.body, 0
		err := c.UploadTraces(t.Context(), nil)
		if got := fmt.Sprint(err); got != test.wantError || calls != test.wantCalls {
			t.Errorf("status %d: got error %s after %d calls, want %s after %d", test.status, got, calls, test.wantError,
				test.wantCalls)
		}
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// The headers of exports, which may have credentials, are not sent to another server.
func TestCollectorRedirects(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the server of the redirect got a request, want none")
	}))
	t.Cleanup(other.Close)
	s := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	t.Cleanup(s.Close)
	u, err := ParseCollector(s.URL, false)
	if err != nil {
		t.Fatal(err)
	}
	c := newCollector(u, TracingOptions{Timeout: time.Second, Headers: http.Header{"Api-Key": {"secret"}}})
	if err := c.UploadTraces(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("UploadTraces with a redirect: got error %v, want one with status 307", err)
	}
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		traces, all string
		want        string // of fmt.Sprint
	}{
		{"", "", "map[] <nil>"},
		{"", "api-key=secret", "map[Api-Key:[secret]] <nil>"},
		{"a=1", "b=2", "map[A:[1]] <nil>"},
		{"", " authorization = Bearer%20x%3D%2C , x-tenant=a=b,", "map[Authorization:[Bearer x=,] X-Tenant:[a=b]] <nil>"},
		{"", "secret", "map[] OTEL_EXPORTER_OTLP_HEADERS: header 1 is not KEY=VALUE, as in api-key=secret"},
		{"a=1,b c=secret", "", "map[] OTEL_EXPORTER_OTLP_TRACES_HEADERS: header 2 is not KEY=VALUE, as in api-key=secret"},
		{"", "a=%zz", `map[] OTEL_EXPORTER_OTLP_HEADERS: header "a": the value is not valid: percent-encode characters ` +
			`such as %, commas and spaces`},
		{"", "a=%0Ab", `map[] OTEL_EXPORTER_OTLP_HEADERS: header "a": the value is not valid: percent-encode characters ` +
			`such as %, commas and spaces`},
	} {
		headers, err := TracingHeaders(func(name string) string {
			return map[string]string{"OTEL_EXPORTER_OTLP_TRACES_HEADERS": test.traces,
				"OTEL_EXPORTER_OTLP_HEADERS": test.all}[name]
		})
		if got := fmt.Sprint(headers, " ", err); got != test.want {
			t.Errorf("TracingHeaders(%q, %q) = %s, want %s", test.traces, test.all, got, test.want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"http://127.0.0.1:4318": true, "https://collector.example/otlp": true, "127.0.0.1:4318": false, "collector": false,
		"ftp://x":              false,
		"http://user:secret@x": false, "http://x?a=b": false, "http://": false, "http://[::1": false,
	} {
		if _, err := ParseCollector(text, false); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := ParseCollector("http://x/path", true); err == nil {
		t.Error("a path for gRPC")
	}
	if u, _ := ParseCollector("http://x", false); u.String() != "http://x/v1/traces" {
		t.Errorf("got %s", u)
	}
}
