package observe

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestReadiness(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	broken, looks, hangs := error(nil), 0, make(chan struct{})
	r := NewReadiness(slog.New(slog.NewTextHandler(&log, nil)),
		Check{"state", func() error { looks++; return broken }},
		Check{"root", func() error { return nil }},
	)
	defer r.Close()
	clock := time.Now()
	r.now = func() time.Time { return clock }
	if err := r.Err(); err != nil || looks != 1 {
		t.Errorf("%v, %d looks", err, looks)
	}
	broken = errors.New("full")
	if err := r.Err(); err != nil || looks != 1 {
		t.Errorf("within a second: %v, %d looks", err, looks)
	}
	clock = clock.Add(checkFresh)
	for range 3 {
		if err := r.Err(); err == nil || err.Error() != "state: full" {
			t.Errorf("%v", err)
		}
		clock = clock.Add(checkFresh)
	}
	if err := testutil.CollectAndCompare(r,
		strings.NewReader("# HELP packhorse_ready_check_failed 1 while a check of /readyz fails, else 0.\n"+
			"# TYPE packhorse_ready_check_failed gauge\npackhorse_ready_check_failed{check=\"root\"} "+
			"0\npackhorse_ready_check_failed{check=\"state\"} 1\n")); err != nil {
		t.Error(err)
	}
	broken = nil
	clock = clock.Add(checkFresh)
	if err := r.Err(); err != nil {
		t.Errorf("once it works again: %v", err)
	}
	if text := log.String(); strings.Count(text, "not ready") != 1 || strings.Count(text, "ready again") != 1 ||
		!strings.Contains(text, "checks=state") {
		t.Errorf("the log has no line for each change:\n%s", text)
	}

	// A check that hangs delays responses only for a short time, and is not started again.
	begun := 0
	stuck := NewReadiness(slog.New(slog.DiscardHandler), Check{"root", func() error { begun++; <-hangs; return nil }},
		Check{"state", func() error { return nil }})
	stuck.limit = time.Millisecond
	for range 3 {
		if err := stuck.Err(); err == nil || err.Error() != "root: no answer within 1ms" {
			t.Errorf("%v", err)
		}
	}
	close(hangs)
	stuck.limit = time.Minute
	stuck.Close()
	if err := stuck.Err(); err != nil || begun != 1 {
		t.Errorf("%v, begun %d times", err, begun)
	}
}
