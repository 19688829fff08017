package watch

import (
	"context"
	"sync"

	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	// maxQueued is the maximum number of queued events of one subscription, besides one for each of its repositories, and
	// maxQueuedChanges the maximum number of changes in them.
	maxQueued        = 1000
	maxQueuedChanges = 2 * maxChanges
)

// subscription is one call of Watch with its queued events.
type subscription struct {
	repos []*watchedRepo
	eager []*watchedRepo                // of them, those for which it is not patient
	known map[git.RepoPath]*git.Version // what the caller knew
	ready chan struct{}                 // has a token while events may be queued

	mu      sync.Mutex
	queue   []Event
	changes int
}

func newSubscription(repos int) *subscription {
	return &subscription{known: make(map[git.RepoPath]*git.Version, repos), ready: make(chan struct{}, 1)}
}

// push queues an event. It never blocks: if the queue is full, it becomes one reset for each repository.
func (s *subscription) push(e Event) {
	s.mu.Lock()
	s.queue = append(s.queue, e)
	s.changes += len(e.Changes)
	if len(s.queue) > maxQueued+2*len(s.known) || s.changes > maxQueuedChanges {
		s.collapse()
	}
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// collapse keeps the last event of each repository, as a reset if it had several.
func (s *subscription) collapse() {
	last := make(map[git.RepoPath]int, len(s.known))
	kept := s.queue[:0]
	for _, e := range s.queue {
		i, ok := last[e.Path]
		if !ok {
			last[e.Path] = len(kept)
			kept = append(kept, e)
			continue
		}
		kept[i] = Event{Path: e.Path, Version: e.Version, Gone: e.Gone, Reset: !e.Gone}
	}
	s.changes = 0
	for i, e := range kept {
		if s.changes+len(e.Changes) > maxChanges {
			kept[i] = Event{Path: e.Path, Version: e.Version, Reset: true}
			continue
		}
		s.changes += len(e.Changes)
	}
	clear(s.queue[len(kept):])
	s.queue = kept
}

// serve sends the queued events until ctx ends or send fails.
func (s *subscription) serve(ctx context.Context, send func(Event) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ready:
		}
		s.mu.Lock()
		events := s.queue
		s.queue, s.changes = nil, 0
		s.mu.Unlock()
		for _, e := range events {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := send(e); err != nil {
				return err
			}
		}
	}
}
