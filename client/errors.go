package client

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// fromNode is what a node says of an error; nil if it is not from a node that knows of faults.
func fromNode(err error) *packhorsev1.Fault {
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

// KindOf tells what can be done about an error of a call. Without the node's own word it goes by the error's code, so that a connection that
// cannot be made is FAULT_KIND_UNAVAILABLE. FAULT_KIND_UNSPECIFIED is a fault of the node, or none of this package's errors.
func KindOf(err error) packhorsev1.FaultKind {
	if f := fromNode(err); f != nil {
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
	case connect.CodeUnavailable, connect.CodeAborted:
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

// IsNotFound tells whether what a call named does not exist: the repository, the ref, the object.
func IsNotFound(err error) bool { return KindOf(err) == packhorsev1.FaultKind_FAULT_KIND_NOT_FOUND }

// RetryAfter tells how long to wait before the call is made again. Zero: the node gives no advice.
func RetryAfter(err error) time.Duration {
	after := fromNode(err).GetRetryAfter()
	if !after.IsValid() {
		return 0
	}
	return max(0, after.AsDuration())
}
