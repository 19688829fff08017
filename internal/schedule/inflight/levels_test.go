package inflight

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestVerdicts(t *testing.T) {
	t.Parallel()
	s := NewLevels(map[Class]time.Duration{ClassSmall: 100 * time.Millisecond}, prometheus.NewPedanticRegistry())
	s.Answered(ClassSmall, 100*time.Millisecond)
	s.Answered(ClassSmall, 101*time.Millisecond)
	s.Answered(ClassSmall, 400*time.Millisecond)
	s.Answered(ClassSmall, 401*time.Millisecond)
	s.Failed(ClassSmall)
	s.Answered(ClassPush, time.Hour) // not judged
	s.Answered(NoClass, time.Hour)
	c := s.classes[ClassSmall]
	for verdict, got := range map[string][2]float64{
		"fast": {testutil.ToFloat64(c.fast), 1}, "tolerable": {testutil.ToFloat64(c.tolerable), 2},
		"slow": {testutil.ToFloat64(c.slow), 1}, "failed": {testutil.ToFloat64(c.failed), 1},
	} {
		if got[0] != got[1] {
			t.Errorf("%s = %v, want %v", verdict, got[0], got[1])
		}
	}
	var none *Levels
	none.Answered(ClassSmall, 0)
	none.Failed(ClassSmall)
}

func BenchmarkAnswered(b *testing.B) {
	s := NewLevels(map[Class]time.Duration{ClassSmall: time.Second}, nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.Answered(ClassSmall, time.Millisecond)
		}
	})
}
