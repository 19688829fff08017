// Package faultrpc translates faults to errors of the control API and back. Each error has a standard code, and a Fault
// as its detail.
package faultrpc

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/packhorse-git/packhorse/internal/fault"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// kinds maps kinds to those of the API and to standard codes.
var kinds = [...]struct {
	kind fault.Kind
	wire packhorsev1.FaultKind
	code connect.Code
}{
	{fault.Internal, packhorsev1.FaultKind_FAULT_KIND_UNSPECIFIED, connect.CodeInternal},
	{fault.Invalid, packhorsev1.FaultKind_FAULT_KIND_INVALID, connect.CodeInvalidArgument},
	{fault.NotFound, packhorsev1.FaultKind_FAULT_KIND_NOT_FOUND, connect.CodeNotFound},
	{fault.Denied, packhorsev1.FaultKind_FAULT_KIND_DENIED, connect.CodePermissionDenied},
	{fault.Exhausted, packhorsev1.FaultKind_FAULT_KIND_EXHAUSTED, connect.CodeResourceExhausted},
	{fault.Unavailable, packhorsev1.FaultKind_FAULT_KIND_UNAVAILABLE, connect.CodeUnavailable},
	{fault.Corrupt, packhorsev1.FaultKind_FAULT_KIND_CORRUPT, connect.CodeDataLoss},
	{fault.Cancelled, packhorsev1.FaultKind_FAULT_KIND_CANCELLED, connect.CodeCanceled},
	{fault.Deadline, packhorsev1.FaultKind_FAULT_KIND_DEADLINE, connect.CodeDeadlineExceeded},
	{fault.Exists, packhorsev1.FaultKind_FAULT_KIND_EXISTS, connect.CodeAlreadyExists},
	{fault.Unauthenticated, packhorsev1.FaultKind_FAULT_KIND_UNAUTHENTICATED, connect.CodeUnauthenticated},
	{fault.Aborted, packhorsev1.FaultKind_FAULT_KIND_ABORTED, connect.CodeAborted},
	{fault.Precondition, packhorsev1.FaultKind_FAULT_KIND_PRECONDITION, connect.CodeFailedPrecondition},
	{fault.OutOfRange, packhorsev1.FaultKind_FAULT_KIND_OUT_OF_RANGE, connect.CodeOutOfRange},
	{fault.Full, packhorsev1.FaultKind_FAULT_KIND_FULL, connect.CodeFailedPrecondition},
}

// Message returns the part of an error that the API transmits. It returns nil if err is nil.
func Message(err error) *packhorsev1.Fault {
	if err == nil {
		return nil
	}
	f := &packhorsev1.Fault{Message: strings.ToValidUTF8(fault.Message(err), "\ufffd"),
		CallerLimit: fault.IsCallerLimit(err)}
	kind := fault.KindOf(err)
	for _, k := range kinds {
		if k.kind == kind {
			f.Kind = k.wire
		}
	}
	if after := fault.RetryAfter(err); after > 0 {
		f.RetryAfter = durationpb.New(after)
	}
	if e, ok := errors.AsType[*fault.Error](err); ok {
		f.Field = strings.ToValidUTF8(e.Field, "\ufffd")
		for _, m := range e.Mismatches {
			f.Mismatches = append(f.Mismatches, &packhorsev1.Mismatch{Name: strings.ToValidUTF8(m.Name, "\ufffd"),
				Expected: m.Expected, Actual: m.Actual})
		}
	}
	return f
}

// Fault is the inverse of Message. The error has no cause.
func Fault(f *packhorsev1.Fault) error {
	if f == nil {
		return nil
	}
	e := &fault.Error{Kind: fault.Internal, Msg: f.GetMessage(), CallerLimit: f.GetCallerLimit(), Field: f.GetField()}
	for _, m := range f.GetMismatches() {
		e.Mismatches = append(e.Mismatches,
			fault.Mismatch{Name: m.GetName(), Expected: m.GetExpected(), Actual: m.GetActual()})
	}
	for _, k := range kinds {
		if k.wire == f.GetKind() {
			e.Kind = k.kind
		}
	}
	if after := f.GetRetryAfter(); after.IsValid() {
		e.RetryAfter = max(0, min(after.AsDuration(), time.Hour))
	}
	return e
}

// Error returns the error of a call with a Fault and the given details. It returns nil if err is nil, and err itself if
// it is an error of a call already.
func Error(err error, details ...proto.Message) error {
	if err == nil {
		return nil
	}
	if answer, ok := errors.AsType[*connect.Error](err); ok {
		return answer
	}
	answer := connect.NewError(codeOf(fault.KindOf(err)), errors.New(fault.Message(err)))
	for _, detail := range append([]proto.Message{Message(err)}, details...) {
		if d, err := connect.NewErrorDetail(detail); err == nil {
			answer.AddDetail(d)
		}
	}
	return answer
}

func codeOf(kind fault.Kind) connect.Code {
	for _, k := range kinds {
		if k.kind == kind {
			return k.code
		}
	}
	return connect.CodeInternal
}

// From returns the fault of a call's error: that of the detail, or one for the code if there is no detail. Errors of
// the connection are Unavailable. It returns nil if err is nil.
func From(err error) error {
	if err == nil {
		return nil
	}
	answer, ok := errors.AsType[*connect.Error](err)
	if !ok {
		switch {
		case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
			return err
		}
		return fault.Wrap(fault.Unavailable, "the storage node cannot be reached", err)
	}
	if f, ok := Detail[*packhorsev1.Fault](answer); ok {
		e := Fault(f).(*fault.Error)
		e.Err = err
		return e
	}
	if answer.Code() == connect.CodeUnimplemented {
		return fault.Wrap(fault.Unavailable, "the storage node has an older version, which does not have this call", err)
	}
	for _, k := range kinds {
		if k.code == answer.Code() {
			return fault.Wrap(k.kind, answer.Message(), err)
		}
	}
	return fault.Wrap(fault.Internal, "the storage node answered with an error", err)
}

// Detail returns the first detail of type M of a call's error.
func Detail[M proto.Message](err error) (m M, ok bool) {
	answer, is := errors.AsType[*connect.Error](err)
	if !is {
		return m, false
	}
	for _, d := range answer.Details() {
		v, err := d.Value()
		if err != nil {
			continue
		}
		if m, ok = v.(M); ok {
			return m, true
		}
	}
	return m, false
}
