package loadgen

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestReadMetric(t *testing.T) {
	t.Parallel()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# TYPE looks_total counter\nlooks_total{a=\"x\",b=\"y\"} 1\nlooks_total{a=\"z\"} 20\nlooks_total2 5\n"+
			"plain 7\n")
	}))
	defer backend.Close()
	for _, c := range []struct {
		name, label string
		want        float64
	}{{"looks_total", "", 21}, {"looks_total", `a="x"`, 1}, {"plain", "", 7}, {"absent", "", 0}} {
		if got, err := ReadMetric(t.Context(), backend.URL, c.name, c.label); err != nil || got != c.want {
			t.Errorf("ReadMetric(%q, %q) = %v, %v, want %v", c.name, c.label, got, err, c.want)
		}
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	if got := Median([]float64{3, 1, 2}); got != 2 {
		t.Errorf("Median() = %v, want 2", got)
	}
}
