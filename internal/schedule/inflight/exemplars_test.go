package inflight

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// linked lists the labels of a histogram's exemplars, by bucket.
func linked(t *testing.T, h prometheus.Histogram) (all []string, count uint64) {
	t.Helper()
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		t.Fatal(err)
	}
	for _, b := range m.GetHistogram().GetBucket() {
		for _, l := range b.GetExemplar().GetLabel() {
			all = append(all, l.GetName()+"="+l.GetValue())
		}
	}
	return all, m.GetHistogram().GetSampleCount()
}

func seconds() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x",
		Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100}})
}

func TestLinks(t *testing.T) {
	t.Parallel()
	h, links := seconds(), new(Exemplars)
	links.Observe(context.Background(), h, time.Second)
	if all, count := linked(t, h); len(all) != 0 || count != 1 {
		t.Errorf("without a request: exemplars = %v, count = %d, want none and 1", all, count)
	}
	ctx, r := NewBoard().Begin(t.Context(), "fetch", "abc")
	defer r.End()
	links.Observe(ctx, h, time.Second)
	links.Observe(ctx, h, time.Millisecond)
	if all, count := linked(t, h); strings.Join(all, " ") != "request_id=abc request_id=abc" || count != 3 {
		t.Errorf("exemplars = %v, count = %d, want two of request abc and 3", all, count)
	}
}

func BenchmarkLinks(b *testing.B) {
	h := seconds()
	b.Run("plain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h.Observe(.01)
		}
	})
	ctx, r := NewBoard().Begin(b.Context(), "fetch", "")
	defer r.End()
	for name, took := range map[string]time.Duration{"quick": time.Millisecond, "slow": time.Second} {
		b.Run(name, func(b *testing.B) {
			var links Exemplars
			b.ReportAllocs()
			for b.Loop() {
				links.Observe(ctx, h, took)
			}
		})
	}
}
