package sli

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestVerdicts(t *testing.T) {
	t.Parallel()
	s := New(map[Class]time.Duration{Small: 100 * time.Millisecond}, prometheus.NewPedanticRegistry())
	s.Answered(Small, 100*time.Millisecond)
	s.Answered(Small, 101*time.Millisecond)
	s.Answered(Small, 400*time.Millisecond)
	s.Answered(Small, 401*time.Millisecond)
	s.Failed(Small)
	s.Answered(Push, time.Hour) // not judged
	s.Answered(None, time.Hour)
	c := s.classes[Small]
	for verdict, got := range map[string][2]float64{
		"fast": {testutil.ToFloat64(c.fast), 1}, "tolerable": {testutil.ToFloat64(c.tolerable), 2},
		"slow": {testutil.ToFloat64(c.slow), 1}, "failed": {testutil.ToFloat64(c.failed), 1},
	} {
		if got[0] != got[1] {
			t.Errorf("%s = %v, want %v", verdict, got[0], got[1])
		}
	}
	var none *Set
	none.Answered(Small, 0)
	none.Failed(Small)
}

func BenchmarkAnswered(b *testing.B) {
	s := New(map[Class]time.Duration{Small: time.Second}, nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.Answered(Small, time.Millisecond)
		}
	})
}
