package refs

import (
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestHidden checks that hidden refs are absent in every query, loose or packed. Symbolic refs to them stay.
func TestHidden(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	id := g.Commit("x")
	for _, name := range []string{"refs/heads/main", "refs/heads/open", "refs/secret/one", "refs/secret/two",
		"refs/tags/secret"} {
		g.Git("update-ref", name, id.String())
	}
	g.Git("symbolic-ref", "refs/link", "refs/secret/one")
	g.Git("symbolic-ref", "HEAD", "refs/heads/main")
	for _, packed := range []bool{false, true} {
		if packed {
			g.Git("pack-refs", "--all")
		}
		hidden := func(name git.RefName) bool {
			return strings.Contains(string(name), "secret") || name == "HEAD" || name == "refs/heads/main"
		}
		s, err := Open(g.Dir, g.Dir, Options{Hidden: hidden}).Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var seen []string
		for _, prefix := range []string{"", "refs/secret/", "refs/heads/main"} {
			if err := s.Each(prefix, func(ref Ref) error { seen = append(seen, string(ref.Name)); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if want := []string{"refs/heads/open", "refs/link"}; !slices.Equal(seen, want) {
			t.Errorf("packed %t: %q, want %q", packed, seen, want)
		}
		seen = nil
		if err := s.EachHidden(func(ref Ref) error { seen = append(seen, string(ref.Name)); return nil }); err != nil {
			t.Fatal(err)
		}
		if want := []string{"HEAD", "refs/heads/main", "refs/secret/one", "refs/secret/two",
			"refs/tags/secret"}; !slices.Equal(seen, want) {
			t.Errorf("packed %t: hidden are %q, want %q", packed, seen, want)
		}
		if head := s.Head(); head != (Head{}) {
			t.Errorf("packed %t: HEAD is %v", packed, head)
		}
		names := []git.RefName{"HEAD", "refs/heads/main", "refs/heads/open", "refs/secret/two"}
		err = s.LookupAll(names, func(i int, ref Ref, ok bool) error {
			one, okOne, err := s.Lookup(names[i])
			if ok != (i == 2) || okOne != ok || one != ref || !ok && ref != (Ref{}) {
				t.Errorf("packed %t: %s: %v %t, alone %v %t", packed, names[i], ref, ok, one, okOne)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for short, n := range map[string]int{"main": 0, "secret": 0, "open": 1, "HEAD": 0, "secret/one": 0} {
			if found, err := s.Expand(short); len(found) != n || err != nil {
				t.Errorf("packed %t: %s means %v, %v", packed, short, found, err)
			}
		}
	}
}
