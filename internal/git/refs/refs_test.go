package refs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

func snapshot(t testing.TB, s *Store) *Snapshot {
	t.Helper()
	snap, err := s.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func openBare(r *gittest.Repo, o Options) *Store { return Open(r.Dir, r.Dir, o) }

// dump is a Snapshot in the form that dumpGit gives.
func dump(t testing.TB, s *Snapshot) string {
	t.Helper()
	var b strings.Builder
	head := s.Head()
	fmt.Fprintf(&b, "HEAD %s %s\n", head.Target, idText(head.ID))
	err := s.Each("", func(r Ref) error {
		fmt.Fprintf(&b, "%s %s %s\n", r.Name, r.ID, r.Target)
		again, ok, err := s.Lookup(r.Name)
		if err != nil || !ok || again != r {
			t.Errorf("Lookup(%s): %v, %v, %v; Each says %v", r.Name, again, ok, err, r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func idText(id git.ObjectID) string {
	if id.IsZero() {
		return "-"
	}
	return id.String()
}

// dumpGit returns git's view: HEAD's target and ID, then every ref.
func dumpGit(t testing.TB, r *gittest.Repo) string {
	t.Helper()
	cmd := gitCommand(r, "for-each-ref", "--format=%(refname) %(objectname) %(symref)")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("for-each-ref: %v\n%s", err, errs.String())
	}
	target, err := r.Try("symbolic-ref", "-q", "HEAD")
	if err != nil {
		target = ""
	}
	id, err := r.Try("show-ref", "--verify", "-s", "HEAD") // rev-parse would go on to refs/heads/HEAD
	if err != nil {
		id = "-"
	}
	return fmt.Sprintf("HEAD %s %s\n%s", target, id, out.String())
}

func gitCommand(r *gittest.Repo, args ...string) *exec.Cmd {
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = r.Dir, gittest.Env()
	return cmd
}

func compareWithGit(t testing.TB, r *gittest.Repo, s *Store, what string) *Snapshot {
	t.Helper()
	snap := snapshot(t, s)
	if got, want := dump(t, snap), dumpGit(t, r); got != want {
		t.Fatalf("%s: we say\n%s\ngit says\n%s", what, got, want)
	}
	return snap
}

// TestStatesAgainstGit compares with git in every state that a repository's refs can be in.
func TestStatesAgainstGit(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%s/%d", format, seed), func(t *testing.T) {
				t.Parallel()
				r := gittest.Random(t, seed, gittest.Shape{Branches: 8, Format: format, Commits: 20})
				f, _ := git.ParseObjectFormat(format)
				s := openBare(r, Options{Format: f})
				compareWithGit(t, r, s, "loose")
				r.Git("pack-refs", "--all")
				snap := compareWithGit(t, r, s, "packed")
				comparePeeled(t, r, snap)
				r.Git("update-ref", "refs/heads/main", "refs/heads/main~1")
				r.Git("update-ref", "refs/tags/v1", "refs/heads/main")
				r.Git("update-ref", "refs/notes/x", "refs/heads/main")
				r.Git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/heads/main")
				r.Git("symbolic-ref", "refs/heads/alias", "refs/heads/feature/a")
				snap = compareWithGit(t, r, s, "mixed")
				comparePeeled(t, r, snap)
				if fresh := openBare(r, Options{Format: f}); dump(t, snapshot(t, fresh)) != dump(t, snap) {
					t.Error("a new store returned other refs, want the same")
				}
				compareExpand(t, r, snap)
			})
		}
	}
}

// comparePeeled compares with `git show-ref -d`.
func comparePeeled(t *testing.T, r *gittest.Repo, snap *Snapshot) {
	t.Helper()
	want := map[string]string{}
	for line := range strings.SplitSeq(r.Git("show-ref", "-d"), "\n") {
		id, name, _ := strings.Cut(line, " ")
		want[name] = id
	}
	known := 0
	err := snap.Each("", func(ref Ref) error {
		if !ref.PeelKnown {
			return nil
		}
		known++
		peeled, ok := want[string(ref.Name)+"^{}"]
		if ok != !ref.Peeled.IsZero() || ok && ref.Peeled.String() != peeled {
			t.Errorf("%s peels to %s, git says %q", ref.Name, idText(ref.Peeled), peeled)
		}
		return nil
	})
	if err != nil || known == 0 {
		t.Errorf("peeled: %v, %d known", err, known)
	}
}

func compareExpand(t *testing.T, r *gittest.Repo, snap *Snapshot) {
	t.Helper()
	for _, short := range []string{"HEAD", "main", "v1", "heads/main", "tags/v1", "refs/heads/main", "feature/a", "origin",
		"alias",
		"nothing", "x", "remotes/origin", "", "-dash", "a..b"} {
		refs, err := snap.Expand(short)
		if err != nil {
			t.Fatal(err)
		}
		if short == "" || short[0] == '-' {
			continue // not a revision to git's command line
		}
		id, err := r.Try("rev-parse", "--verify", "-q", short)
		if (err == nil) != (len(refs) > 0) {
			t.Errorf("Expand(%q): %v, git says %s, %v", short, refs, id, err)
		} else if err == nil && refs[0].ID.String() != id {
			t.Errorf("Expand(%q): %v, git says %s", short, refs, id)
		}
	}
	r.Git("update-ref", "refs/tags/both", "HEAD")
	r.Git("update-ref", "refs/heads/both", "HEAD")
	refs, err := snapshotOf(t, r).Expand("both")
	if err != nil || len(refs) != 2 || refs[0].Name != "refs/tags/both" || refs[1].Name != "refs/heads/both" {
		t.Errorf("Expand of an ambiguous name: %v, %v", refs, err)
	}
}

func snapshotOf(t testing.TB, r *gittest.Repo) *Snapshot {
	t.Helper()
	return snapshot(t, openBare(r, Options{Format: r.Format()}))
}

func TestHead(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	s := openBare(r, Options{})
	if head := snapshot(t, s).Head(); head.Target != "refs/heads/main" || !head.ID.IsZero() {
		t.Errorf("unborn: %+v", head)
	}
	id := r.Commit("one")
	r.Git("update-ref", "refs/heads/main", id.String())
	if head := snapshot(t, s).Head(); head.Target != "refs/heads/main" || head.ID != id {
		t.Errorf("born: %+v", head)
	}
	r.Git("update-ref", "--no-deref", "HEAD", id.String())
	if head := snapshot(t, s).Head(); head.Target != "" || head.ID != id {
		t.Errorf("detached: %+v", head)
	}
	ref, ok, err := snapshot(t, s).Lookup(git.HEAD)
	if want := (Ref{Name: git.HEAD, ID: id}); err != nil || !ok || ref != want {
		t.Errorf("Lookup(HEAD): %+v, %v, %v", ref, ok, err)
	}
	for _, junk := range []string{"", "junk\n", "ref: refs/heads/..\n", "ref: \n", "ref: HEAD\n", "ref: heads/main\n",
		strings.Repeat("0", 40),
		strings.Repeat("a", 40) + "b", strings.Repeat("a", 39), "ref: refs/" +
			strings.Repeat("x", 5000), "ref:refs/heads/a/../b"} {
		write(t, filepath.Join(r.Dir, "HEAD"), junk)
		snap, err := s.Snapshot(t.Context())
		_, gitErr := r.Try("upload-pack", "--advertise-refs", ".")
		switch {
		case err != nil && (gitErr == nil || !fault.Is(err, fault.NotFound)):
			t.Errorf("HEAD %q: %v, git says %v", junk, err, gitErr)
		case err == nil && (gitErr != nil || snap.Head() != (Head{})):
			t.Errorf("HEAD %q: %+v, git says %v", junk, snap.Head(), gitErr)
		}
	}
	// HEAD as a symbolic link, as in very old repositories.
	remove(t, filepath.Join(r.Dir, "HEAD"))
	if err := os.Symlink("refs/heads/main", filepath.Join(r.Dir, "HEAD")); err != nil {
		t.Fatal(err)
	}
	if head := snapshot(t, s).Head(); head.Target != "refs/heads/main" || head.ID != id {
		t.Errorf("HEAD as a link: %+v", head)
	}
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// TestOddLooseRefs puts files below refs/ that git does not write, and compares with git, if git does not follow links.
func TestOddLooseRefs(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	a, b := r.Commit("a").String(), r.Commit("b").String()
	r.Git("update-ref", "refs/heads/main", a)
	r.Git("update-ref", "refs/heads/hidden", a)
	r.Git("update-ref", "refs/heads/dir", a)
	r.Git("pack-refs", "--all")
	for name, content := range map[string]string{
		"heads/hidden":   "", // broken: hides the packed one
		"heads/empty":    "",
		"heads/short":    a[:39] + "\n",
		"heads/long":     a + "0\n",
		"heads/space":    a + " and more",
		"heads/noend":    a,
		"heads/upper":    strings.ToUpper(b) + "\n",
		"heads/null":     strings.Repeat("0", 40) + "\n",
		"heads/sym":      "ref: refs/heads/main\n",
		"heads/sym2":     "ref:refs/heads/main",
		"heads/sym3":     "ref: \t refs/heads/main  \n\n",
		"heads/symjunk":  "ref: refs/heads/main\njunk\n",
		"heads/tohead":   "ref: HEAD\n",
		"heads/loop":     "ref: refs/heads/loop\n",
		"heads/dangling": "ref: refs/heads/nothing\n",
		"heads/HEAD":     a + "\n",
		"heads/" + a:     b + "\n",
		"heads/x.lock":   a + "\n",
		"heads/.x":       a + "\n",
		"heads/a b":      a + "\n",
		"heads/a..b":     a + "\n",
		"heads/dot.":     a + "\n",
		"heads/dot./x":   a + "\n",
		"heads/@{x":      a + "\n",
		"heads/a-b":      a + "\n",
		"heads/a/b":      a + "\n",
		"heads/a.b":      a + "\n",
		"heads/big":      a + strings.Repeat("\n", 10000),
		"heads/bigsym":   "ref: refs/heads/main" + strings.Repeat(" ", 10000),
		"top":            a + "\n",
		"c1":             "ref: refs/heads/main\n",
		"c2":             "ref: refs/c1\n",
		"c3":             "ref: refs/c2\n",
		"c4":             "ref: refs/c3\n",
		"c5":             "ref: refs/c4\n",
		"c6":             "ref: refs/c5\n",
	} {
		if name == "heads/dot." {
			continue // is a directory
		}
		write(t, filepath.Join(r.Dir, "refs", name), content)
	}
	if err := os.MkdirAll(filepath.Join(r.Dir, "refs/heads/dir/empty"), 0o777); err != nil {
		t.Fatal(err)
	}
	// Of this one git reads the whole file; we read no more than a bounded head.
	remove(t, filepath.Join(r.Dir, "refs/heads/bigsym"))
	s := openBare(r, Options{})
	compareWithGit(t, r, s, "odd refs")

	// A link whose text names a ref: git resolves it, but lists it only where the file system finds something there.
	if err := os.Symlink("refs/heads/main", filepath.Join(r.Dir, "refs/heads/link")); err != nil {
		t.Fatal(err)
	}
	ref, ok, err := snapshot(t, s).Lookup("refs/heads/link")
	if err != nil || !ok || ref.Target != "refs/heads/main" || ref.ID.String() != r.Git("rev-parse", "refs/heads/link") {
		t.Errorf("a link to a ref: %+v, %v, %v", ref, ok, err)
	}

	// Links whose text does not name a ref are not followed.
	outside := t.TempDir()
	write(t, filepath.Join(outside, "secret"), b+"\n")
	for name, target := range map[string]string{"tolink": "../../HEAD", "out": filepath.Join(outside, "secret"),
		"outdir": outside} {
		if err := os.Symlink(target, filepath.Join(r.Dir, "refs/heads", name)); err != nil {
			t.Fatal(err)
		}
	}
	before := dump(t, snapshot(t, s))
	if strings.Contains(before, "out") || strings.Contains(before, "tolink") {
		t.Errorf("a link was followed:\n%s", before)
	}
}

func TestFileBecomesDirectoryAndBack(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	a := r.Commit("a").String()
	s := openBare(r, Options{})
	for i := range 3 {
		r.Git("update-ref", "refs/heads/x", a)
		compareWithGit(t, r, s, fmt.Sprint("file ", i))
		r.Git("update-ref", "-d", "refs/heads/x")
		r.Git("update-ref", "refs/heads/x/y", a)
		compareWithGit(t, r, s, fmt.Sprint("directory ", i))
		r.Git("update-ref", "-d", "refs/heads/x/y")
	}
}

func TestEachPrefixAndStop(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	id := r.Commit("a")
	s := openBare(r, Options{})
	var all []string
	var in strings.Builder
	for i := range 300 {
		all = append(all, fmt.Sprintf("refs/heads/%d/x", i), fmt.Sprintf("refs/tags/%d", i))
	}
	for _, name := range all {
		fmt.Fprintf(&in, "create %s %s\n", name, id)
	}
	r.GitIn(in.String(), "update-ref", "--stdin")
	r.Git("pack-refs", "--all")
	for i := 0; i < 300; i += 7 {
		all = append(all, fmt.Sprintf("refs/heads/%d/loose", i))
		r.Git("update-ref", all[len(all)-1], id.String())
	}
	slices.Sort(all)
	snap := snapshot(t, s)
	for _, prefix := range []string{"", "refs/", "refs/heads/1", "refs/heads/14/", "refs/heads/14/l", "refs/tags/299",
		"refs/tags/3", "refs/tags0", "r", "z"} {
		var got, want []string
		for _, name := range all {
			if strings.HasPrefix(name, prefix) {
				want = append(want, name)
			}
		}
		err := snap.Each(prefix, func(r Ref) error { got = append(got, string(r.Name)); return nil })
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("Each(%q): %v\n%v\nwant\n%v", prefix, err, got, want)
		}
	}
	n := 0
	if err := snap.Each("refs/", func(Ref) error { n++; return ErrStop }); err != nil || n != 1 {
		t.Errorf("ErrStop: %v after %d, want 1", err, n)
	}
	if err := snap.Each("refs/", func(Ref) error { return os.ErrClosed }); err != os.ErrClosed {
		t.Errorf("another error: %v, want %v", err, os.ErrClosed)
	}
}

func TestReftableIsRefused(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	s := openBare(r, Options{})
	snapshot(t, s)
	// Leftovers of a migration.
	write(t, filepath.Join(r.Dir, "reftable/tables.list"), "")
	if err := os.RemoveAll(filepath.Join(r.Dir, "refs/heads")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(r.Dir, "refs/heads"), "this repository uses the reftable format\n")
	write(t, filepath.Join(r.Dir, "HEAD"), "ref: refs/heads/.invalid\n")
	for range 2 {
		if _, err := s.Snapshot(context.Background()); !fault.Is(err, fault.Unavailable) ||
			!strings.Contains(err.Error(), "reftable") {
			t.Errorf("a reftable repository: %v", err)
		}
	}
	// Leftovers in a repository of files have no effect.
	write(t, filepath.Join(r.Dir, "HEAD"), "ref: refs/heads/main\n")
	snapshot(t, s)
}

func TestRepositoryGone(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	s := openBare(r, Options{})
	snapshot(t, s)
	if err := os.RemoveAll(r.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Snapshot(context.Background()); !fault.Is(err, fault.NotFound) {
		t.Errorf("a repository that is gone: %v", err)
	}
	if _, err := openBare(r, Options{}).Snapshot(context.Background()); !fault.Is(err, fault.NotFound) {
		t.Errorf("a repository that never was: %v", err)
	}
}

func TestSameSnapshotWhileNothingChanges(t *testing.T) {
	r := gittest.Random(t, 1, gittest.Shape{Commits: 5})
	r.Git("pack-refs", "--all")
	r.Git("update-ref", "refs/heads/loose", "HEAD")
	// An hour later everything is settled; now, everything is racy and read again. Both keep the Snapshot.
	for _, later := range []time.Duration{0, time.Hour} {
		s := openBare(r, Options{Now: func() time.Time { return time.Now().Add(later) }})
		first := snapshot(t, s)
		for range 3 {
			if again := snapshot(t, s); again != first || again.Generation() != first.Generation() {
				t.Errorf("later %v: another snapshot of the same refs", later)
			}
		}
		now := time.Now()
		if err := os.Chtimes(filepath.Join(r.Dir, "refs/heads/loose"), now, now); err != nil {
			t.Fatal(err)
		}
		if snapshot(t, s) != first {
			t.Errorf("later %v: another snapshot after touching a ref", later)
		}
		if later == 0 {
			continue
		}
		if n := testing.AllocsPerRun(20, func() { snapshot(t, s) }); n > 0 && !raceEnabled {
			t.Errorf("a Snapshot that finds nothing new allocates %v times", n)
		}
	}
}

func TestPeeledMemo(t *testing.T) {
	t.Parallel()
	s := Open(t.TempDir(), t.TempDir(), Options{})
	calls := 0
	peel := func(id git.ObjectID) (git.ObjectID, error) { calls++; return id, nil }
	ids := make([]git.ObjectID, 2*minMemo+1)
	for i := range ids {
		ids[i] = git.MustParseObjectID(fmt.Sprintf("%040x", i+1))
	}
	for range 2 {
		if got, err := s.Peeled(Ref{ID: ids[0]}, peel); err != nil || got != ids[0] || calls != 1 {
			t.Fatalf("%v %v %d", got, err, calls)
		}
	}
	if got, err := s.Peeled(Ref{ID: ids[0], PeelKnown: true}, peel); err != nil || !got.IsZero() {
		t.Errorf("known not to be a tag, but %v %v", got, err)
	}
	for _, id := range ids {
		if _, err := s.Peeled(Ref{ID: id}, peel); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.memo.young) + len(s.memo.old); n > 2*minMemo {
		t.Errorf("%d answers kept", n)
	}
	if _, err := s.Peeled(Ref{ID: ids[0]}, func(git.ObjectID) (git.ObjectID, error) {
		return git.ObjectID{},
			os.ErrClosed
	}); err != os.ErrClosed {
		t.Errorf("error of peel: %v, want %v", err, os.ErrClosed)
	}
}
