package gateway

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/observe/sli"
)

// judged is a call of which is known how it was judged.
func judged(t *testing.T, c *call) map[string]float64 {
	t.Helper()
	bounds := map[sli.Class]time.Duration{}
	for _, class := range []sli.Class{sli.Small, sli.Hit, sli.Cold, sli.Push, sli.Search, sli.Page, sli.Resolve} {
		bounds[class] = time.Hour
	}
	c.Options = &Options{Metrics: NewMetrics(), SLI: sli.New(bounds)}
	result := "ok"
	if c.err != nil {
		result = fault.KindOf(c.err).String()
	}
	c.judge(c.op, result, time.Since(c.start), &c.outcome)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c.SLI.Collectors()...)
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

func TestRequestsAreJudged(t *testing.T) {
	t.Parallel()
	long := time.Now().Add(-2 * time.Hour) // tolerable
	for _, test := range []struct {
		what string
		call call
		want string
	}{
		{"an advertisement", call{op: opAdvertise, start: time.Now()}, "small fast"},
		{"a negotiation", call{op: opFetch, start: long}, "small tolerable"},
		{"a hit whose client is slow", call{op: opFetch, start: long, outcome: node.Outcome{Pack: "hit", FirstByte: time.Second}}, "hit fast"},
		{"a pack that took long", call{op: opFetch, start: long, outcome: node.Outcome{Pack: "miss", FirstByte: 5 * time.Hour}}, "cold slow"},
		{"one that follows", call{op: opFetch, start: long, outcome: node.Outcome{Pack: "follow", FirstByte: time.Second}}, "cold fast"},
		{"a push", call{op: opPush, start: time.Now()}, "push fast"},
		{"a search", call{op: opSearch, start: time.Now()}, "search fast"},
		{"a page", call{op: opPage, start: time.Now()}, "page fast"},
		{"a revision", call{op: opResolve, start: time.Now()}, "resolve fast"},
		{"a refusal", call{op: opLsRefs, start: time.Now(), err: fault.New(fault.Exhausted, "full")}, "small failed"},
		{"a pack that broke", call{op: opFetch, start: time.Now(), outcome: node.Outcome{Pack: "miss"}, err: fault.New(fault.Internal, "died")}, "cold failed"},
		{"a client that went away", call{op: opFetch, start: time.Now(), err: fault.New(fault.Cancelled, "gone")}, ""},
		{"no such repository", call{op: opAdvertise, start: time.Now(), err: fault.New(fault.NotFound, "none")}, ""},
		{"somebody who waits for a push", call{op: opWait, start: long}, ""},
		{"nonsense", call{op: opOther, start: time.Now()}, ""},
	} {
		got := judged(t, &test.call)
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
	m := NewMetrics()
	m.countRequest(ctx, opFetch, "ok", time.Second)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.Collectors()...)
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
