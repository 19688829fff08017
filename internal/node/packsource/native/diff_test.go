package native

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestOrderOfTrees compares trees that git has sorted, with names that are prefixes of each other: the differences are
// exact, also where a file became a directory.
func TestOrderOfTrees(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	c := newChooser(t, r, git.SHA1)
	rnd := rand.New(rand.NewPCG(1, 48))
	var objects []string
	for _, content := range []string{"1", "2"} {
		blob := r.GitIn(content, "hash-object", "-w", "--stdin")
		objects = append(objects, "100644 blob "+blob, "040000 tree "+r.GitIn("100644 blob "+blob+"\tx\n", "mktree"))
	}
	random := func() (data []byte, entries []string) {
		var in strings.Builder
		for _, name := range []string{"a", "a!", "a-", "a.", "a.h", "a0", "aa", "ab", "b", "b.", "b0", "\x01", "\xff"} {
			if n := rnd.IntN(len(objects) + 1); n < len(objects) {
				fmt.Fprintf(&in, "%s\t%s\x00", objects[n], name)
			}
		}
		_, data, err := c.store.Read(git.MustParseObjectID(r.GitIn(in.String(), "mktree", "-z")), 0)
		if err != nil {
			t.Fatal(err)
		}
		for rest := data; len(rest) > 0; {
			n := entryLength(rest, git.SHA1.Size())
			entries, rest = append(entries, string(rest[:n])), rest[n:]
		}
		return data, entries
	}
	for range 200 {
		data, entries := random()
		old, olds := random()
		if !slices.IsSortedFunc(entries, func(a, b string) int {
			x, y := entryName([]byte(a), git.SHA1.Size()), entryName([]byte(b), git.SHA1.Size())
			return compareNames(x, a[0] == '4', y, b[0] == '4')
		}) {
			t.Fatalf("the order of %q is not git's", entries)
		}
		var got, want []string
		err := newEntries(data, old, git.SHA1.Size(), func(_ git.ObjectType, entry, _ []byte) error {
			got = append(got, string(entry))
			return nil
		})
		for _, entry := range entries {
			if !slices.Contains(olds, entry) {
				want = append(want, entry)
			}
		}
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("new entries of %q since %q: %q, want %q, %v", entries, olds, got, want, err)
		}
	}
}

// TestRandomHistories compares selections with git's in small histories with merges, wrong clocks, contents that come
// back, and directories that move.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	repositories, histories := 100, 100
	if testing.Short() {
		repositories, histories = 4, 40
	}
	for seed := range repositories {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(uint64(seed), 48))
			r := gittest.Init(t)
			var in strings.Builder
			for n := range histories {
				randomHistory(&in, rnd, n)
			}
			r.GitIn(in.String(), "-c", "fastimport.unpackLimit=0", "fast-import", "--quiet", "--force")
			c := newChooser(t, r, git.SHA1)
			if seed%2 == 0 {
				r.Git("repack", "-adbq")
				c.bitmaps = newBitmaps()
			}
			if seed%3 == 0 {
				r.Git("commit-graph", "write", "--reachable")
			}
			ours, gits := 0, 0
			for n := range histories {
				w := &world{r: r, rnd: rnd, parents: map[git.ObjectID][]git.ObjectID{}}
				for line := range strings.Lines(r.Git("rev-list", "--parents", fmt.Sprintf("refs/heads/h%d", n))) {
					var ids []git.ObjectID
					for _, id := range strings.Fields(line) {
						ids = append(ids, git.MustParseObjectID(id))
					}
					w.commits, w.parents[ids[0]] = append(w.commits, ids[0]), ids[1:]
				}
				w.tips = w.commits[:1]
				spec := w.spec()
				if rnd.IntN(3) == 0 {
					spec.Haves = nil
					chosen, _ := c.choose(spec)
					checkSame(t, describe(spec), chosen, c.packed(spec))
					continue
				}
				a, b := c.checkNew(spec)
				ours, gits = ours+a, gits+b
			}
			if ours > gits+gits/2 {
				t.Errorf("%d objects are chosen, git sends %d", ours, gits)
			}
		})
	}
}

// randomHistory writes a small history to the input of fast-import.
func randomHistory(in *strings.Builder, rnd *rand.Rand, n int) {
	const commits = 14
	mark := func(i int) int { return n*commits + i + 1 }
	dirs := []string{"", "a/", "a/b/", "a.b/", "c/d/e/"}
	for i := range commits {
		fmt.Fprintf(in, "commit refs/heads/h%d\nmark :%d\ncommitter A <a@example.com> %d +0000\ndata 0\n", n, mark(i),
			1_600_000_000+rnd.IntN(5)*100_000+i)
		if i > 0 {
			fmt.Fprintf(in, "from :%d\n", mark(max(0, i-1-rnd.IntN(4))))
			for range rnd.IntN(3) / 2 * (1 + rnd.IntN(2)) {
				fmt.Fprintf(in, "merge :%d\n", mark(rnd.IntN(i)))
			}
		}
		for range 1 + rnd.IntN(3) {
			if i > 0 && rnd.IntN(5) == 0 {
				fmt.Fprintf(in, "C %s %s\n", "a", []string{"moved", "c", "a.b"}[rnd.IntN(3)])
				if rnd.IntN(2) == 0 {
					fmt.Fprintf(in, "D a/b\n")
				}
				continue
			}
			fmt.Fprintf(in, "M 100644 inline %sf%d\ndata 1\n%d\n", dirs[rnd.IntN(len(dirs))], rnd.IntN(3), rnd.IntN(4))
		}
		if i == 0 {
			fmt.Fprintf(in, "M 100644 inline a/f\ndata 1\n0\n")
		}
		in.WriteString("\n")
	}
	fmt.Fprintf(in, "reset refs/heads/h%d\nfrom :%d\n\n", n, mark(commits-1))
}
