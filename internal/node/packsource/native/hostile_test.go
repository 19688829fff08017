package native

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// commitTree makes a commit of a tree, which may be wrong. Entries are lines of git ls-tree.
func commitTree(r *gittest.Repo, entries ...string) git.ObjectID {
	tree := r.GitIn(strings.Join(entries, "\n")+"\n", "mktree", "--missing")
	return git.MustParseObjectID(r.Git("commit-tree", "-m", "a tree", tree))
}

func wantOnly(ids ...git.ObjectID) *packsource.Spec { return &packsource.Spec{Wants: sortIDs(ids)} }

// checkFallback checks that git is to make the pack, and why.
func checkFallback(t *testing.T, err error, reason string) {
	t.Helper()
	var f *fallback
	if !errors.As(err, &f) || f.reason != reason {
		t.Errorf("the error is %v, want a fallback because of %q", err, reason)
	}
}

// TestSpecialTrees compares unusual trees with git.
func TestSpecialTrees(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	blob := r.GitIn("content", "hash-object", "-w", "--stdin")
	deep := strings.Repeat("d/", 3000) + "f"
	r.GitIn("commit refs/heads/deep\ncommitter C <c@example.com> 1 +0000\ndata 1\nx\nM 100644 inline "+deep+
		"\ndata 1\ny\n\n", "fast-import", "--quiet")
	module := strings.Repeat("1", 40)
	commits := map[string]git.ObjectID{
		"submodule":  commitTree(r, "160000 commit "+module+"\tmodule", "100644 blob "+blob+"\tfile"),
		"empty tree": git.MustParseObjectID(r.GitIn("x", "commit-tree", "4b825dc642cb6eb9a060e54bf8d69288fbee4904")),
		"modes": commitTree(r, "100664 blob "+blob+"\ta", "100755 blob "+blob+"\tb", "120000 blob "+blob+"\tc",
			"040000 tree "+r.ID("deep^{tree}").String()+"\td"),
		"deep": r.ID("deep"),
	}
	for _, arrange := range []func(){func() {}, func() {
		for name, id := range commits {
			r.Git("update-ref", "refs/heads/"+strings.ReplaceAll(name, " ", "-"), id.String())
		}
		r.Git("repack", "-adfq")
	}} {
		arrange()
		c := newChooser(t, r, git.SHA1)
		for name, id := range commits {
			chosen, _ := c.choose(wantOnly(id))
			checkSame(t, name, chosen, c.packed(wantOnly(id)))
			have := &packsource.Spec{Wants: []git.ObjectID{id}, Haves: []git.ObjectID{commits["modes"]}, Thin: true}
			c.checkNew(have)
		}
	}
}

// TestWrongTypes checks trees with entries whose objects have another type than their mode says.
func TestWrongTypes(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	blob := r.GitIn("content", "hash-object", "-w", "--stdin")
	tree := r.GitIn("100644 blob "+blob+"\tfile\n", "mktree")
	write := func(entries ...string) git.ObjectID { // mktree verifies types
		var data strings.Builder
		for _, e := range entries {
			mode, rest, _ := strings.Cut(e, " ")
			id := git.MustParseObjectID(rest)
			fmt.Fprintf(&data, "%s n%s\x00%s", mode, mode, id.Raw())
		}
		wrong := r.GitIn(data.String(), "hash-object", "-w", "-t", "tree", "--literally", "--stdin")
		return git.MustParseObjectID(r.GitIn("x", "commit-tree", wrong))
	}
	c := newChooser(t, r, git.SHA1)
	commit := commitTree(r, "100644 blob "+blob+"\tfile").String()
	for name, id := range map[string]git.ObjectID{"a blob as a tree": write("40000 " + blob),
		"a commit as a tree": write("40000 " + commit)} {
		_, _, err := c.try(wantOnly(id))
		if checkFallback(t, err, reasonDamaged); t.Failed() {
			t.Fatal(name)
		}
	}
	// The tree is chosen as if it was a blob first. Its entries are chosen nevertheless.
	chosen, _ := c.choose(wantOnly(write("100644 "+tree), write("100644 "+tree, "40000 "+tree)))
	for _, id := range []string{blob, tree} {
		if !slices.Contains(chosen, id) {
			t.Errorf("object %s is not chosen", id)
		}
	}
}

func TestMissingObjects(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"HEAD:file", "HEAD^{tree}", "HEAD~", "HEAD"} {
		r := gittest.Init(t)
		r.Git("update-ref", "HEAD", r.Commit("new", r.Commit("old")).String())
		head, id := r.ID("HEAD"), r.ID(what).String()
		if err := os.Remove(filepath.Join(r.Dir, "objects", id[:2], id[2:])); err != nil {
			t.Fatal(err)
		}
		_, _, err := newChooser(t, r, git.SHA1).try(wantOnly(head))
		reason := reasonMissing
		if what == "HEAD~" {
			reason = reasonDamaged
		}
		checkFallback(t, err, reason)
	}
}

// looseCopy returns the file of an object as a loose object.
func looseCopy(t *testing.T, r *gittest.Repo, id git.ObjectID) []byte {
	t.Helper()
	data, err := r.Try("cat-file", "tree", id.String())
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	fmt.Fprintf(w, "tree %d\x00%s", len(data), data)
	w.Close()
	return b.Bytes()
}

// TestDamagedTree checks that another copy of a damaged tree is read.
func TestDamagedTree(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 3, gittest.Shape{})
	r.Git("repack", "-adfq")
	head := r.ID("HEAD")
	c := newChooser(t, r, git.SHA1)
	want := c.packed(wantOnly(head))
	tree := r.ID("HEAD^{tree}")
	loose := filepath.Join(r.Dir, "objects", tree.String()[:2], tree.String()[2:])
	copied := looseCopy(t, r, tree)
	var offset int64
	err := c.store.Raw(10, func(packs []*pack.Raw) (err error) {
		pos, _ := packs[0].Find(tree.Raw())
		offset, err = packs[0].Offset(pos)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	packs, _ := filepath.Glob(r.Dir + "/objects/pack/*.pack")
	content, err := os.ReadFile(packs[0])
	if err != nil {
		t.Fatal(err)
	}
	content[offset+6] ^= 4
	if err := os.Chmod(packs[0], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(packs[0], content, 0o600); err != nil {
		t.Fatal(err)
	}
	spec := wantOnly(head)
	_, _, err = newChooser(t, r, git.SHA1).try(spec)
	checkFallback(t, err, reasonDamaged)
	if err := os.MkdirAll(filepath.Dir(loose), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(loose, copied, 0o600); err != nil {
		t.Fatal(err)
	}
	chosen, _ := newChooser(t, r, git.SHA1).choose(spec)
	checkSame(t, "another copy", chosen, want)
}

// TestSelectFromAlternates selects objects of a fork.
func TestSelectFromAlternates(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 9, gittest.Shape{Merge: 0.2})
	fork := gittest.Init(t)
	if err := os.WriteFile(filepath.Join(fork.Dir, "objects/info/alternates"), []byte(r.Dir+"/objects\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	fork.Git("update-ref", "refs/heads/main", fork.Commit("only in the fork", r.ID("HEAD")).String())
	c := newChooser(t, fork, git.SHA1)
	spec := wantOnly(fork.ID("main"))
	chosen, _ := c.choose(spec)
	checkSame(t, "fork", chosen, c.packed(spec))
	spec.Haves = []git.ObjectID{r.ID("HEAD")}
	c.checkNew(spec)
}

// TestSelectionEnds checks that a selection ends if the pack is abandoned, and at its limit of memory.
func TestSelectionEnds(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 2, gittest.Shape{Commits: 400})
	store, err := pack.Open(r.Dir+"/objects", pack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	c := newChooser(t, r, git.SHA1)
	err = store.Raw(10, func(packs []*pack.Raw) error {
		abandoned := errors.New("abandoned")
		s := &selection{ctx: context.Background(), spec: wantOnly(r.ID("HEAD")), store: store, graph: c.graph,
			view: newView(git.SHA1, nil, packs), tick: func(int) error { return abandoned }}
		s.steps = stepsPerTick - 10
		if _, _, err := s.run(); !errors.Is(err, abandoned) {
			t.Errorf("the error is %v, want that of tick", err)
		}
		s = &selection{ctx: context.Background(), spec: s.spec, store: store, graph: c.graph, view: s.view, budget: 1,
			steps: stepsPerTick - 10}
		_, _, err := s.run()
		checkFallback(t, err, reasonMemory)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
