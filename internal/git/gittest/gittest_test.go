package gittest

import (
	"fmt"
	"strings"
	"testing"
)

func TestRandomIsReproducible(t *testing.T) {
	shape := Shape{Commits: 40, Branches: 4, Merge: 0.3, Skew: true}
	a, b := Init(t), Init(t)
	a.fill(7, shape)
	b.fill(7, shape)
	if x, y := a.Git("for-each-ref"), b.Git("for-each-ref"); x != y {
		t.Errorf("two repositories from one seed differ:\n%s\n\n%s", x, y)
	}
	for range 2 { // the second is made of the files of the first
		made := Random(t, 7, shape)
		if x, y := a.Git("for-each-ref"), made.Git("for-each-ref"); x != y {
			t.Errorf("Random made another repository:\n%s\n\n%s", x, y)
		}
		made.Git("fsck", "--strict")
	}
}

// TestBatch compares a batch with the objects that git makes, each with a process.
func TestBatch(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		r := Init(t, "--object-format="+format)
		file := fmt.Sprintf("100644 blob %v\tfile\n", r.Blob("text"))
		inner := r.GitIn(file, "mktree")
		root := r.GitIn("text", "commit-tree", inner)
		entries := strings.NewReplacer("BLOB", r.Blob("text").String(), "TREE", inner, "COMMIT", root).Replace(
			"100644 blob BLOB\ta0\n040000 tree TREE\ta\n100755 blob BLOB\ta.b\n120000 blob BLOB\té\n160000 commit COMMIT\tb\n")
		want := r.GitIn("more\n", "commit-tree", r.GitIn(entries, "mktree"), "-p", root)

		other := Init(t, "--object-format="+format)
		b := other.Batch()
		got := b.CommitTree("more\n", entries, b.Commit("text"))
		b.Store()
		if got.String() != want {
			t.Fatalf("%s: commit %v, want %s: %s", format, got, want, other.Git("cat-file", "-p", got.String()))
		}
		other.Git("fsck", "--strict", want)
	}
}
