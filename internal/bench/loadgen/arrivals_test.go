package loadgen

import (
	"math"
	"testing"
	"time"
)

// TestArrivals checks that random arrivals are a Poisson process: exponential gaps, and counts whose variance equals
// their mean.
func TestArrivals(t *testing.T) {
	t.Parallel()
	const n, rate = 200_000, 50.0
	a := NewArrivals(rate, false, 7, []int{3, 1})
	var last, sum, squares float64
	paths := [2]int{}
	perSecond := make([]float64, int(n/rate)+1000)
	for range n {
		next := a.Next()
		at := next.Due.Seconds()
		gap := at - last
		sum, squares, last = sum+gap, squares+gap*gap, at
		paths[next.Request]++
		perSecond[int(at)]++
	}
	mean := sum / n
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > 0.03*want {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
	near("mean gap", mean, 1/rate)
	near("variance of gaps", squares/n-mean*mean, 1/rate/rate)
	near("share of the first path", float64(paths[0])/n, 0.75)
	counted := perSecond[:int(last)]
	mean, squares = 0, 0
	for _, c := range counted {
		mean += c / float64(len(counted))
		squares += c * c / float64(len(counted))
	}
	if dispersion := (squares - mean*mean) / mean; math.Abs(dispersion-1) > 0.1 {
		t.Errorf("variance of counts is %v times their mean, want 1", dispersion)
	}
}

func TestArrivalsAreStretched(t *testing.T) {
	t.Parallel()
	slow, fast, steady := NewArrivals(10, false, 3, []int{1}), NewArrivals(40, false, 3, []int{5, 9}), NewArrivals(40,
		true, 3, []int{1})
	other := NewArrivals(10, false, 4, []int{1})
	same := true
	for i := range 1000 {
		a, b, c := slow.Next().Due, fast.Next().Due, steady.Next().Due
		if diff := a - 4*b; diff.Abs() > 10 {
			t.Fatalf("arrival %d is due after %v and, at four times the rate, after %v", i, a, b)
		}
		if want := time.Duration(i+1) * 25 * time.Millisecond; (c - want).Abs() > time.Microsecond {
			t.Fatalf("constant arrival %d is due after %v, want %v", i, c, want)
		}
		same = same && other.Next().Due == a
	}
	if same {
		t.Error("another seed has the same arrivals, want different ones")
	}
}
