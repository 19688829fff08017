//go:build !linux

package bench

import (
	"context"
	"time"
)

// yielding does nothing: priorities are measured on Linux only.
func yielding() {}

func processNice(int) bool { return false }

func sessionsShare() bool { return false }

func preciseSleep(ctx context.Context, d time.Duration) bool { return sleep(ctx, d) }
