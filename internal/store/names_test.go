package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

func TestUnknownPathCostsTwoRequests(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	s := newNode(t, b)
	before := b.Requests()
	if got := idOf(t, s, "team/none"); got != "" {
		t.Errorf("ID = %q, want none", got)
	}
	after := b.Requests()
	if lists, gets := after["list"]-before["list"], after["get"]-before["get"]; lists != 1 || gets > 1 {
		t.Errorf("%d listings and %d GETs, want at most 1 of each", lists, gets)
	}
}

func TestPathsThatCollideInTheStore(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	s := newNode(t, b)
	create(t, s, "app")
	for _, key := range b.Keys() { // as on a disk that ignores case and escapes
		if rest, ok := strings.CutPrefix(key, "names/app!"); ok {
			body, _, err := b.Get(t.Context(), key, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			b.Set("names/~41pp!"+rest, body)
		}
	}
	_, err := s.Acquire(t.Context(), repoPath("App"))
	if !fault.Is(err, fault.Corrupt) || !mentions(err, "names/~41pp!/", `"app"`, `"App"`, "case-sensitive") {
		t.Errorf("Acquire = %v, want corrupt with the key and the remedy", err)
	}
}

func TestRacingCreates(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	nodes := []*Store{newNode(t, b), newNode(t, b), newNode(t, b)}
	errs := make([]error, 12)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			errs[i] = nodes[i%len(nodes)].Create(t.Context(), repoPath("x"), git.SHA1, "refs/heads/main", "", nil)
		})
	}
	all.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !fault.Is(err, fault.Exists) {
			t.Errorf("Create = %v, want exists", err)
		}
	}
	if won != 1 {
		t.Errorf("%d creates of one path succeeded, want 1", won)
	}
	first := idOf(t, nodes[0], "x")
	for _, s := range nodes {
		if got := idOf(t, s, "x"); got != first || got == "" {
			t.Errorf("ID = %q, want %q", got, first)
		}
	}
}

// A creation whose answer was lost can be repeated with the same ID through any node.
func TestCreateAgain(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newNode(t, b), newNode(t, b)
	errs := make([]error, 6)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			errs[i] = []*Store{a, c}[i%2].Create(t.Context(), repoPath("x"), git.SHA1, "refs/heads/main", "a-1", nil)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("concurrent Creates with one ID: %v", err)
	}
	id := idOf(t, a, "x")
	setRef(t, a, "x", "refs/heads/main", id1)
	if err := c.Create(t.Context(), repoPath("x.git"), git.SHA1, "refs/heads/main", "a-1", nil); err != nil ||
		idOf(t, c, "x") != id {
		t.Errorf("Create after a push = %v, want the same repository", err)
	}
	for _, other := range []string{"", "a-2"} {
		err := c.Create(t.Context(), repoPath("x"), git.SHA1, "refs/heads/main", other, nil)
		if !fault.Is(err, fault.Exists) {
			t.Errorf("Create with the ID %q = %v, want exists", other, err)
		}
	}
	if err := a.Delete(t.Context(), repoPath("x"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err := c.Create(t.Context(), repoPath("x"), git.SHA1, "refs/heads/main", "a-1", nil)
	if got := idOf(t, a, "x"); err != nil || got == id || got == "" {
		t.Errorf("Create after a deletion = %v, want another repository", err)
	}
}

func TestCreateWithoutAFirstRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		s := newNode(t, b)
		b.SetHook(func(operation, key string) error {
			if operation == "create" {
				return fault.New(fault.Unavailable, "503")
			}
			return nil
		})
		err := s.Create(t.Context(), repoPath("x"), git.SHA1, "refs/heads/main", "", nil)
		if !fault.Is(err, fault.Unavailable) || errors.Is(err, receivepack.ErrUnknown) {
			t.Errorf("Create = %v, want unavailable and a known result", err)
		}
		b.SetHook(nil)
		create(t, s, "x")
	})
}

func TestList(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a := newNode(t, b)
	var want []string
	for _, path := range []string{"a", "a/b", "a-b", "A", "b/c d/é", "z", "team/one", "team/two", "teammate"} {
		create(t, a, path)
		want = append(want, path)
	}
	create(t, a, "gone")
	if err := a.Delete(t.Context(), repoPath("gone"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 5 { // a name with several records
		if err := a.Rename(t.Context(), repoPath([]string{"z", "y"}[i%2]), repoPath([]string{"y", "z"}[i%2])); err != nil {
			t.Fatal(err)
		}
	}
	want[slices.Index(want, "z")] = "y"
	slices.Sort(want)
	for _, s := range []*Store{a, newNode(t, b)} {
		for limit := 1; limit <= 10; limit++ {
			var got []string
			for after := ""; ; {
				page, err := s.List(t.Context(), places.ListQuery{After: after, Limit: limit})
				if err != nil || len(page.Paths) > limit {
					t.Fatalf("List after %q = %v, %v, want at most %d paths", after, page, err, limit)
				}
				got = append(got, page.Paths...)
				if after = page.Next; after == "" {
					break
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("pages of %d: %q, want %q", limit, got, want)
			}
		}
		if page, err := s.List(t.Context(), places.ListQuery{Prefix: "team/t", Limit: 10}); err != nil ||
			fmt.Sprint(page.Paths) != "[team/two]" {
			t.Errorf("List of team/t = %v, %v, want [team/two]", page, err)
		}
	}
}

func TestLookupsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		create(t, newNode(t, b), "x")
		s := newNode(t, b)
		before := b.Requests()["list"]
		release := make(chan struct{})
		b.SetHook(func(operation, key string) error {
			if operation == "list" {
				<-release
			}
			return nil
		})
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				p, err := s.Acquire(t.Context(), repoPath("x"))
				if err != nil {
					t.Error(err)
					return
				}
				p.Release()
			})
		}
		synctest.Wait() // one is in the first listing, the others wait
		close(release)
		all.Wait()
		if n := b.Requests()["list"] - before; n > 4 { // of the name and of the repository, at most twice
			t.Errorf("%d listings for 100 requests, want at most 4", n)
		}
		if n := len(s.lookups.byPath); n != 0 {
			t.Errorf("%d look-ups are left behind", n)
		}
	})
}

// Versions of a path are the same on every node, and a repository that gets the path later has newer ones.
func TestEpochsOfAPath(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newNode(t, b), newNode(t, b)
	epochs := func() uint64 {
		t.Helper()
		first, second := acquire(t, a, "x").Version(0, 0).Epoch, acquire(t, c, "x").Version(0, 0).Epoch
		if first != second {
			t.Errorf("epochs %d and %d on two nodes, want the same", first, second)
		}
		return first
	}
	create(t, a, "x")
	last := epochs()
	for name, change := range map[string]func(){
		"created again": func() {
			if err := a.Delete(t.Context(), repoPath("x"), places.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			create(t, c, "x")
		},
		"renamed and renamed back": func() {
			if err := a.Rename(t.Context(), repoPath("x"), repoPath("y")); err != nil {
				t.Fatal(err)
			}
			if err := a.Rename(t.Context(), repoPath("y"), repoPath("x")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		before := acquire(t, c, "x")
		change()
		if _, err := before.Layers(t.Context()); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: Layers of the earlier place = %v, want not found", name, err)
		}
		now := epochs()
		if now <= last {
			t.Errorf("%s: epoch %d, want more than %d", name, now, last)
		}
		last = now
	}
}
