package lookup

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

func diffStat(l *Reader, r *repo.Repo, old, new string) (all []FileStat, err error) {
	err = l.DiffStat(context.Background(), r, old, new, func(batch []FileStat) error {
		if len(batch) == 0 || len(batch) > maxStats {
			return fmt.Errorf("a batch of %d", len(batch))
		}
		all = append(all, batch...)
		return nil
	})
	return all, err
}

// sameAsGit compares with git diff-tree.
func sameAsGit(t *testing.T, l *Reader, r *gittest.Repo, opened *repo.Repo, old, new string) {
	t.Helper()
	stats, err := diffStat(l, opened, old, new)
	if err != nil {
		t.Errorf("%s %s: %v", old, new, err)
		return
	}
	if old == "" {
		if old, err = r.Try("rev-parse", "-q", "--verify", new+"^1"); err != nil {
			old = r.GitIn("", "mktree")
		}
	}
	var numbers, raw strings.Builder
	for _, f := range stats {
		if f.Binary {
			fmt.Fprintf(&numbers, "-\t-\t%s\x00", f.Path)
		} else {
			fmt.Fprintf(&numbers, "%d\t%d\t%s\x00", f.Added, f.Deleted, f.Path)
		}
		hex := func(id git.ObjectID) string {
			if id.IsZero() {
				return strings.Repeat("0", opened.Format.HexSize())
			}
			return id.String()
		}
		fmt.Fprintf(&raw, ":%06o %06o %s %s %s\x00", f.OldMode, f.NewMode, hex(f.OldID), hex(f.NewID), f.Path)
	}
	var files, counts strings.Builder
	fields := strings.Split(r.Git("diff-tree", "-r", "-z", "--no-renames", "--minimal", "--raw", "--no-abbrev",
		"--numstat", old, new), "\x00")
	for i := 0; i+1 < len(fields); i++ {
		if strings.HasPrefix(fields[i], ":") { // ":modes ids status", path
			fmt.Fprintf(&files, "%s %s\x00", fields[i][:strings.LastIndexByte(fields[i], ' ')], fields[i+1])
			i++
		} else {
			fmt.Fprintf(&counts, "%s\x00", fields[i])
		}
	}
	if numbers.String() != counts.String() {
		t.Errorf("%s %s: counts\nhave %q\nwant %q", old, new, numbers.String(), counts.String())
	}
	if raw.String() != files.String() {
		t.Errorf("%s %s: files\nhave %q\nwant %q", old, new, raw.String(), files.String())
	}
}

func TestDiffStatIsGits(t *testing.T) {
	t.Parallel()
	everyHome(t, func(t *testing.T, r *gittest.Repo) {
		l, opened := New(Options{}), openRepo(t, r)
		commits := strings.Fields(r.Git("rev-list", "--all"))
		for i, c := range commits[:8] {
			sameAsGit(t, l, r, opened, "", c)
			sameAsGit(t, l, r, opened, c, commits[len(commits)-1-i])
		}
		sameAsGit(t, l, r, opened, "main^{tree}"[:4], "tree")
	})
}

// TestDiffStatOfOddFiles has unusual files and lines.
func TestDiffStatOfOddFiles(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	put := func(s string) git.ObjectID { return store(t, r, git.Blob, []byte(s)) }
	dir := treeOf(t, r, "100644 f", put("f\n"), "100755 x", put("x"))
	zeros := strings.Repeat("y", 7999)
	sides := [][]any{
		{},
		{"100644 a", put("1\n2\n3\n")},
		{"100644 a", put("1\n2\n3")},
		{"100755 a", put("1\n2\n3\n")},
		{"120000 a", put("1\n2\n3\n")},
		{"120000 a", put("elsewhere")},
		{"100644 a", put("1\r\n2\r\n3\r\n")},
		{"100644 a", put("")},
		{"100644 a", put("\n\n\n")},
		{"100644 a", put("\x00")},
		{"100755 a", put("\x00")},
		{"100644 a", put(zeros + "\x00")},
		{"100644 a", put(zeros + "y\x00")},
		{"160000 a", put("1\n2\n3\n")},
		{"160000 a", dir},
		{"40000 a", dir},
		{"40000 a", treeOf(t, r)},
		{"100644 a", put("1\n"), "100644 a-b", put("1\n"), "40000 a.d", dir, "100644 a0", put("0\n")},
		{"100644 a-b", put("1\n"), "100644 a.d", put("1\n"), "40000 a", dir, "40000 a0", dir},
		{"100644 \xff\x01\"", put("1\n2\n")},
	}
	l, opened := New(Options{}), openRepo(t, r)
	var trees []string
	for _, entries := range sides {
		trees = append(trees, treeOf(t, r, entries...).String())
	}
	for i, old := range trees {
		for _, new := range trees[i:] {
			sameAsGit(t, l, r, opened, old, new)
			if (len(old)+i)%3 == 0 {
				sameAsGit(t, l, r, opened, new, old)
			}
		}
	}
}

func TestDiffStatErrors(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 1, gittest.Shape{Commits: 5})
	l, opened := New(Options{}), openRepo(t, r)
	for _, c := range []struct {
		old, new string
		kind     fault.Kind
	}{{"nowhere", "main", fault.NotFound}, {"main", "nowhere", fault.NotFound}, {"blob", "main", fault.Invalid}, {"main",
		"light-blob", fault.Invalid}} {
		if _, err := diffStat(l, opened, c.old, c.new); !fault.Is(err, c.kind) {
			t.Errorf("%s %s: %v", c.old, c.new, err)
		}
	}
}

func TestTooLargeToCompare(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	l, opened := tight(), openRepo(t, r)
	limit := int(l.bounds.diffBlob)
	line := []byte("line\n")
	text := bytes.Repeat(line, limit/len(line)+1)
	binary := append([]byte{0}, text...)
	within := text[:limit/len(line)*len(line)]
	rnd := rand.New(rand.NewPCG(1, 1))
	var mixed [2][]byte
	for i := range mixed { // the same lines in another order
		for _, n := range rnd.Perm(2000) {
			mixed[i] = fmt.Appendf(mixed[i], "%d\n", n)
		}
	}
	put := func(b []byte) git.ObjectID { return store(t, r, git.Blob, b) }
	old := treeOf(t, r, "100644 binary", put(line), "100644 lines", put(append([]byte("x"), within[5:]...)),
		"100644 mixed", put(mixed[0]),
		"100644 within", put(within[:len(within)-5]))
	new := treeOf(t, r, "100644 binary", put(binary), "100644 lines",
		put(append(append([]byte("y"), within[10:]...), 'z')), "100644 mixed", put(mixed[1]),
		"100644 text", put(text), "100644 within", put(within))
	stats, err := diffStat(l, opened, old.String(), new.String())
	if err != nil || len(stats) != 5 {
		t.Fatal(len(stats), err)
	}
	for i, want := range []string{"binary 0 0 true false", "lines 0 0 false true", "mixed 0 0 false true",
		"text 0 0 false true", "within 1 0 false false"} {
		f := stats[i]
		if have := fmt.Sprintf("%s %d %d %v %v", f.Path, f.Added, f.Deleted, f.Binary, f.TooLarge); have != want {
			t.Errorf("have %s, want %s", have, want)
		}
	}
}

// The counts are the least there can be, as the table of longest common subsequences has them.
func TestLineCountIsMinimal(t *testing.T) {
	t.Parallel()
	c := &operation{Reader: New(Options{}), ctx: context.Background()}
	text := rapid.Custom(func(t *rapid.T) []byte {
		lines := rapid.SliceOfN(rapid.SampledFrom([]string{"a\n", "b\n", "c\n", "\n", "aa\n", "\r\n"}), 0, 40).Draw(t,
			"lines")
		return []byte(strings.Join(lines, "") + rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "end"))
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		added, deleted, ok, err := c.lineCount(a, b)
		inA, inB := bytes.SplitAfter(a, []byte("\n")), bytes.SplitAfter(b, []byte("\n"))
		common := make([][]int, len(inA)+1)
		for i := range common {
			common[i] = make([]int, len(inB)+1)
		}
		for i, x := range inA {
			for j, y := range inB {
				if common[i+1][j+1] = max(common[i][j+1], common[i+1][j]); bytes.Equal(x, y) && len(x) > 0 {
					common[i+1][j+1] = common[i][j] + 1
				}
			}
		}
		best := common[len(inA)][len(inB)]
		if !ok || err != nil || added != int64(lines(b)-best) || deleted != int64(lines(a)-best) {
			t.Fatalf("+%d -%d %v %v, want +%d -%d", added, deleted, ok, err, lines(b)-best, lines(a)-best)
		}
	})
}
