package reaper

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

// The test program is the reaper and the server too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "reaper":
			if err := Main(os.Stdin, slog.New(slog.NewJSONHandler(os.Stderr, nil))); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case "deaf":
			time.Sleep(time.Hour)
		case "server":
			serve()
		}
	}
	goleak.VerifyTestMain(m)
}

const limit = time.Minute

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after %v: %s", limit, what)
		}
	}
}

func TestNone(t *testing.T) {
	t.Parallel()
	k := Keep(Options{})
	if k != nil || k.Env() != "" {
		t.Errorf("a keeper of nothing: %v", k)
	}
	k.Add(1, 0)
	k.Remove(1)
	k.Abandon()
	k.Close()
}

// value is what a metric says.
func value(t *testing.T, m *Metrics, name, cause string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.Collectors()...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, metric := range f.Metric {
			if f.GetName() == name && (cause == "" || metric.Label[0].GetValue() == cause) {
				return metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s %s", name, cause)
	return 0
}
