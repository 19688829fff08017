package objects

import (
	"context"
	"time"

	"github.com/packhorse-git/packhorse/internal/lfs"
)

// janitorInterval is the interval at which old parts are removed.
const janitorInterval = 10 * time.Minute

// janitor measures the pool, and removes old parts.
func (s *Store) janitor(ctx context.Context) {
	err := s.WalkPool(func(o lfs.Object, _ uint64) error {
		s.metrics.countPool(1, o.Size)
		return ctx.Err()
	})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("cannot read the pool of LFS objects", "error", err)
	}
	ticker := time.NewTicker(janitorInterval)
	defer ticker.Stop()
	for {
		s.expireParts(time.Now())
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
