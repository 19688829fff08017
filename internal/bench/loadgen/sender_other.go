//go:build !linux

package loadgen

import "context"

func (s *Sender) run(ctx context.Context, out *Sent) error { return s.goroutines(ctx, out) }
