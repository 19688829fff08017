package pack

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestCount compares with git count-objects.
func TestCount(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		repo := gittest.Init(t, "--object-format="+format)
		f, err := git.ParseObjectFormat(format)
		if err != nil {
			t.Fatal(err)
		}
		store, err := Open(repo.Dir+"/objects", Options{Format: f})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		same := func(midx, bitmap, graph bool) {
			t.Helper()
			got, err := store.Count(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]int64{}
			for line := range strings.Lines(repo.Git("count-objects", "-v")) {
				key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
				want[key], _ = strconv.ParseInt(value, 10, 64)
			}
			if got.Loose != want["count"] || got.Packed != want["in-pack"] || got.Packs != want["packs"] ||
				got.PackBytes/1024 != want["size-pack"] {
				t.Errorf("%+v, git says %v", got, want)
			}
			if got.MultiPackIndex != midx || got.Bitmap != bitmap || got.CommitGraph != graph {
				t.Errorf("%+v, want %v %v %v", got, midx, bitmap, graph)
			}
		}
		same(false, false, false)
		for i := range 3 {
			for j := range 5 {
				repo.Git("update-ref", "refs/heads/main", repo.Commit(fmt.Sprint(i, j)).String())
			}
			same(i > 0, false, i > 1)
			repo.Git("repack", "-d")
			repo.Git("multi-pack-index", "write")
			if i > 0 {
				repo.Git("commit-graph", "write", "--reachable", "--split")
			}
			same(true, false, i > 0)
		}
		repo.Git("multi-pack-index", "write", "--bitmap")
		same(true, true, true)
	}
}
