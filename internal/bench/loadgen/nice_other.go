//go:build !linux

package loadgen

import (
	"context"
	"time"
)

// Yielding does nothing. Priorities are used on Linux only.
func Yielding() {}

func ProcessNice(int) bool { return false }

func SessionsShare() bool { return false }

func PreciseSleep(ctx context.Context, d time.Duration) bool { return Sleep(ctx, d) }
