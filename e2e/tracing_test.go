package e2e

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// spans is a collector.
type spans struct {
	mu  sync.Mutex
	all []*otlp.Span
}

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var request collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &request)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			s.all = append(s.all, scope.GetSpans()...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// chain are the names of the spans from one to the root of its trace, and the ID of the span that the root names as its
// parent.
func (s *spans) chain(span *otlp.Span) (names []string, above string) {
	for span != nil {
		names = append(names, span.GetName())
		above = hex.EncodeToString(span.GetParentSpanId())
		var parent *otlp.Span
		for _, p := range s.all {
			if string(p.GetSpanId()) == string(span.GetParentSpanId()) && string(p.GetTraceId()) == string(span.GetTraceId()) {
				parent = p
			}
		}
		span = parent
	}
	return names, above
}

// find waits for a span of a trace.
func (s *spans) find(t *testing.T, trace, name string) (names []string, above string) {
	t.Helper()
	eventually(t, "the collector has "+name, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, span := range s.all {
			if span.GetName() == name && hex.EncodeToString(span.GetTraceId()) == trace {
				// The parents of a span end, and come, after it.
				if names, above = s.chain(span); above == "beefbeefbeefbeef" {
					return true
				}
			}
		}
		return false
	})
	return names, above
}

// TestTracing follows a clone through a gateway and a node to git, in the trace of its caller.
func TestTracing(t *testing.T) {
	t.Parallel()
	all := &spans{}
	receiver := httptest.NewServer(all)
	t.Cleanup(receiver.Close) // after the servers
	p := &pair{T: t, dir: t.TempDir()}
	for _, name := range []string{"a.git", "b.git"} {
		if err := os.CopyFS(filepath.Join(p.dir, "repos", name), os.DirFS(blobs(t).Dir)); err != nil {
			t.Fatal(err)
		}
	}
	var asking sync.Mutex
	var asked []string // with which trace
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asking.Lock()
		defer asking.Unlock()
		asked = append(asked, r.Header.Get("Traceparent"))
		io.WriteString(w, `{"allow": true}`)
	}))
	t.Cleanup(hook.Close)
	tracing := fmt.Sprintf("[tracing]\nendpoint = %q\nratio = 0.0\n", receiver.URL)
	p.write("git", "#!/bin/sh\nexec git \"$@\"\n", 0o755)
	p.nodeConfig = p.write("node.toml", tracing, 0o600)
	p.startNode("127.0.0.1:0")
	p.gatewayConfig = p.write("gateway.toml", fmt.Sprintf("%s\n[[node]]\nname = \"one\"\naddress = %q\n[auth.hook]\nurl "+
		"= %q\n", tracing, p.node.listen, hook.URL), 0o600)
	p.startGateway()

	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	clone := func(repo, header string) {
		cmd := exec.Command("git", "-c", "http.extraHeader="+header, "clone", "--quiet", p.gateway.http+"/"+repo,
			filepath.Join(t.TempDir(), "clone"))
		cmd.Env = gittest.Env()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	// its caller does not trace it, and nor do we
	clone("b", "traceparent: 00-11111111111111111111111111111111-beefbeefbeefbeef-00")
	clone("b", "traceparent: 00-"+trace)
	clone("a", "traceparent: 00-"+trace+"-beefbeefbeefbeef-01")
	names, above := all.find(t, trace, "git pack-objects")
	const want = "git pack-objects upload-pack packhorse.internal.v1.SessionService/UploadPack node fetch"
	if strings.Join(names, " ") != want || above != "beefbeefbeefbeef" {
		t.Errorf("git is below %q, and they below %s", names, above)
	}
	asking.Lock()
	if last := asked[len(asked)-1]; !strings.HasPrefix(last, "00-"+trace) || asked[0] != "" {
		t.Errorf("the auth hook was asked as a part of %q", asked)
	}
	asking.Unlock()
	if log := p.gateway.logged(); !strings.Contains(log, `"trace":"`+trace) {
		t.Error("the gateway's log does not name the trace")
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, span := range all.all {
		if hex.EncodeToString(span.GetTraceId()) != trace {
			t.Errorf("a span %q of a request that nobody traces", span.GetName())
		}
	}
}
