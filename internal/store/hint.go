package store

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Hint is called when another node may have written the record with this number of a repository. It returns at once. In
// the background the repository is checked, and its packs are downloaded. If too many hints are being followed, nothing
// happens: hints only save time. Hint reports whether all packs of an earlier record are on this node.
func (s *Store) Hint(path git.RepoPath, number uint64) (isHeld bool) {
	path = canonical(path)
	select {
	case s.hints <- struct{}{}:
		s.running.Go(func() {
			defer func() { <-s.hints }()
			s.followHint(s.ctx, path, number)
		})
	default:
	}
	r := s.peek(path)
	return r != nil && r.local.Complete(r.known().record)
}

func (s *Store) followHint(ctx context.Context, path git.RepoPath, number uint64) {
	r, err := s.find(ctx, path)
	if err != nil {
		return // the next request for the path has the error
	}
	defer s.release(r)
	state := r.known()
	if state.record.Number < number {
		if state, err = r.check().wait(ctx); err != nil {
			return
		}
	}
	if state.has(path) {
		r.local.Prefetch(state.record)
	}
}

// peek returns the repository in memory whose latest known state has the path, or nil.
func (s *Store) peek(path git.RepoPath) *repository {
	ref, ok := s.names.Peek(path)
	if !ok {
		return nil
	}
	s.known.mu.Lock()
	r := s.known.byID[ref.id]
	s.known.mu.Unlock()
	if r == nil || !r.known().has(path) {
		return nil
	}
	return r
}
