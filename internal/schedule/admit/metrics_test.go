package admit

import (
	"context"
	"maps"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// figures are the metrics of a registry but for histograms, by name without its beginning and values of labels.
func figures(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "packhorse_lane_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			if m.Histogram == nil {
				all[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return all
}

func TestMetricsTellOfLanesAndQueues(t *testing.T) {
	t.Parallel()
	lanes := NewLanes(Sizes{Small: 1, Hit: 10, Cold: 1, Push: 1})
	registry := prometheus.NewPedanticRegistry()
	m := NewMetrics(lanes, NewBudget("requests", 1), registry)
	slots := balance.NewSlots(2, balance.Limits{Queue: 1}, balance.Clock{})
	m.Queue("cold", slots)

	for range 2 { // the second is refused
		_, _ = lanes.Small.Enter("")
		_, _ = lanes.Cold.Enter("")
	}
	var release func()
	for range 2 {
		var err error
		if release, _, err = slots.Acquire(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	queued := make(chan error)
	go func() {
		_, _, err := slots.Acquire(context.Background(), "")
		queued <- err
	}()
	for slots.Queued() == 0 {
		runtime.Gosched()
	}
	if _, _, err := slots.Acquire(t.Context(), ""); err == nil {
		t.Fatal("more than the queue's length waits")
	}
	slots.Narrow(1)
	want := map[string]float64{
		"packhorse_request_memory_bytes": 0,
		"limit cold":                     1, "limit hit": 10, "limit push": 1, "limit pages": 0, "limit small": 1,
		"queued cold": 1, "queued hit": 0, "queued push": 0, "queued pages": 0, "queued small": 0,
		"running cold": 2, "running hit": 0, "running push": 0, "running pages": 0, "running small": 1,
		"requests_total cold admitted": 2, "requests_total cold gone": 0, "requests_total cold queued": 0,
		"requests_total cold refused":   2,
		"requests_total small admitted": 1, "requests_total small refused": 1,
	}
	for _, lane := range []string{"hit", "push", "pages", "small"} {
		for _, outcome := range []string{"admitted", "queued", "refused", "gone"} {
			want["requests_total "+lane+" "+outcome] += 0
		}
	}
	if got := figures(t, registry); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	slots.Narrow(2)
	release()
	if err := <-queued; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, _ = slots.Acquire(ctx, "")
	want["limit cold"], want["queued cold"] = 2, 0
	want["requests_total cold gone"], want["requests_total cold queued"] = 1, 1
	if got := figures(t, registry); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
