package gittest

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Batch makes objects of a repository, which Store stores with one process for all.
type Batch struct {
	repo *Repo
	pack *PackWriter
}

// Batch returns an empty batch.
func (r *Repo) Batch() *Batch { return &Batch{r, NewPackWriter(r.Format())} }

// Store stores the objects as git hash-object does: loose, except those that the repository has.
func (b *Batch) Store() {
	b.repo.t.Helper()
	b.repo.GitIn(string(b.pack.Bytes()), "unpack-objects", "-q")
}

// Object adds an object and returns its ID.
func (b *Batch) Object(typ git.ObjectType, data []byte) git.ObjectID {
	b.pack.Add(typ, data)
	return HashObject(b.pack.format, typ, data)
}

// Commit adds a commit as Repo.Commit makes it.
func (b *Batch) Commit(text string, parents ...git.ObjectID) git.ObjectID {
	blob := b.Object(git.Blob, []byte(text))
	return b.CommitTree(text, fmt.Sprintf("100644 blob %v\tfile\n", blob), parents...)
}

// CommitTree adds a commit as Repo.CommitTree makes it.
func (b *Batch) CommitTree(message, entries string, parents ...git.ObjectID) git.ObjectID {
	tree := b.Tree(entries)
	var commit strings.Builder
	fmt.Fprintf(&commit, "tree %v\n", tree)
	for _, p := range parents {
		fmt.Fprintf(&commit, "parent %v\n", p)
	}
	fmt.Fprintf(&commit, "author A U Thor <author@example.com> 1700000000 +0000\n"+
		"committer C O Mitter <committer@example.com> 1700000000 +0000\n\n%s", message)
	return b.Object(git.Commit, []byte(commit.String()))
}

// Tree adds a tree with the given entries of git mktree: "MODE TYPE ID\tNAME\n".
func (b *Batch) Tree(entries string) git.ObjectID {
	type entry struct{ mode, id, name string }
	var list []entry
	for line := range strings.Lines(entries) {
		head, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		words := strings.Fields(head)
		list = append(list, entry{strings.TrimPrefix(words[0], "0"), words[2], name})
	}
	key := func(e entry) string { // of the order of entries: directories are compared as if their names ended in a slash
		if e.mode == "40000" {
			return e.name + "/"
		}
		return e.name + "\x00"
	}
	slices.SortFunc(list, func(x, y entry) int { return cmp.Compare(key(x), key(y)) })
	var tree bytes.Buffer
	for _, e := range list {
		id := git.MustParseObjectID(e.id)
		fmt.Fprintf(&tree, "%s %s\x00%s", e.mode, e.name, id.Raw())
	}
	return b.Object(git.Tree, tree.Bytes())
}

// Edit adds commits to main, which may not exist. Each adds a line to one of ten files, so that git stores their
// earlier versions as deltas of later ones.
func (r *Repo) Edit(commits int) {
	r.t.Helper()
	b, n := r.Batch(), 0
	var parents []git.ObjectID
	if _, err := r.Try("rev-parse", "--verify", "-q", "main"); err == nil {
		fmt.Sscan(r.Git("rev-list", "--count", "main"), &n)
		parents = []git.ObjectID{r.ID("main")}
	}
	for i := n; i < n+commits; i++ {
		var entries strings.Builder
		for file := range 10 {
			var text []byte
			rnd := rand.New(rand.NewPCG(uint64(file), 0))
			for range 60 + (i+file)/10 {
				text = fmt.Appendf(text, "%x\n", rnd.Uint64())
			}
			fmt.Fprintf(&entries, "100644 blob %v\tfile%d\n", b.Object(git.Blob, text), file)
		}
		parents = []git.ObjectID{b.CommitTree(fmt.Sprint("edit ", i), entries.String(), parents...)}
	}
	b.Store()
	r.Git("update-ref", "refs/heads/main", parents[0].String())
}
