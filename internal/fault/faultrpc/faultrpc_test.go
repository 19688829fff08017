package faultrpc

import (
	"errors"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

func TestKindsSurvive(t *testing.T) {
	for _, k := range kinds {
		err := From(Error(fault.Wrap(k.kind, "what was wrong", errors.New("a secret"))))
		if fault.KindOf(err) != k.kind || fault.Message(err) != "what was wrong" {
			t.Errorf("%v arrives as %v, %q", k.kind, fault.KindOf(err), fault.Message(err))
		}
		if code := connect.CodeOf(Error(err)); code != k.code {
			t.Errorf("%v is answered with %v, want %v", k.kind, code, k.code)
		}
		err = From(connect.NewError(k.code, errors.New("plain")))
		if fault.KindOf(err) != k.kind && k.code != connect.CodeFailedPrecondition { // of two kinds
			t.Errorf("%v without a detail is %v, want %v", k.code, fault.KindOf(err), k.kind)
		}
	}
	if int(fault.OutOfRange)+1 != len(kinds) {
		t.Error("a kind has no row in the table")
	}
}

func TestAdviceAndDetailsSurvive(t *testing.T) {
	sent := Error(fault.Retry(fault.Exhausted, 3*time.Second, "full"), &internalv1.Outcome{GitUsage: "1"})
	if after := fault.RetryAfter(From(sent)); after != 3*time.Second {
		t.Errorf("retry after %v, want 3s", after)
	}
	if fault.IsCallerLimit(From(sent)) || !fault.IsCallerLimit(From(Error(fault.CallerLimit(0, "yours")))) {
		t.Error("whose share is used up is not told")
	}
	if o, ok := Detail[*internalv1.Outcome](sent); !ok || o.GetGitUsage() != "1" {
		t.Errorf("the detail is %v", o)
	}
}

func TestOlderNode(t *testing.T) {
	err := From(connect.NewError(connect.CodeUnimplemented, errors.New("404")))
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("%v is %v", err, fault.KindOf(err))
	}
}

func TestNilError(t *testing.T) {
	if Error(nil) != nil || From(nil) != nil || Fault(nil) != nil || Message(nil) != nil {
		t.Error("a nil error became one")
	}
}
