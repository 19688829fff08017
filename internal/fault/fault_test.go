package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

func TestKindsSurviveWrapping(t *testing.T) {
	t.Parallel()
	cause := &os.PathError{Op: "open", Path: "/srv/secret", Err: os.ErrPermission}
	for name, test := range map[string]struct {
		err     error
		kind    Kind
		message string
		after   time.Duration
	}{
		"none":            {nil, Internal, "internal error", 0},
		"without a kind":  {cause, Internal, "internal error", 0},
		"new":             {New(Denied, "not %s", "you"), Denied, "not you", 0},
		"wrapped":         {Wrap(Corrupt, "the pack is damaged", cause), Corrupt, "the pack is damaged", 0},
		"below another":   {fmt.Errorf("read /srv/secret: %w", New(NotFound, "no such thing")), NotFound, "no such thing", 0},
		"two kinds":       {Wrap(Unavailable, "try later", New(NotFound, "/srv/secret")), Unavailable, "try later", 0},
		"joined":          {errors.Join(io.EOF, New(Invalid, "bad request")), Invalid, "bad request", 0},
		"cancelled":       {fmt.Errorf("read /srv/secret: %w", context.Canceled), Cancelled, "the request was cancelled", 0},
		"deadline":        {context.DeadlineExceeded, Deadline, "the request took too long", 0},
		"kind over cause": {Wrap(Internal, "it broke", context.Canceled), Internal, "it broke", 0},
		"retry": {fmt.Errorf("x: %w", Retry(Exhausted, time.Minute, "too %s", "much")), Exhausted, "too much",
			time.Minute},
	} {
		if got := KindOf(test.err); got != test.kind {
			t.Errorf("%s: kind %v, want %v", name, got, test.kind)
		}
		if got := Message(test.err); !strings.HasPrefix(got, test.message) || strings.Contains(got, "secret") {
			t.Errorf("%s: message %q, want %q", name, got, test.message)
		}
		if got := RetryAfter(test.err); got != test.after {
			t.Errorf("%s: retry after %v, want %v", name, got, test.after)
		}
	}
	if share := fmt.Errorf("x: %w", CallerLimit(time.Minute, "too %s", "much")); !IsCallerLimit(share) ||
		!Is(share, Exhausted) || RetryAfter(share) != time.Minute ||
		IsCallerLimit(Retry(Exhausted, 0, "x")) || IsCallerLimit(&Error{Kind: Unavailable, CallerLimit: true}) ||
		IsCallerLimit(nil) {
		t.Errorf("%v", share)
	}
	if Is(nil, Internal) {
		t.Error("no error is of no kind")
	}
	if Wrap(Corrupt, "what", nil) != nil {
		t.Error("no error became one")
	}
	if err := Wrap(Corrupt, "the pack is damaged", cause); !errors.Is(err, os.ErrPermission) ||
		!strings.Contains(err.Error(), "/srv/secret") {
		t.Errorf("the log does not see the cause: %v", err)
	}
}

// Kinds are metric labels: each has a name of its own, and whatever comes has one.
func TestKindNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for k := Internal; k <= Precondition; k++ {
		if seen[k.String()] {
			t.Errorf("two kinds are named %s", k)
		}
		seen[k.String()] = true
	}
	if got := Kind(200).String(); got != "internal" {
		t.Errorf("an unknown kind is named %s", got)
	}
}
