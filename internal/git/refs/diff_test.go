package refs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// state is all that a Snapshot shows, by name.
func state(t *testing.T, s *Snapshot) map[git.RefName]Ref {
	t.Helper()
	all := map[git.RefName]Ref{}
	if h := s.Head(); h != (Head{}) {
		all[git.HEAD] = Ref{ID: h.ID, Target: h.Target}
	}
	if err := s.Each("", func(r Ref) error { all[r.Name] = Ref{ID: r.ID, Target: r.Target}; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestDiff changes a repository at random. The result of Diff, applied to the old state, is the new one, and Diff
// reports no other changes.
func TestDiff(t *testing.T) {
	t.Parallel()
	const seed = 11
	rnd := rand.New(rand.NewPCG(seed, 0))
	repo := gittest.Init(t)
	ids := []string{repo.Commit("a").String(), repo.Commit("b").String(), repo.Commit("c").String()}
	hide := func(name git.RefName) bool { return strings.HasPrefix(string(name), "refs/hidden/") }
	store := Open(repo.Dir, repo.Dir, Options{Hidden: hide})
	was, err := store.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	name := func() string {
		return fmt.Sprintf("refs/%s/%d", []string{"heads", "tags", "hidden"}[rnd.IntN(3)], rnd.IntN(8))
	}
	for step := range 60 {
		for range 1 + rnd.IntN(3) {
			switch rnd.IntN(7) {
			case 0:
				repo.Git("update-ref", "-d", name())
			case 1:
				repo.Git("symbolic-ref", "refs/heads/s", name())
			case 2:
				repo.Git("symbolic-ref", "HEAD", fmt.Sprintf("refs/heads/%d", rnd.IntN(8)))
			case 3:
				repo.Git("pack-refs", "--all")
			default:
				repo.Git("update-ref", name(), ids[rnd.IntN(3)])
			}
		}
		from := store
		if rnd.IntN(4) == 0 { // another store of the same repository
			from = Open(repo.Dir, repo.Dir, Options{Hidden: hide})
		}
		now, err := from.Snapshot(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		got, want := state(t, was), state(t, now)
		last := git.RefName("")
		err = Diff(was, now, func(c Change) error {
			if c.Old.Name != c.New.Name || c.New.Name <= last || c.Old.ID != got[c.Old.Name].ID ||
				c.Old.Target != got[c.Old.Name].Target {
				t.Errorf("seed %d, step %d: %+v after %s, old is %+v", seed, step, c, last, got[c.Old.Name])
			}
			if now := (Ref{ID: c.New.ID, Target: c.New.Target}); now == (Ref{}) {
				delete(got, c.New.Name)
			} else if got[c.New.Name] == now {
				t.Errorf("seed %d, step %d: %s did not change", seed, step, c.New.Name)
			} else {
				got[c.New.Name] = now
			}
			last = c.New.Name
			return nil
		})
		if err != nil || !maps.Equal(got, want) {
			t.Fatalf("seed %d, step %d: %v\n%v\nwant\n%v", seed, step, err, got, want)
		}
		was = now
	}
	if err := Diff(was, was, func(Change) error { return errors.New("none") }); err != nil {
		t.Error("a snapshot differs from itself")
	}
}

// A packed-refs that is cut off must not look as if refs were deleted.
func TestDiffOfDamagedRefs(t *testing.T) {
	t.Parallel()
	repo := gittest.Init(t)
	id := repo.Commit("a").String()
	var update strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&update, "create refs/heads/%04d %s\n", i, id)
	}
	repo.GitIn(update.String(), "update-ref", "--stdin")
	repo.Git("pack-refs", "--all")
	store := Open(repo.Dir, repo.Dir, Options{})
	old, err := store.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(repo.Dir, "packed-refs")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := slices.Concat(text[:len(text)/2], []byte("\njunk\n"))
	if err := errors.Join(os.WriteFile(path+".new", bad, 0o666), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
	now, err := store.Snapshot(context.Background())
	if err != nil {
		return // detected at once, which is also correct
	}
	last := git.RefName("")
	if err := Diff(old, now, func(c Change) error { last = c.New.Name; return nil }); err == nil {
		t.Errorf("no error, and changes up to %q", last)
	}
}

// TestEachAfter continues after every name, and after some names without a ref.
func TestEachAfter(t *testing.T) {
	t.Parallel()
	repo := gittest.Init(t)
	id := repo.Commit("a").String()
	for _, name := range []string{"a", "a-b", "a.b", "a0", "b/c", "b/d", "z"} {
		repo.Git("update-ref", "refs/heads/"+name, id)
		if name == "b/c" {
			repo.Git("pack-refs", "--all")
		}
	}
	repo.Git("update-ref", "refs/tags/t", id)
	snap, err := Open(repo.Dir, repo.Dir, Options{}).Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	names := func(prefix string, after git.RefName) (found []git.RefName) {
		if err := snap.EachAfter(prefix, after, func(r Ref) error { found = append(found, r.Name); return nil }); err != nil {
			t.Error(err)
		}
		return found
	}
	all := names("", "")
	for _, prefix := range []string{"", "refs/heads/", "refs/heads/a", "refs/tags/", "x"} {
		for _, after := range append(all, "refs", "refs/heads", "refs/heads/a\x01", "zzz") {
			var want []git.RefName
			for _, name := range all {
				if strings.HasPrefix(string(name), prefix) && name > after {
					want = append(want, name)
				}
			}
			if got := names(prefix, after); !slices.Equal(got, want) {
				t.Errorf("%q after %q: %q, want %q", prefix, after, got, want)
			}
		}
	}
}
