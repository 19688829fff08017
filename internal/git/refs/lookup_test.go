package refs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestLookupAllIsLookup asks for lists of names, in order and not, there and not, and compares with single look-ups.
func TestLookupAllIsLookup(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 1, gittest.Shape{})
	head := r.ID("HEAD")
	var commands strings.Builder
	var names []git.RefName
	for i := range 3000 {
		name := fmt.Sprintf("refs/heads/n/%04d%s", i, strings.Repeat("x", i%97))
		names = append(names, git.RefName(name), git.RefName(name+"-absent"))
		fmt.Fprintf(&commands, "create %s %s\n", name, head)
	}
	r.GitIn(commands.String(), "update-ref", "--stdin")
	r.Git("pack-refs", "--all")
	r.Git("update-ref", string(names[40]), "HEAD~1") // a loose one over a packed one
	names = append(names, git.HEAD, "refs/heads/main", "refs/zzz", "refs/aaa", "refs/tags/v1")
	snapshot, err := Open(r.Dir, r.Dir, Options{}).Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	compare := func(list []git.RefName) {
		t.Helper()
		calls := 0
		err := snapshot.LookupAll(list, func(i int, ref Ref, ok bool) error {
			calls++
			want, wantOK, err := snapshot.Lookup(list[i])
			if err != nil || ok != wantOK || ref != want {
				t.Errorf("%s: got %v %v, want %v %v (%v)", list[i], ref, ok, want, wantOK, err)
			}
			return nil
		})
		if err != nil || calls != len(list) {
			t.Errorf("%d calls for %d names: %v", calls, len(list), err)
		}
	}
	slices.Sort(names)
	compare(names)
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		list := slices.Clone(names[:rnd.IntN(len(names))])
		compare(list)
		slices.Sort(list)
		compare(list)
	}
}
