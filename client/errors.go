package client

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// FaultOf returns the Fault of an error, or nil if it has none.
func FaultOf(err error) *packhorsev1.Fault {
	answer, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return nil
	}
	for _, detail := range answer.Details() {
		if value, err := detail.Value(); err == nil {
			if f, ok := value.(*packhorsev1.Fault); ok {
				return f
			}
		}
	}
	return nil
}

// KindOf returns the kind of an error of a call. Without a Fault it is derived from the code, so that a failed
// connection is FAULT_KIND_UNAVAILABLE. FAULT_KIND_UNSPECIFIED is a fault of the node, or an error that is not of this
// package.
func KindOf(err error) packhorsev1.FaultKind {
	if f := FaultOf(err); f != nil {
		return f.GetKind()
	}
	switch {
	case errors.Is(err, context.Canceled):
		return packhorsev1.FaultKind_FAULT_KIND_CANCELLED
	case errors.Is(err, context.DeadlineExceeded):
		return packhorsev1.FaultKind_FAULT_KIND_DEADLINE
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeOutOfRange, connect.CodeFailedPrecondition, connect.CodeUnimplemented:
		return packhorsev1.FaultKind_FAULT_KIND_INVALID
	case connect.CodeAlreadyExists:
		return packhorsev1.FaultKind_FAULT_KIND_EXISTS
	case connect.CodeNotFound:
		return packhorsev1.FaultKind_FAULT_KIND_NOT_FOUND
	case connect.CodePermissionDenied, connect.CodeUnauthenticated:
		return packhorsev1.FaultKind_FAULT_KIND_DENIED
	case connect.CodeResourceExhausted:
		return packhorsev1.FaultKind_FAULT_KIND_EXHAUSTED
	case connect.CodeAborted:
		return packhorsev1.FaultKind_FAULT_KIND_ABORTED
	case connect.CodeUnavailable:
		return packhorsev1.FaultKind_FAULT_KIND_UNAVAILABLE
	case connect.CodeDataLoss:
		return packhorsev1.FaultKind_FAULT_KIND_CORRUPT
	case connect.CodeCanceled:
		return packhorsev1.FaultKind_FAULT_KIND_CANCELLED
	case connect.CodeDeadlineExceeded:
		return packhorsev1.FaultKind_FAULT_KIND_DEADLINE
	}
	return packhorsev1.FaultKind_FAULT_KIND_UNSPECIFIED
}

// IsNotFound reports whether the repository, ref or object of a call does not exist.
func IsNotFound(err error) bool { return KindOf(err) == packhorsev1.FaultKind_FAULT_KIND_NOT_FOUND }

// RetryAfter returns the time to wait before a call is repeated. Zero means no hint.
func RetryAfter(err error) time.Duration {
	after := FaultOf(err).GetRetryAfter()
	if !after.IsValid() {
		return 0
	}
	return max(0, after.AsDuration())
}
