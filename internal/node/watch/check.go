package watch

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// check checks a repository after all checks in progress. This node knows of the change that it is for.
func (h *Hub) check(ctx context.Context, w *watchedRepo) {
	if w.turn.Acquire(ctx, 1) == nil {
		h.checkInTurn(ctx, w, true)
	}
}

// checkIfIdle checks a repository in a round, unless it is being checked.
func (h *Hub) checkIfIdle(w *watchedRepo) {
	if w.turn.TryAcquire(1) {
		h.checkInTurn(h.ctx, w, false)
	}
}

// checkInTurn checks a repository and gives up the turn, which the caller took.
func (h *Hub) checkInTurn(ctx context.Context, w *watchedRepo, isKnown bool) {
	defer w.turn.Release(1)
	h.mu.Lock()
	w.triggered = false
	h.mu.Unlock()
	if !w.ended {
		h.update(ctx, w, isKnown)
	}
}

// join checks a repository for a new subscription and sends its state. If the repository cannot be read, a later check
// does that.
func (h *Hub) join(ctx context.Context, w *watchedRepo, s *subscription) {
	if w.turn.Acquire(ctx, 1) != nil {
		return
	}
	defer w.turn.Release(1)
	h.update(ctx, w, false)
	if w.isKnown {
		s.push(w.firstEvent(s.known[w.path]))
	}
	h.mu.Lock()
	w.subscribers = append(w.subscribers, s)
	h.mu.Unlock()
}

// update reads the state of a repository and publishes what has changed. The caller has the turn.
func (h *Hub) update(ctx context.Context, w *watchedRepo, isKnown bool) {
	h.metrics.checked.Inc()
	state, err := h.options.State(ctx, w.path, isKnown)
	switch kind := fault.KindOf(err); {
	case err != nil && kind != fault.NotFound && kind != fault.Denied:
		if ctx.Err() == nil {
			h.options.Log.Debug("cannot check a watched repository", "repository", w.path.String(), "error", err)
		}
		return
	case err != nil:
		w.setState(State{})
		if !w.isKnown || !w.current.Gone {
			h.replace(w, Event{Path: w.path, Version: git.Version{Epoch: h.options.Epoch()}, Gone: true})
		}
		return
	}
	before, version, hasPurged := w.state.Refs, state.Version, w.state.Purges != state.Purges
	w.setState(state)
	if w.isKnown && version == w.current.Version && !hasPurged {
		return
	}
	e := Event{Path: w.path, Version: version}
	if w.isKnown && !hasPurged && !w.current.Gone && version.Incarnation == w.current.Version.Incarnation {
		if e.Changes, err = changes(before, state.Refs); err == nil {
			w.addHistory(e)
			if len(e.Changes) > 0 {
				h.publish(w, e)
			}
			return
		}
	}
	h.replace(w, Event{Path: w.path, Version: version, Reset: true})
}

// setState sets the state of a repository, which it releases when there is a next one. The caller has the turn.
func (w *watchedRepo) setState(s State) {
	if w.state.Release != nil {
		w.state.Release()
	}
	w.state = s
}

// errManyChanges ends a comparison with too many changes for one event.
var errManyChanges = errors.New("too many changes")

// changes returns the differences between two snapshots. Their names are copied, because they are kept for long.
func changes(old, new *refs.Snapshot) (all []refs.Change, err error) {
	err = refs.Diff(old, new, func(c refs.Change) error {
		if len(all) == maxChanges {
			return errManyChanges
		}
		name := git.RefName([]byte(c.New.Name))
		c.Old.Name, c.New.Name = name, name
		all = append(all, c)
		return nil
	})
	return all, err
}

// replace sets a state that is unrelated to the one before.
func (h *Hub) replace(w *watchedRepo, e Event) {
	first := !w.isKnown
	w.isKnown, w.history, w.kept, w.floor = true, nil, 0, e.Version.Generation
	w.current = Event{Path: e.Path, Version: e.Version, Gone: e.Gone}
	if !first {
		h.publish(w, e)
		return
	}
	for _, s := range h.subscribersOf(w) { // they joined when the repository could not be read
		s.push(w.firstEvent(s.known[w.path]))
	}
}

// addHistory adds an event to the history. Events without changes count, because a watcher may have their version.
func (w *watchedRepo) addHistory(e Event) {
	w.current.Version = e.Version
	w.history = append(w.history, e)
	w.kept += len(e.Changes)
	for len(w.history) > maxHistory || w.kept > maxChanges {
		w.kept -= len(w.history[0].Changes)
		w.floor = w.history[0].Version.Generation
		w.history = slices.Delete(w.history, 0, 1)
	}
}

// firstEvent returns the first event for a subscription that knows a version; nil: none.
func (w *watchedRepo) firstEvent(known *git.Version) Event {
	if w.current.Gone {
		return w.current
	}
	e := w.current
	e.Reset = true
	if known == nil || known.Epoch != e.Version.Epoch || known.Incarnation != e.Version.Incarnation {
		return e
	}
	if known.Generation == e.Version.Generation {
		e.Reset = false
		return e
	}
	from := slices.IndexFunc(w.history, func(e Event) bool { return e.Version.Generation == known.Generation })
	if from < 0 && known.Generation != w.floor {
		return e
	}
	e.Reset, e.Changes = false, merge(w.history[from+1:])
	return e
}

// merge combines the changes of consecutive events.
func merge(history []Event) []refs.Change {
	at := make(map[git.RefName]int)
	var all []refs.Change
	for _, e := range history {
		for _, c := range e.Changes {
			if i, ok := at[c.New.Name]; ok {
				all[i].New = c.New
				continue
			}
			at[c.New.Name] = len(all)
			all = append(all, c)
		}
	}
	all = slices.DeleteFunc(all, func(c refs.Change) bool { return c.Old.ID == c.New.ID && c.Old.Target == c.New.Target })
	slices.SortFunc(all, func(a, b refs.Change) int { return cmp.Compare(a.New.Name, b.New.Name) })
	return all
}

// subscribersOf returns the subscriptions of a repository that have its first state.
func (h *Hub) subscribersOf(w *watchedRepo) []*subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(w.subscribers)
}

// publish sends an event to the subscriptions of a repository.
func (h *Hub) publish(w *watchedRepo, e Event) {
	for _, s := range h.subscribersOf(w) {
		s.push(e)
	}
}
