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
		"", "1", "1 2 3 4 5 6", "1 2 3 4 5 6 7 8", "-1 2 3 4 5 6 7", "1 2 3 4 5 6 x", "1 2 3 4 5 6 99999999999999999999",
		"1  2 3 4 5 6 7", "1 9223372036854775807 3 4 5 6 7",
	} {
		r.AddUsageHeader(text)
		if got := r.Usage(); got != u {
			t.Fatalf("usage after the header %q = %+v, want it unchanged: %+v", text, got, u)
		}
	}
	(*Request)(nil).AddUsageHeader(u.Header())
}
