package store

import (
	"fmt"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// The log shows which updates of a push were made.
func TestPushResult(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newNode(t, b), newNode(t, b)
	create(t, a, "x")
	id, after, err := a.Position(t.Context(), repoPath("x.git"))
	if err != nil || after != 1 {
		t.Fatalf("Position = %q, %d, %v, want record 1", id, after, err)
	}
	setRef(t, c, "x", "refs/heads/other", id1)
	r := a.acquire(id)
	defer a.release(r)
	_, err = r.change(t.Context(), func(head *state) (*replog.Record, error) {
		next := head.record.Next(replog.KindPush, "n", head.record.At)
		next.Pushes = []replog.Push{{ID: "whole", Refs: 2}, {ID: "part", Refs: 1}}
		next.Refs.Tail = append(next.Refs.Tail, replog.TailEntry{Number: next.Number, Changes: []replog.RefChange{
			{Name: "refs/heads/main", New: id1}, {Name: "refs/heads/old", Old: id1}}})
		return next, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	setRef(t, c, "x", "refs/heads/main", id2)
	updates := func(names ...git.RefName) (list []receivepack.Update) {
		for _, name := range names {
			list = append(list, receivepack.Update{Ref: name, New: id1})
		}
		return list
	}
	deleted := receivepack.Update{Ref: "refs/heads/old", Old: id1}
	for _, test := range []struct {
		push    string
		updates []receivepack.Update
		want    string
	}{
		{"whole", updates("refs/heads/main", "refs/heads/old"), "[refs/heads/main refs/heads/old] 3"},
		{"part", updates("refs/heads/main", "refs/heads/refused"), "[refs/heads/main] 3"},
		{"part", append(updates("refs/heads/refused"), deleted), "[refs/heads/old] 3"},
		{"none", updates("refs/heads/main"), "[] 4"},
	} {
		made, number, err := c.PushResult(t.Context(), id, after, test.push, test.updates)
		names := []git.RefName{}
		for _, u := range made {
			names = append(names, u.Ref)
		}
		if got := fmt.Sprint(names, number); err != nil || got != test.want {
			t.Errorf("PushResult of %s = %s, %v, want %s", test.push, got, err, test.want)
		}
	}
	if _, number, err := c.PushResult(t.Context(), id, 4, "none", nil); err != nil || number != 4 {
		t.Errorf("PushResult after the last record = %d, %v, want this record", number, err)
	}
}
