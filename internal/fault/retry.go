package fault

import (
	"strconv"
	"time"
)

// The retry hints: the time that a client waits before it repeats a request that failed with Exhausted or Unavailable.
// Code that can estimate the time, such as a queue, uses its estimate instead.
const (
	// RetrySoon is for conditions that end in a moment: a full lane, a connection that is being made again, a process that
	// restarts.
	RetrySoon = time.Second
	// RetryLater is for conditions that end after some requests: a full queue, memory in use, an identity source that
	// fails.
	RetryLater = 5 * time.Second
	// RetryMuchLater is for conditions that end after a long task or an operator's action: maintenance, drained workers,
	// an unusable directory.
	RetryMuchLater = 10 * time.Second
)

// RetryHeader returns the value of a Retry-After header: full seconds, rounded up, and at least one.
func RetryHeader(after time.Duration) string {
	return strconv.FormatInt(int64(max(after+time.Second-1, time.Second)/time.Second), 10)
}
