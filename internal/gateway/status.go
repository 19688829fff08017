package gateway

import (
	"net/http"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// StatusOf returns the HTTP status of a fault. The protocol of Git LFS over SSH has the same ones.
func StatusOf(kind fault.Kind) int {
	switch kind {
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Denied:
		return http.StatusForbidden
	case fault.Unauthenticated:
		return http.StatusUnauthorized
	case fault.Exists, fault.Aborted, fault.Precondition:
		return http.StatusConflict
	case fault.OutOfRange:
		return http.StatusGone
	case fault.Exhausted:
		return http.StatusTooManyRequests
	case fault.Full:
		return http.StatusInsufficientStorage
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	case fault.Deadline:
		return http.StatusGatewayTimeout
	case fault.Cancelled:
		return StatusClientClosed
	}
	return http.StatusInternalServerError
}

// StatusClientClosed is the status in the log of a request whose client has disconnected.
const StatusClientClosed = 499
