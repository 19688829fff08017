package storage

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// take waits for a repository's turn.
func (w *watched) take(ctx context.Context) bool {
	select {
	case w.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// look looks at a repository as soon as it is its turn.
func (h *hub) look(ctx context.Context, w *watched) {
	if w.take(ctx) {
		h.took(ctx, w)
	}
}

// pass looks at a repository in a round, unless somebody looks already.
func (h *hub) pass(w *watched) {
	select {
	case w.turn <- struct{}{}:
		h.took(h.ctx, w)
	default:
	}
}

// took tells a repository's subscriptions what is new, and gives the turn back, which the caller took.
func (h *hub) took(ctx context.Context, w *watched) {
	defer func() { <-w.turn }()
	h.mu.Lock()
	w.kicked = false
	h.mu.Unlock()
	if !w.over {
		h.update(ctx, w)
	}
}

// join looks at a repository for a new subscription and tells it where the repository is now. If that cannot be found out, a later look
// will tell.
func (h *hub) join(ctx context.Context, w *watched, s *subscription) {
	if !w.take(ctx) {
		return
	}
	defer func() { <-w.turn }()
	h.update(ctx, w)
	if w.known {
		s.push(w.begin(s.known[w.path]), "first")
	}
	h.mu.Lock()
	w.subs = append(w.subs, s)
	h.mu.Unlock()
}

// update brings what is known of a repository up to date. The caller has the turn.
func (h *hub) update(ctx context.Context, w *watched) {
	h.metrics.looks.Inc()
	handle, snap, version, err := h.node.snapshot(ctx, w.path)
	switch kind := fault.KindOf(err); {
	case err != nil && kind != fault.NotFound && kind != fault.Denied:
		if ctx.Err() == nil {
			h.node.log.Debug("cannot look at a watched repository", "repository", w.path.String(), "error", err)
		}
		return
	case err != nil:
		h.pin(w, nil)
		if !w.known || !w.now.Gone {
			h.replace(w, nil, Event{Path: w.path, Version: git.Version{Epoch: h.node.epoch}, Gone: true})
		}
		return
	}
	h.pin(w, handle)
	if w.known && version == w.now.Version {
		return
	}
	e := Event{Path: w.path, Version: version}
	if !w.known || w.now.Gone || version.Incarnation != w.now.Version.Incarnation {
		e.Reset = true
		h.replace(w, snap, e)
		return
	}
	if e.Changes, err = changes(w.snap, snap); err != nil {
		e.Reset, e.Changes = true, nil
		h.replace(w, snap, e)
		return
	}
	w.remember(snap, e)
	if len(e.Changes) > 0 {
		h.publish(w, e, "changes")
	}
}

// errManyChanges ends a comparison that would make too great an event.
var errManyChanges = errors.New("too many changes")

// changes are all that differs between two snapshots; their names are kept for long, and share no memory with others.
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

// replace begins anew with a state that has nothing to do with the one before.
func (h *hub) replace(w *watched, snap *refs.Snapshot, e Event) {
	first := !w.known
	w.known, w.snap, w.history, w.kept, w.floor = true, snap, nil, 0, e.Version.Generation
	w.now = Event{Path: e.Path, Version: e.Version, Gone: e.Gone}
	if !first {
		kind := "reset"
		if e.Gone {
			kind = "gone"
		}
		h.publish(w, e, kind)
		return
	}
	for _, s := range h.subscriptions(w) { // which joined when it could not be read
		s.push(w.begin(s.known[w.path]), "first")
	}
}

// remember adds an event to the history; one without changes too, as its version may be what somebody has.
func (w *watched) remember(snap *refs.Snapshot, e Event) {
	w.snap, w.now.Version = snap, e.Version
	w.history = append(w.history, e)
	w.kept += len(e.Changes)
	for len(w.history) > maxHistory || w.kept > maxChanges {
		w.kept -= len(w.history[0].Changes)
		w.floor = w.history[0].Version.Generation
		w.history = slices.Delete(w.history, 0, 1)
	}
}

// begin is the first event for a subscription that knows a version, or none.
func (w *watched) begin(known *git.Version) Event {
	if w.now.Gone {
		return w.now
	}
	e := w.now
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

// merge makes one event's changes of several events' in a row.
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

func (h *hub) subscriptions(w *watched) []*subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(w.subs)
}

func (h *hub) publish(w *watched, e Event, kind string) {
	for _, s := range h.subscriptions(w) {
		s.push(e, kind)
	}
}

// pin takes a handle over from the caller, which keeps the repository open until it is replaced by another; nil: by none.
func (h *hub) pin(w *watched, next *handle) {
	n, before := h.node, w.handle
	if next == before {
		if next != nil {
			n.release(next)
		}
		return
	}
	n.mu.Lock()
	if next != nil {
		if next.pins++; next.pins == 1 && n.handles[w.path] == next {
			n.pinned++
		}
	}
	if before != nil {
		if before.pins--; before.pins == 0 && n.handles[w.path] == before {
			n.pinned--
		}
	}
	n.mu.Unlock()
	w.handle = next
	if before != nil {
		n.release(before)
	}
}
