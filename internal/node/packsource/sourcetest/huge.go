package sourcetest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// RunHuge makes packs of repositories whose size alone is a problem. It takes minutes, and is skipped with -short.
func RunHuge(t *testing.T, newSource Make) {
	if testing.Short() {
		t.Skip("short")
	}
	t.Run("blob of 3 GiB", func(t *testing.T) { testHugeBlob(t, newSource(t, "")) })
	t.Run("2,000,000 refs", func(t *testing.T) {
		r := gittest.Init(t)
		manyRefs(t, r, 2_000_000)
		spec := plainShapes(r)[0].spec
		FetchAndCheck(t, newSource(t, ""), r, spec)
	})
}

// testHugeBlob makes packs of a blob of 3 GiB that compresses well.
func testHugeBlob(t *testing.T, s packsource.Source) {
	r := gittest.Init(t)
	path := filepath.Join(t.TempDir(), "huge")
	f, err := os.Create(path)
	if err == nil {
		err = f.Truncate(3 << 30)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	root := r.Commit("root")
	entries := fmt.Sprintf("100644 blob %s\thuge\n", r.Git("hash-object", "-w", path))
	r.Git("update-ref", "refs/heads/main", r.CommitTree("huge", entries, root).String())
	update := Full(r)
	update.Haves = []git.ObjectID{root}
	for _, spec := range []*packsource.Spec{Full(r), update} {
		c := newClient(t, r, spec)
		if err := c.accept(Fetch(t, s, spec)); err != nil {
			t.Error(err)
		}
		if err := c.connected(); err != nil {
			t.Error(err)
		}
		got := strings.Fields(c.Git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)"))
		if want := r.Objects(); !slices.Equal(got, want) {
			t.Errorf("the client has %v, want %v", got, want)
		}
	}
}
