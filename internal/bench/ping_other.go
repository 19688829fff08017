//go:build !linux

package bench

import "context"

func (p *pings) run(ctx context.Context) (*outcome, error) { return p.runGoroutines(ctx) }
