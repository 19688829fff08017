package storage_test

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

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

// TestListFollowsOtherPrograms changes a tree at random, as other programs do. A node that keeps results of walks lists
// the same as one that has just started.
func TestListFollowsOtherPrograms(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	kept := newRoot(t, storage.Options{Root: dir})
	path := func() string {
		parts := []string{dir}
		for range 1 + random.IntN(3) {
			parts = append(parts, []string{"a", "b", "c.git", "d", ".git"}[random.IntN(5)])
		}
		return filepath.Join(parts...)
	}
	repository := func(at string) {
		_ = errors.Join(os.MkdirAll(at+"/objects", 0o700), os.MkdirAll(at+"/refs", 0o700),
			os.WriteFile(at+"/HEAD", []byte("ref: refs/heads/main\n"), 0o600))
	}
	for step := range 400 {
		at := path()
		switch random.IntN(8) {
		case 0, 1, 2:
			repository(at)
		case 3:
			_ = os.MkdirAll(at, 0o700)
		case 4:
			_ = os.RemoveAll(at)
		case 5:
			_ = os.Rename(at, path())
		case 6:
			_ = os.Remove(at + "/" + []string{"HEAD", "refs", "objects"}[random.IntN(3)])
		case 7:
			_ = os.Symlink(path(), at)
		}
		got, err := kept.List(t.Context(), places.ListQuery{})
		fresh := newRoot(t, storage.Options{Root: dir})
		want, wantErr := fresh.List(t.Context(), places.ListQuery{})
		if err != nil || wantErr != nil || !slices.Equal(got.Paths, want.Paths) {
			t.Fatalf("step %d: %q, want %q (%v, %v)", step, got.Paths, want.Paths, err, wantErr)
		}
		if err := fresh.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSummaries compares summaries with descriptions after each change, also when a summary is in memory.
func TestSummaries(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	repo := gittest.InitAt(t, filepath.Join(r.dir, "app.git"))
	past := func() { // so that the files are old enough for their summary to be kept
		at := time.Now().Add(-time.Minute)
		_ = filepath.WalkDir(r.dir, func(path string, _ fs.DirEntry, _ error) error { return os.Chtimes(path, at, at) })
	}
	id := repo.Commit("x").String()
	for _, change := range []func(){
		func() {},
		func() { repo.Git("update-ref", "refs/heads/main", id) },
		func() { repo.Git("update-ref", "refs/heads/a/b/c", id) },
		func() { repo.Git("pack-refs", "--all") },
		func() { repo.Git("repack", "-adq") },
		func() { repo.Git("config", "gitweb.owner", "ann") },
		func() { repo.Git("config", "transfer.hideRefs", "refs/heads/a") },
		func() { repo.Git("symbolic-ref", "HEAD", "refs/heads/none") },
		func() { _ = os.WriteFile(filepath.Join(repo.Dir, "description"), []byte("text\n"), 0o600) },
		func() { repo.Git("update-ref", "-d", "refs/heads/main") },
	} {
		change()
		want, err := r.Describe(t.Context(), r.path("app.git"))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got, err := r.Summarize(t.Context(), []string{"app.git", "none.git"}, false)
			if err != nil || len(got) != 1 || got[0].Refs != want.Refs || got[0].Head != want.Head ||
				!reflect.DeepEqual(got[0].Settings, want.Settings) || got[0].Size != want.Objects.PackBytes {
				t.Errorf("%+v, want %+v, error = %v", got, want, err)
			}
			past()
		}
	}
	if err := os.RemoveAll(repo.Dir); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Summarize(t.Context(), []string{"app.git"}, false); err != nil || len(got) != 0 {
		t.Errorf("a removed repository: %v, %v", got, err)
	}
}
