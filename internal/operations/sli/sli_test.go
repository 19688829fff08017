package sli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestApdex(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000_000, 0)
	s := newSet(map[Class]time.Duration{Small: 100 * time.Millisecond, Cold: time.Second, Push: 0},
		func() time.Time { return now })
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s.Collectors()...)
	expect := func(want, name string) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range families {
			if f.GetName() != name {
				continue
			}
			for _, m := range f.GetMetric() {
				text := name
				for _, l := range m.GetLabel() {
					text += " " + l.GetValue()
				}
				got = append(got, fmt.Sprint(text, " ", m.GetGauge().GetValue()+m.GetCounter().GetValue()))
			}
		}
		if strings.Join(got, "\n") != want {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
		}
	}
	expect("packhorse_sli_fast_enough_seconds cold 1\npackhorse_sli_fast_enough_seconds small 0.1",
		"packhorse_sli_fast_enough_seconds")
	expect("", "packhorse_sli_apdex") // no request yet

	s.Answered(Small, 100*time.Millisecond)
	s.Answered(Small, 101*time.Millisecond)
	s.Answered(Small, 400*time.Millisecond)
	s.Answered(Small, 401*time.Millisecond)
	s.Failed(Small)
	s.Answered(Push, time.Hour) // turned off
	s.Answered(None, time.Hour)
	expect(`packhorse_sli_apdex small 0.4`, "packhorse_sli_apdex")
	expect(`packhorse_sli_requests_total cold failed 0
packhorse_sli_requests_total cold fast 0
packhorse_sli_requests_total cold slow 0
packhorse_sli_requests_total cold tolerable 0
packhorse_sli_requests_total small failed 1
packhorse_sli_requests_total small fast 1
packhorse_sli_requests_total small slow 1
packhorse_sli_requests_total small tolerable 2`, "packhorse_sli_requests_total")

	now = now.Add(span * (spans - 2))
	s.Answered(Small, 0)
	expect(`packhorse_sli_apdex small 0.5`, "packhorse_sli_apdex")
	now = now.Add(2 * span) // the first span has ended
	expect(`packhorse_sli_apdex small 1`, "packhorse_sli_apdex")
	now = now.Add(-time.Hour) // the clock is set back
	s.Answered(Small, time.Hour)
	expect(`packhorse_sli_apdex small 0.5`, "packhorse_sli_apdex")
	now = now.Add(1000 * time.Hour)
	expect("", "packhorse_sli_apdex")

	var none *Set
	none.Answered(Small, 0)
	none.Failed(Small)
}

func BenchmarkAnswered(b *testing.B) {
	s := New(map[Class]time.Duration{Small: time.Second})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.Answered(Small, time.Millisecond)
		}
	})
}
