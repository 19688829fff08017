package search_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// If there are more repositories than the source can watch, the others are polled, and the log has one line about it.
func TestMoreThanIsWatched(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.room = 400
	const n = 1100
	for i := range n {
		s.push(fmt.Sprint("r", i), main, nil)
	}
	o := options(t, s)
	said := newSaying(o.Log)
	registry := prometheus.NewRegistry()
	o.Log, o.Registerer = slog.New(said), registry
	e := start(t, o)
	unwatched := func() float64 { return gathered(t, registry, "packhorse_search_unwatched_repositories") }
	eventually(t, "some are watched, the others are counted", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.watched > 0 && int(unwatched())+s.watched == n
	})
	eventually(t, "all are known", func() bool { return e.Status(nil).Empty == n })
	for i := range n {
		if i%100 == 7 {
			s.push(fmt.Sprint("r", i), main, files{"f": "needle"})
		}
	}
	await(t, e, "needle", has(n/100))
	if text := said.String(); strings.Count(text, "too many repositories to watch") != 1 ||
		strings.Contains(text, "has ended") {
		t.Errorf("the log says %s", text)
	}
	s.mu.Lock()
	s.room = 0
	s.mu.Unlock()
	eventually(t, "all are watched", func() bool {
		return unwatched() == 0 &&
			strings.Contains(said.String(), "are watched again")
	})
}

// gathered is the value of a metric without labels.
func gathered(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range all {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
