package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// checkList compares the list of all repositories of a node with want.
func checkList(t *testing.T, s *Store, want ...string) {
	t.Helper()
	page, err := s.List(t.Context(), places.ListQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(page.Paths, want) {
		t.Errorf("List = %q, want %q", page.Paths, want)
	}
}

func TestListAfterChangesOfAnotherNode(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newNode(t, b), newNode(t, b)
	for _, path := range []string{"a", "b", "c"} {
		create(t, c, path)
	}
	checkList(t, c, "a", "b", "c")
	if err := a.Delete(t.Context(), repoPath("b"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	checkList(t, c, "a", "c")
	if err := a.Rename(t.Context(), repoPath("a"), repoPath("z")); err != nil {
		t.Fatal(err)
	}
	checkList(t, c, "c", "z")
	checkList(t, c, "c", "z")
	create(t, a, "b")
	checkList(t, c, "b", "c", "z")
	if err := a.Delete(t.Context(), repoPath("z"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	checkList(t, c, "b", "c")
}

func TestListDuringARename(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"a", "z"} {
		b := newBucket(t)
		a := newNode(t, b)
		others := []*Store{newNode(t, b), newNode(t, b)}
		create(t, a, "m")
		checkList(t, others[0], "m")
		a.failPoint = func(step string) error {
			if step == "rename: name" {
				for _, s := range others {
					checkList(t, s, to)
					checkList(t, s, to)
				}
			}
			return nil
		}
		if err := a.Rename(t.Context(), repoPath("m"), repoPath(to)); err != nil {
			t.Fatal(err)
		}
	}
}

// A list that was read before costs a few requests, whatever the number of names and of removed names.
func TestListReadsOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		a, c := newNode(t, b), newNode(t, b)
		var want []string
		for i := range 50 {
			path := fmt.Sprintf("live/%02d", i)
			create(t, a, path)
			want = append(want, path)
			create(t, a, fmt.Sprintf("gone/%02d", i))
			if err := a.Delete(t.Context(), repoPath(fmt.Sprintf("gone/%02d", i)), places.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(3 * openIdle)
		checkList(t, a, want...)
		checkList(t, c, want...)
		create(t, a, "live/new")
		for _, s := range []*Store{a, c, a} {
			before := b.Requests()
			checkList(t, s, append(want, "live/new")...)
			after := b.Requests()
			if gets, lists := after["get"]-before["get"], after["list"]-before["list"]; gets > 24 || lists > 6 {
				t.Errorf("a list takes %d GET and %d LIST", gets, lists)
			}
		}
	})
}

// If the store fails between the two records of a deletion, lists of all nodes are right soon after it works again.
func TestListAfterADeletionThatWasCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		a, c := newNode(t, b), newNode(t, b)
		create(t, a, "x")
		checkList(t, c, "x")
		b.SetHook(func(operation, key string) error {
			if operation == "create" && strings.HasPrefix(key, "names/") {
				return fault.New(fault.Unavailable, "503")
			}
			return nil
		})
		if err := a.Delete(t.Context(), repoPath("x"), places.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		b.SetHook(nil)
		time.Sleep(2 * clearPause)
		checkList(t, c)
		if err := c.Create(t.Context(), repoPath("x"), git.SHA1, "refs/heads/main", "", nil); err != nil {
			t.Error(err)
		}
	})
}

// Marks of repositories change with each event, on every node, and when all names are read again.
func TestMarks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		a, c := newNode(t, b), newNode(t, b)
		create(t, a, "x")
		create(t, a, "y")
		last := map[string]string{}
		marks := func() (changed []string) {
			t.Helper()
			paths := []string{"x", "y", "none"}
			list, err := c.Marks(t.Context(), paths, false)
			if err != nil || list[2] != "" {
				t.Fatal(list, err)
			}
			for i, path := range paths {
				if list[i] != last[path] {
					changed = append(changed, path)
				}
				last[path] = list[i]
			}
			return changed
		}
		check := func(what string, want ...string) {
			t.Helper()
			if got := marks(); !slices.Equal(got, want) {
				t.Errorf("%s: the marks of %q have changed, want %q", what, got, want)
			}
		}
		check("first", "x", "y")
		check("nothing")
		place, err := a.Acquire(t.Context(), repoPath("x"))
		if err != nil {
			t.Fatal(err)
		}
		defer place.Release()
		err = place.Configure(t.Context(), func(s places.Settings) error {
			s[places.LabelKey] = []string{"a=b"}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		check("settings", "x")
		page, err := c.List(t.Context(), places.ListQuery{Limit: 10, Labels: []string{"a"}})
		if err != nil || !slices.Equal(page.Paths, []string{"x"}) {
			t.Errorf("with the label: %q, %v", page.Paths, err)
		}
		time.Sleep(2 * indexAge)
		check("all names are read again", "x", "y")
		if err := a.Delete(t.Context(), repoPath("y"), places.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		check("deleted", "y")
	})
}
