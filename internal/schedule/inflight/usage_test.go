package inflight

import (
	"testing"
	"time"
)

func TestTold(t *testing.T) {
	t.Parallel()
	if text := (Usage{In: 1}).Header(); text != "" {
		t.Errorf("header without commands = %q, want none", text)
	}
	_, r := NewBoard().Begin(t.Context(), "search", "")
	defer r.End()
	u := Usage{Commands: 2, User: 3 * time.Millisecond, System: 4 * time.Microsecond, Queue: time.Minute, MaxRSS: 1 << 40,
		In: 5, Out: 6}
	r.AddUsageHeader(u.Header())
	if got := r.Usage(); got != u {
		t.Errorf("usage = %+v, want %+v", got, u)
	}
	for _, text := range []string{
		"", "1", "x", `{"Commands": -1}`, `{"Commands": 1, "In": 9223372036854775807}`, `{"Commands": 1.5}`, `{"Commands": 1`,
	} {
		r.AddUsageHeader(text)
		if got := r.Usage(); got != u {
			t.Fatalf("usage after the header %q = %+v, want it unchanged: %+v", text, got, u)
		}
	}
	(*Request)(nil).AddUsageHeader(u.Header())
}
