package balance

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestSpeedsFound: from what goes on for some time at each number at once, at speeds that are known, these are found, whatever work is like.
func TestSpeedsFound(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]func(*rand.Rand) float64{"fixed": func(*rand.Rand) float64 { return 1 }, "exponential": (*rand.Rand).ExpFloat64, "heavy tail": lognormal(1, 1)} {
		want := vector{10, 10, 8, 5}
		r := rand.New(rand.NewPCG(1, 2))
		s := speeds{most: 3}
		class, left := r.IntN(4), 0.0
		for range 4000 {
			var in vector
			for work := size(r); ; class, left = r.IntN(4), r.ExpFloat64()/20 {
				if need := work / want[class]; need < left {
					in[class], left = in[class]+need, left-need
					break
				}
				in[class], work = in[class]+left, work-left*want[class]
			}
			s.add(&in, 1, class, 2)
			s.solve()
		}
		for i := range 4 {
			if got := s.speed[i]; math.Abs(got/want[i]-1) > 0.3 {
				t.Errorf("%s: class %d: %.2f, want %.2f", name, i, got, want[i])
			}
		}
		if is, err := s.times(0, 2); math.Abs(is-1.5) > 4*err+0.01 || err > 0.3 {
			t.Errorf("%s: three do %.2f +- %.2f times as much as one; want 1.5", name, is, err)
		}
	}
}

// TestSpeedsAnything: whatever is added, speeds and predictions are numbers.
func TestSpeedsAnything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		u := newTuner()
		u.resize(rapid.SampledFrom([]int{1, 2, 4, 40}).Draw(t, "slots"))
		now := time.Duration(0)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				var in vector
				for i := range u.speeds.most + 1 {
					in[i] = rapid.SampledFrom([]float64{0, 0, 1e-9, 1e-3, 0.1, 1, 1e5}).Draw(t, "time")
				}
				end := rapid.IntRange(0, u.speeds.most).Draw(t, "end")
				for range rapid.SampledFrom([]int{1, 1, 10, 1000}).Draw(t, "times") {
					u.speeds.add(&in, rapid.SampledFrom([]float64{0, 1e-9, 0.1, 1, 50, 1e6}).Draw(t, "worth"), end, 2)
					now += rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Hour}).Draw(t, "gap")
					u.demand.add(now)
				}
			},
			"forget": func(t *rapid.T) {
				u.speeds.forget(rapid.IntRange(0, u.speeds.most).Draw(t, "class"), rapid.Float64Range(1, 100).Draw(t, "count"))
			},
			"": func(t *rapid.T) {
				if u.speeds.weight == 0 {
					return
				}
				u.speeds.solve()
				for i := range u.most + 1 {
					if done := u.speeds.done(i); !(done > 0) || math.IsInf(done, 0) {
						t.Fatalf("at step %d %g gets done", i, done)
					}
					if is, err := u.speeds.times(0, i); math.IsNaN(is) || math.IsNaN(err) || err < 0 {
						t.Fatalf("step %d: %g +- %g", i, is, err)
					}
				}
				u.decide(rapid.SampledFrom([]int{0, 1, 2, 100}).Draw(t, "workers"))
				u.press()
				if u.level < 0 || u.level > u.most {
					t.Fatalf("level %d of %d", u.level, u.most)
				}
			},
		})
	})
}
