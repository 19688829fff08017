package sourcetest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// fill gives r the history of a random repository, packed.
func fill(t testing.TB, r *gittest.Repo, seed uint64) {
	t.Helper()
	other := gittest.Random(t, seed, gittest.Shape{Format: r.Format().String(), Merge: 0.2})
	r.Git("fetch", "-q", other.Dir, "+refs/*:refs/*")
	r.Git("repack", "-qad")
}

// addCommit adds a commit with a file to main, loose.
func addCommit(r *gittest.Repo, text string) {
	r.Git("update-ref", "refs/heads/main", r.Commit(text, r.ID("main")).String())
}

func buildCruft(t testing.TB, r *gittest.Repo) {
	fill(t, r, 6)
	lost := r.Commit("lost and found", r.ID("main"))
	r.Git("repack", "-qd", "--cruft")
	r.Git("update-ref", "refs/heads/found", lost.String())
	addCommit(r, "new")
}

// buildLayers writes the layers with a git that can.
func buildLayers(t testing.TB, r *gittest.Repo) {
	fill(t, r, 7)
	for i := range 3 {
		addCommit(r, fmt.Sprintf("layer %d", i))
		r.Git("repack", "-qd")
		r.Newer("multi-pack-index", "write", "--incremental")
	}
}

func buildOutsideIndex(t testing.TB, r *gittest.Repo) {
	fill(t, r, 8)
	r.Git("multi-pack-index", "write", "--bitmap")
	addCommit(r, "later")
	r.Git("repack", "-qd")
	addCommit(r, "loose")
}

// buildStaleGraph has a commit-graph with commits that are no longer there, and without the newest.
func buildStaleGraph(t testing.TB, r *gittest.Repo) {
	fill(t, r, 9)
	r.Git("update-ref", "refs/heads/gone", r.Commit("gone", r.ID("main")).String())
	r.Git("commit-graph", "write", "--reachable")
	r.Git("update-ref", "-d", "refs/heads/gone")
	r.Git("prune", "--expire=now")
	addCommit(r, "newest")
}

func buildAlternateCycle(t testing.TB, r *gittest.Repo) {
	other := gittest.Init(t, "--object-format="+r.Format().String())
	fill(t, other, 10)
	setAlternate(t, r, other)
	setAlternate(t, other, r)
	r.Git("fetch", "-q", other.Dir, "+refs/*:refs/*")
	addCommit(r, "own")
}

func setAlternate(t testing.TB, r, alternate *gittest.Repo) {
	t.Helper()
	path := filepath.Join(r.Dir, "objects/info/alternates")
	if err := os.WriteFile(path, []byte(filepath.Join(alternate.Dir, "objects")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// buildShared has the objects of two forks in a directory that both share, in one pack with a bitmap. The other fork
// has commits on top of main, and another version of each file.
func buildShared(t testing.TB, r *gittest.Repo) {
	pool := gittest.Init(t, "--object-format="+r.Format().String())
	fill(t, pool, 11)
	setAlternate(t, r, pool)
	r.Git("fetch", "-q", pool.Dir, "+refs/*:refs/*")
	addCommit(pool, "private")
	addCommit(pool, "more of it")
	pool.Git("tag", "-a", "-m", "private", "private", "main~2") // of a commit that both have
	pool.Git("repack", "-qadb")
}

func buildEmptyTree(t testing.TB, r *gittest.Repo) {
	empty := r.CommitTree("nothing", "")
	full := r.Commit("something", empty)
	r.Git("update-ref", "refs/heads/main", r.CommitTree("nothing again", "", full).String())
	r.Git("tag", "nothing", "main^{tree}")
	r.Git("repack", "-qad")
}

func buildModes(t testing.TB, r *gittest.Repo) {
	module := strings.Repeat("12", r.Format().Size()) // a commit of another repository
	blob, link := r.Blob("#!/bin/sh\n"), r.Blob("target")
	empty := r.Blob("")
	entries := fmt.Sprintf("160000 commit %s\tmodule\n100755 blob %v\tprogram\n120000 blob %v\tlink\n100644 blob "+
		"%v\tempty\n",
		module, blob, link, empty)
	root := r.CommitTree("one", entries)
	entries += fmt.Sprintf("160000 commit %v\tanother\n", root) // a commit that is also here
	r.Git("update-ref", "refs/heads/main", r.CommitTree("two", entries, root).String())
}

func buildTags(t testing.TB, r *gittest.Repo) {
	commitFiles(r, r.Blob("text"))
	name := r.Blob("only the tags hold it").String()
	for i := range 30 {
		tag := fmt.Sprintf("t%d", i)
		r.Git("tag", "-a", "-m", tag, tag, name)
		name = tag
	}
	r.Git("tag", "-a", "-m", "tree", "tree", "main^{tree}")
	r.Git("tag", "-a", "-m", "tag of a tree", "tree-tag", "tree")
	for i := range 29 {
		r.Git("update-ref", "-d", fmt.Sprintf("refs/tags/t%d", i))
	}
}

func buildOctopus(t testing.TB, r *gittest.Repo) {
	b := r.Batch()
	root := b.Commit("root")
	var parents []git.ObjectID
	for i := range 60 {
		parents = append(parents, b.Commit(fmt.Sprint(i), root))
	}
	merge := b.Commit("merge", parents...)
	b.Store()
	r.Git("update-ref", "refs/heads/main", merge.String())
	r.Git("repack", "-qad")
	r.Git("commit-graph", "write", "--reachable")
}

// buildSizes has objects whose size or whose entry ends where a header or a packet does.
func buildSizes(t testing.TB, r *gittest.Repo) {
	rnd := rand.NewChaCha8([32]byte{1})
	var all []git.ObjectID
	for _, size := range []int{1, 15, 16, 17, 2047, 2048, 2049, 262143, 262144, 65480, 65500, 65510, 65515, 65516, 65520,
		131030, 200_000} {
		data := make([]byte, size)
		rnd.Read(data)
		all = append(all, r.Blob(string(data)))
	}
	commitFiles(r, all...)
	r.Git("repack", "-qad")
	addCommit(r, "later")
}

func deepTree(r *gittest.Repo, depth int) {
	b := r.Batch()
	root := b.Commit("root")
	tree := b.Tree(fmt.Sprintf("100644 blob %v\tfile\n", b.Object(git.Blob, []byte("deep"))))
	for range depth {
		tree = b.Tree(fmt.Sprintf("040000 tree %v\td\n", tree))
	}
	deep := b.CommitTree("deep", fmt.Sprintf("040000 tree %v\td\n", tree), root)
	b.Store()
	r.Git("update-ref", "refs/heads/main", deep.String())
	r.Git("repack", "-qad")
}

// manyRefs makes refs to different commits, which have one tree.
func manyRefs(t testing.TB, r *gittest.Repo, count int) {
	t.Helper()
	var in strings.Builder
	fmt.Fprint(&in, "commit refs/heads/main\nmark :1\ncommitter C <c@example.com> 1700000000 +0000\ndata 4\nmain\n"+
		"M 100644 inline file\ndata 4\ntext\n\n")
	for i := range count {
		fmt.Fprintf(&in, "commit refs/heads/main\nmark :%d\ncommitter C <c@example.com> 1700000001 +0000\ndata 8\n%08d\n"+
			"from :1\n\n", i+2, i)
	}
	marks := filepath.Join(r.Dir, "marks")
	r.GitIn(in.String(), "-c", "fastimport.unpackLimit=0", "fast-import", "--quiet", "--force", "--depth=0",
		"--export-marks="+marks)
	text, err := os.ReadFile(marks)
	if err != nil {
		t.Fatal(err)
	}
	var refs strings.Builder
	refs.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		_, id, _ := strings.Cut(line, " ")
		fmt.Fprintf(&refs, "%s refs/heads/x%08d\n", id, i)
	}
	if err := os.WriteFile(filepath.Join(r.Dir, "packed-refs"), []byte(refs.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}
