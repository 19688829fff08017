package objects

import (
	"context"
	"math"
	"time"

	"github.com/packhorse-git/packhorse/internal/lfs"
)

// janitorInterval is the interval at which old parts are removed.
const janitorInterval = 10 * time.Minute

// janitor measures the pool and the free space, and removes old parts.
func (s *Store) janitor(ctx context.Context) {
	err := s.WalkPool(func(o lfs.Object, _ uint64) error {
		s.measured.Store(directoryOf(o) + 1)
		s.countPool(1, o)
		return ctx.Err()
	})
	s.measured.Store(math.MaxUint32)
	if err != nil && ctx.Err() == nil {
		s.log.Warn("cannot read the pool of LFS objects", "error", err)
	}
	ticker := time.NewTicker(janitorInterval)
	defer ticker.Stop()
	for {
		s.expireParts(time.Now())
		if room := s.roomIn(s.options.Dir); room != unknownRoom {
			s.metrics.free.WithLabelValues().Set(float64(room))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// directoryOf returns the number of an object's directory in the order of WalkPool.
func directoryOf(o lfs.Object) uint32 { return uint32(o.OID[0])<<8 | uint32(o.OID[1]) }

// countPool counts an object that was added to the pool, or with -1 one that was removed. It ignores objects in
// directories that the janitor has not measured, because it measures them later.
func (s *Store) countPool(n int64, o lfs.Object) {
	if directoryOf(o) < s.measured.Load() {
		s.metrics.poolBytes.Add(float64(n * o.Size))
	}
}
