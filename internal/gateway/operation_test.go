package gateway

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// rate rates a request, and returns the counters of the service levels.
func rated(t *testing.T, r *Request) map[string]float64 {
	t.Helper()
	bounds := map[inflight.Class]time.Duration{}
	for _, class := range []inflight.Class{inflight.ClassSmall, inflight.ClassHit, inflight.ClassCold,
		inflight.ClassPush, inflight.ClassSearch, inflight.ClassPage, inflight.ClassResolve} {
		bounds[class] = time.Hour
	}
	reg := prometheus.NewPedanticRegistry()
	r.Gateway = &Gateway{Metrics: NewMetrics(nil), SLI: inflight.NewLevels(bounds, reg)}
	result := "ok"
	if r.Err != nil {
		result = fault.KindOf(r.Err).String()
	}
	r.rate(result, time.Since(r.start))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if v := m.GetCounter().GetValue(); v != 0 {
				all[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = v
			}
		}
	}
	return all
}

func TestRequestsAreRated(t *testing.T) {
	t.Parallel()
	long := time.Now().Add(-2 * time.Hour) // tolerable
	for _, test := range []struct {
		what    string
		request Request
		want    string
	}{
		{"an advertisement", Request{Op: Advertise, start: time.Now()}, "small fast"},
		{"a negotiation", Request{Op: Fetch, start: long}, "small tolerable"},
		{"a hit whose client is slow", Request{Op: Fetch, start: long,
			Outcome: node.Outcome{Fetch: node.FetchOutcome{Pack: "hit", FirstByte: time.Second}}}, "hit fast"},
		{"a pack that took long", Request{Op: Fetch, start: long,
			Outcome: node.Outcome{Fetch: node.FetchOutcome{Pack: "miss", FirstByte: 5 * time.Hour}}}, "cold slow"},
		{"one that follows", Request{Op: Fetch, start: long,
			Outcome: node.Outcome{Fetch: node.FetchOutcome{Pack: "follow",
				FirstByte: time.Second}}}, "cold fast"},
		{"a push", Request{Op: Push, start: time.Now()}, "push fast"},
		{"a search", Request{Op: Search, start: time.Now()}, "search fast"},
		{"a page", Request{Op: Page, start: time.Now()}, "page fast"},
		{"a revision", Request{Op: Resolve, start: time.Now()}, "resolve fast"},
		{"a refusal", Request{Op: LsRefs, start: time.Now(), Err: fault.New(fault.Exhausted, "full")},
			"small failed"},
		{"a pack that broke", Request{Op: Fetch, start: time.Now(),
			Outcome: node.Outcome{Fetch: node.FetchOutcome{Pack: "miss"}},
			Err:     fault.New(fault.Internal, "died")}, "cold failed"},
		{"a client that went away", Request{Op: Fetch, start: time.Now(), Err: fault.New(fault.Cancelled,
			"gone")}, ""},
		{"no such repository", Request{Op: Advertise, start: time.Now(), Err: fault.New(fault.NotFound, "none")}, ""},
		{"somebody who waits for a push", Request{Op: Wait, start: long}, ""},
		{"nonsense", Request{Op: Other, start: time.Now()}, ""},
	} {
		got := rated(t, &test.request)
		if test.want == "" && len(got) > 0 || test.want != "" && (len(got) != 1 || got[test.want] != 1) {
			t.Errorf("%s: %v, want %q", test.what, got, test.want)
		}
	}
}

// TestRequestsAreLinked: the histogram of requests leads to one of them.
func TestRequestsAreLinked(t *testing.T) {
	t.Parallel()
	ctx, running := inflight.NewBoard().Begin(t.Context(), "fetch", "the-request")
	defer running.End()
	reg := prometheus.NewPedanticRegistry()
	m := NewMetrics(reg)
	m.count(&Request{Ctx: ctx, Op: Fetch}, "ok", time.Second)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			for _, b := range metric.GetHistogram().GetBucket() {
				for _, l := range b.GetExemplar().GetLabel() {
					if l.GetName() == "request_id" && l.GetValue() == "the-request" {
						return
					}
				}
			}
		}
	}
	t.Error("no exemplar")
}
