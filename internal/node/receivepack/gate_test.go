package receivepack

import (
	"context"
	"os"
	"strings"
	"testing"
)

// An object on which a push builds is removed after Git has looked for it.
func TestPushNeedsRemovedObjects(t *testing.T) {
	t.Parallel()
	if isInStore(t) {
		t.Skip("a store removes no objects")
	}
	gates := new(Gates)
	var collection *Collection
	remove := func() error { return nil }
	w := newWorld(t, Options{Decider: decider(func(ctx context.Context, _ *Push) error {
		if collection == nil {
			return nil
		}
		return collection.Remove(ctx, func() error { return remove() })
	})})
	w.gates = gates
	c := w.clone()
	w.mustPush(c, "main")
	w.Git("update-ref", "refs/heads/gone", w.Commit("gone", w.ID("main")).String())
	c.Git("fetch", "-q", w.Dir, "gone")
	base := w.ID("gone")
	c.Git("update-ref", "refs/heads/next", c.Commit("next", base).String())
	collection = gates.Collect(w.open().Common)
	defer collection.End()
	w.mustPush(c, "next:kept") // looks again, and finds all
	w.Git("update-ref", "-d", "refs/heads/kept")
	remove = func() error {
		w.Git("update-ref", "-d", "refs/heads/gone")
		id := base.String()
		return os.Remove(w.Dir + "/objects/" + id[:2] + "/" + id[2:])
	}
	if out, err := w.push(c, "next"); err == nil || !strings.Contains(out, "push again") {
		t.Errorf("push without the object: %v\n%s", err, out)
	}
	remove = func() error { return nil }
	w.mustPush(c, "next")
	w.Git("fsck", "--strict")
}

// The object that a ref shall have disappears after Git has found it, as when a collection replaces its pack.
func TestPushOfCollectedObject(t *testing.T) {
	t.Parallel()
	if isInStore(t) {
		t.Skip("a store removes no objects")
	}
	var w *world
	var id string
	w = newWorld(t, Options{Decider: decider(func(context.Context, *Push) error {
		return os.Remove(w.Dir + "/objects/" + id[:2] + "/" + id[2:])
	})})
	gone := w.Commit("gone")
	id = gone.String()
	report, err := w.post(command2(t, gone, "refs/heads/new", "report-status") + packWith(0))
	if err != nil || !strings.Contains(report, "ng refs/heads/new bad pack: ") || !strings.Contains(report, "push again") {
		t.Errorf("%q, %v", report, err)
	}
}
