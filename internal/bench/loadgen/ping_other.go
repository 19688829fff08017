//go:build !linux

package loadgen

import "context"

func (p *Pings) Run(ctx context.Context) (*Outcome, error) { return p.runGoroutines(ctx) }
