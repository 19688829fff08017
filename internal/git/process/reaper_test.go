package process

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestReaperMetrics checks that the state of the reaper is absent before it is started, and that failures are counted
// by cause, from 0 on.
func TestReaperMetrics(t *testing.T) {
	t.Parallel()
	m := newReaperMetrics(promauto.With(nil))
	failures := func(want map[string]float64) {
		t.Helper()
		if n := testutil.CollectAndCount(m.failures); n != len(want) {
			t.Errorf("%d causes, want %d", n, len(want))
		}
		for cause, n := range want {
			if got := testutil.ToFloat64(m.failures.WithLabelValues(cause)); got != n {
				t.Errorf("%q: %v; want %v", cause, got, n)
			}
		}
	}
	if n := testutil.CollectAndCount(m.up, "packhorse_reaper_up"); n != 0 {
		t.Error("the reaper runs at once, want it stopped")
	}
	failures(map[string]float64{"start": 0, "ended": 0})
	m.Failed("start")
	m.Failed("start")
	m.Failed("ended")
	failures(map[string]float64{"start": 2, "ended": 1})
	for _, up := range []bool{false, true, false} {
		m.Up(up)
		if got := testutil.ToFloat64(m.up); got == 1 != up {
			t.Errorf("up is %v after %v", got, up)
		}
	}
}
