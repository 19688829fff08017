// Package retry has the pauses between attempts, and caches the answers of other servers so that fewer are needed.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Policy has the pauses after consecutive failures: First after one, and then twice as long each time, up to Max.
type Policy struct{ First, Max time.Duration }

// Pause returns the pause after a number of failures, at least one.
func (p Policy) Pause(failures int) time.Duration {
	d := p.First
	for ; failures > 1 && d < p.Max; failures-- {
		d *= 2
	}
	return min(d, p.Max)
}

// Jitter returns between half of Pause and all of it, so that those who failed together do not return together.
func (p Policy) Jitter(failures int) time.Duration {
	d := p.Pause(failures)
	return d/2 + rand.N(d/2+1)
}

// Wait sleeps for Jitter, and at least for a hint of the server.
func (p Policy) Wait(ctx context.Context, failures int, hint time.Duration) error {
	return Sleep(ctx, max(p.Jitter(failures), hint))
}

// Sleep waits, or returns the error of ctx if that ends earlier.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
