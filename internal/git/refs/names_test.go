package refs

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestNamesIsEach compares names with those that a walk over all refs finds, in repositories with packed, loose,
// symbolic, hidden and broken refs.
func TestNamesIsEach(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		format := []string{"sha1", "sha256"}[seed%2]
		r := gittest.Random(t, seed, gittest.Shape{Format: format, Commits: 12})
		var ids []git.ObjectID
		for _, line := range strings.Fields(r.Git("rev-list", "--all")) {
			id, err := git.ParseObjectID(line)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		var commands strings.Builder
		for i, dir := range []string{"changes", "heads/b", "heads", "hidden", "pull", "tags/t", "tags", "heads-not"} {
			for j := range 20 {
				fmt.Fprintf(&commands, "create refs/%s/x%d %s\n", dir, j, ids[(i*7+j*3+int(seed))%(len(ids)-1)])
			}
		}
		r.GitIn(commands.String(), "update-ref", "--stdin")
		r.Git("tag", "-a", "-m", "annotated", "annotated", ids[0].String())
		tag := r.ID("annotated")
		ids = append(ids, tag)
		for range 2 {
			compareNames(t, r, ids)
			r.Git("pack-refs", "--all")
			compareNames(t, r, ids)
			r.Git("update-ref", "refs/heads/x1", ids[2].String()) // loose ones over packed ones
			r.Git("update-ref", "refs/heads/new", ids[3].String())
			r.Git("update-ref", "refs/zz", tag.String()) // behind a packed tag
			r.Git("symbolic-ref", "refs/heads/a", "refs/heads/x2")
			if err := os.WriteFile(filepath.Join(r.Dir, "refs/heads/x3"), []byte("junk\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			compareNames(t, r, ids)
			if err := os.Remove(filepath.Join(r.Dir, "refs/heads/x3")); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func compareNames(t *testing.T, r *gittest.Repo, ids []git.ObjectID) {
	t.Helper()
	hidden := func(name git.RefName) bool { return strings.HasPrefix(string(name), "refs/hidden/") }
	for _, hides := range []func(git.RefName) bool{nil, hidden} {
		snapshot, err := Open(r.Dir, r.Dir, Options{Format: ids[0].Format(), Hidden: hides}).Snapshot(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		want := make([]git.RefName, len(ids))
		err = snapshot.Each("", func(ref Ref) error {
			i := slices.Index(ids, ref.ID)
			if i >= 0 && (want[i] == "" || strings.HasPrefix(string(ref.Name), "refs/heads/") &&
				!strings.HasPrefix(string(want[i]), "refs/heads/")) {
				want[i] = ref.Name
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := snapshot.Names(ids)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("Names(%v) = %q, %v, want %q", ids, got, err, want)
		}
		for i := range ids {
			if got, err := snapshot.Names(ids[i : i+1]); err != nil || got[0] != want[i] {
				t.Errorf("Names(%v) = %q, %v, want %q", ids[i], got, err, want[i])
			}
		}
	}
}

// BenchmarkNames looks for a value that no ref has among a million refs, and for one of a branch.
func BenchmarkNames(b *testing.B) {
	r := gittest.Init(b)
	file, err := os.Create(filepath.Join(r.Dir, "packed-refs"))
	if err != nil {
		b.Fatal(err)
	}
	w := bufio.NewWriter(file)
	fmt.Fprintln(w, "# pack-refs with: peeled fully-peeled sorted ")
	for i := range 1_000_000 {
		name := fmt.Sprintf("pull/%07d/head", i)
		if i < 1000 {
			name = fmt.Sprintf("heads/topic-%04d", i)
		}
		fmt.Fprintf(w, "%016x%024x refs/%s\n", uint64(i+1)*0x9e3779b97f4a7c15, i, name)
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	file.Close()
	snapshot, err := Open(r.Dir, r.Dir, Options{}).Snapshot(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	branch, ok, err := snapshot.Lookup("refs/heads/topic-0700")
	if err != nil || !ok {
		b.Fatal(ok, err)
	}
	for name, id := range map[string]git.ObjectID{"branch": branch.ID, "absent": git.RawObjectID(make([]byte, 20))} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := snapshot.Names([]git.ObjectID{id}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
