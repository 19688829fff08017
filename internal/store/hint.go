package store

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Hint says that the repository of a path has a record with this number, as another node has reported. It returns at
// once. In the background the repository is checked, and its packs are downloaded. If too many hints are being
// followed, nothing happens: hints only save time.
func (s *Store) Hint(path git.RepoPath, number uint64) {
	path = canonical(path)
	select {
	case s.hints <- struct{}{}:
	default:
		s.metrics.hints.WithLabelValues("dropped").Inc()
		return
	}
	s.running.Go(func() {
		defer func() { <-s.hints }()
		s.followHint(s.ctx, path, number)
	})
}

func (s *Store) followHint(ctx context.Context, path git.RepoPath, number uint64) {
	r, err := s.find(ctx, path)
	if err != nil {
		return // the next request for the path has the error
	}
	defer s.release(r)
	state := r.known()
	if state.record.Number >= number {
		s.metrics.hints.WithLabelValues("current").Inc()
	} else {
		s.metrics.hints.WithLabelValues("checked").Inc()
		if state, err = r.check().wait(ctx); err != nil {
			return
		}
	}
	if state.has(path) {
		r.local.Prefetch(state.record)
	}
}
