package native_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/native"
	"github.com/packhorse-git/packhorse/internal/node/packsource/sourcetest"
)

// newSource returns a Source that leaves packs to git as its options say.
func newSource(t testing.TB, always bool) *native.Source {
	git := sourcetest.FromGit(t, "", process.Limits{Slots: 2, Queue: 100})
	return native.New(native.Options{Git: git, Always: always, Threads: 2})
}

func makeNative(t testing.TB, program string) packsource.Source {
	if program != "" {
		return nil
	}
	return newSource(t, true)
}

func TestSource(t *testing.T) { sourcetest.Run(t, makeNative) }

func TestPacks(t *testing.T) { sourcetest.RunPacks(t, makeNative) }

func TestHugePacks(t *testing.T) { sourcetest.RunHuge(t, makeNative) }

func TestPacksWithFallback(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	sourcetest.RunPacks(t, func(t testing.TB, program string) packsource.Source {
		if program != "" {
			return nil
		}
		return newSource(t, false)
	})
}

// TestVersionOfAnotherType has a file that becomes a tree with almost the same content, but still has the mode of a
// file. Neither is a delta of the other.
func TestVersionOfAnotherType(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	b := r.Batch()
	var entries strings.Builder
	for n := range 50 {
		fmt.Fprintf(&entries, "100644 blob %v\tfile%02d\n", b.Object(git.Blob, fmt.Append(nil, n)), n)
	}
	tree := b.Tree(entries.String())
	b.Store()
	data, err := r.Try("cat-file", "tree", tree.String())
	if err != nil {
		t.Fatal(err)
	}
	file := b.Object(git.Blob, []byte(data+"x"))
	old := b.CommitTree("old", fmt.Sprintf("100644 blob %v\tfile\n", file))
	commit := b.CommitTree("new", fmt.Sprintf("100644 blob %v\tfile\n", tree), old)
	b.Store()
	outside := func(id git.ObjectID) (git.ObjectType, []byte, error) {
		o := r.Read([]string{id.String()})[id]
		return o.Type, o.Data, nil
	}
	repo, wants := sourcetest.Repository(r), []git.ObjectID{commit}
	for _, spec := range []*packsource.Spec{{Repo: repo, Wants: wants, Offset: true},
		{Repo: repo, Wants: wants, Haves: []git.ObjectID{old}, Thin: true}} {
		p, err := gittest.ReadPack(sourcetest.Fetch(t, newSource(t, true), spec), git.SHA1, outside)
		if err != nil || p.Objects[tree] != git.Tree {
			t.Errorf("the pack has the tree as a %v, %v", p.Objects[tree], err)
		}
	}
}

// TestEstimateWithBitmap has a history that a bitmap chooses and whose entries cannot be copied: their index has no
// checksums. Its versions are not known, so git makes the pack.
func TestEstimateWithBitmap(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	var in strings.Builder
	fmt.Fprintf(&in, "commit refs/heads/main\ncommitter C <c@example.com> 1 +0000\ndata 0\n")
	for i := range 6000 {
		fmt.Fprintf(&in, "M 100644 inline %d\ndata 4\n%04d\n", i, i)
	}
	r.GitIn(in.String(), "fast-import", "--quiet")
	r.Git("-c", "pack.indexVersion=1", "repack", "-adbq")
	_, info := sourcetest.FetchWithInfo(t, newSource(t, false), sourcetest.Full(r))
	if info.Made.Fallback != "encode" {
		t.Errorf("the pack is made so: %+v, want git to make it", info.Made)
	}
}
