package loadgen

import (
	"reflect"
	"testing"
	"time"
)

func TestStandstillReport(t *testing.T) {
	t.Parallel()
	at := func(n int) time.Duration { return time.Hour + time.Duration(n)*time.Millisecond }
	still := func(from, to int) Span { return Span{at(from), at(to)} }
	// due every 10 ms for a second, with a latency of 1 ms; during the standstill they were answered at its end
	var answers []Answered
	for n := 0; n < 1000; n += 10 {
		took := 1
		if n >= 500 && n < 540 {
			took = 540 - n
		}
		answers = append(answers, Answered{time.Duration(n) * time.Millisecond, time.Duration(took) * time.Millisecond})
	}
	got := NewStandstillReport([]Span{still(5000, 6000), still(520, 540), still(499, 530), still(-90, -10),
		still(905, 908)}, at(0), answers)
	want := &StandstillReport{Standstill: Standstill{Count: 2, TotalMS: 44, LongestMS: 41}, Requests: 4,
		Without: Percentiles{1, 1, 1, 1}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v; want %+v", got, want)
	}
	if _, got := Between([]Span{still(900, 1100), still(-50, 20)}, at(0), at(1000)); got != (Standstill{2, 120, 100}) {
		t.Errorf("at both ends: %+v", got)
	}
	if got := NewStandstillReport(nil, at(0), answers); got.Count != 0 || got.Requests != 0 || got.Without.Max != 40 {
		t.Errorf("a machine that runs: %+v", got)
	}
}
