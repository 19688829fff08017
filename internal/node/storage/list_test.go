package storage_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// TestListPages makes trees at random. Pages of any size, one after the other, are the whole list, and that is what is
// served.
func TestListPages(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		r := newRoot(t, storage.Options{Root: dir, Hidden: []string{filepath.Join(dir, "state")}})
		component := rapid.SampledFrom([]string{"a", "a.git", "a-b", "b", "b.git", "c", ".git", "x\ny", "state", "-",
			".packhorse", "é", "\xff"})
		for range rapid.IntRange(0, 12).Draw(rt, "repositories") {
			path := filepath.Join(dir, strings.Join(rapid.SliceOfN(component, 1, 3).Draw(rt, "path"), "/"))
			if os.MkdirAll(path, 0o700) != nil {
				continue
			}
			if rapid.Bool().Draw(rt, "repository") {
				_ = errors.Join(os.Mkdir(path+"/objects", 0o700), os.Mkdir(path+"/refs", 0o700),
					os.WriteFile(path+"/HEAD", []byte("ref: refs/heads/main\n"), 0o600))
			}
		}
		prefix := rapid.SampledFrom([]string{"", "", "a", "a/", "a.", "b/a", "a/b", "../", "a/../b", "/", ".pack"}).Draw(rt,
			"prefix")
		all, err := r.List(t.Context(), places.ListQuery{Prefix: prefix})
		if err != nil {
			rt.Fatal(err)
		}
		if want := served(rt, r, prefix); !slices.Equal(all.Paths, want) || all.Next != "" {
			rt.Fatalf("%q, want %q", all.Paths, want)
		}
		var paged []string
		after := ""
		for {
			limit := rapid.IntRange(1, 3).Draw(rt, "limit")
			page, err := r.List(t.Context(), places.ListQuery{Prefix: prefix, After: after, Limit: limit})
			if err != nil || len(page.Paths) > limit {
				rt.Fatalf("%q after %q: %v", page.Paths, after, err)
			}
			paged = append(paged, page.Paths...)
			if after = page.Next; after == "" {
				break
			}
		}
		if !slices.Equal(paged, all.Paths) {
			rt.Fatalf("pages give %q, the whole is %q", paged, all.Paths)
		}
	})
}

// served is what a walk over everything finds that is served by its own path and not within another repository or
// beside a ".git".
func served(rt *rapid.T, r *root, prefix string) (paths []string) {
	_ = filepath.WalkDir(r.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() || path == r.dir {
			return nil
		}
		below := strings.TrimPrefix(path, r.dir+"/")
		name, err := git.ParseRepoPath(below)
		if err != nil || strings.Contains(below, "\xff") {
			return filepath.SkipDir
		}
		for _, candidate := range []string{below + "/.git", below} {
			if _, err := os.Stat(filepath.Join(r.dir, candidate, "HEAD")); err != nil {
				continue
			}
			if candidate, err := git.ParseRepoPath(candidate); err == nil {
				name = candidate
			}
			if _, err := r.Resolve(context.Background(), name,
				"none"); fault.Message(err) == `no ref "none" in this repository` && strings.HasPrefix(name.String(), prefix) {
				paths = append(paths, name.String())
			}
			return filepath.SkipDir
		}
		return nil
	})
	slices.SortFunc(paths, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	return paths
}

func TestListFollowsLinksToRepositoriesOnly(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	r.repo("real/one.git", "x")
	outside := gittest.Init(t)
	r.do(errors.Join(
		os.Symlink("real/one.git", filepath.Join(r.dir, "alias.git")), os.Symlink("real", filepath.Join(r.dir, "zdir")),
		os.Symlink(outside.Dir, filepath.Join(r.dir, "out.git")), os.Symlink("..", filepath.Join(r.dir, "real/up")),
		os.Symlink("loop", filepath.Join(r.dir, "loop")),
	))
	page, err := r.List(t.Context(), places.ListQuery{})
	if want := []string{"alias.git", "real/one.git"}; err != nil || !slices.Equal(page.Paths, want) {
		t.Errorf("%q, %v; want %q", page.Paths, err, want)
	}
	for _, after := range []string{"..", "/", "a/../b", "a\x00", "a/"} {
		if _, err := r.List(t.Context(), places.ListQuery{After: after}); !fault.Is(err, fault.Invalid) {
			t.Errorf("after %q: %v", after, err)
		}
	}
}
