package storage_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// hook makes a hook that can be run.
func (r *root) hook(path string) {
	r.t.Helper()
	path = filepath.Join(r.dir, path)
	r.do(os.MkdirAll(filepath.Dir(path), 0o755))
	r.do(os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
}

// Repositories with hooks are found wherever they are, those within working trees too, and each once.
func TestFindHooks(t *testing.T) {
	t.Parallel()
	r := newPushed(t)
	r.repo("team/hooked.git", "x")
	r.hook("team/hooked.git/hooks/update")
	r.repo("team/plain.git", "x")
	r.repo("hidden/a.git", "x")
	r.hook("hidden/a.git/hooks/update")
	r.repo(".packhorse/trash/b.git", "x")
	r.hook(".packhorse/trash/b.git/hooks/update")
	work := filepath.Join(r.dir, "work")
	gittest.Run(t, "", "", "init", "-q", "-b", "main", work)
	gittest.At(t, work).Git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add",
		filepath.Join(r.dir, "team/plain.git"), "sub")
	r.hook("work/.git/modules/sub/hooks/post-receive")
	r.repo("odd.git", "x").Git("config", "core.hooksPath", "~nobody/x")
	r.do(os.Symlink(filepath.Join(r.dir, "team/hooked.git"), filepath.Join(r.dir, "link.git")))
	r.do(os.Symlink(t.TempDir(), filepath.Join(r.dir, "out")))
	var found []string
	find := func(ctx context.Context) (int, error) {
		return storage.FindHooks(ctx, r.dir, []string{filepath.Join(r.dir, "hidden")}, func(h storage.HookedRepository) {
			names := []string{h.Path}
			for _, hook := range h.Hooks {
				names = append(names, hook.Name)
			}
			if h.Err != nil {
				names = append(names, "?")
			}
			found = append(found, strings.Join(names, " "))
		})
	}
	looked, err := find(t.Context())
	slices.Sort(found)
	want := []string{"link.git hooks/update", "odd.git ?", "team/hooked.git hooks/update",
		"work/.git/modules/sub hooks/post-receive"}
	if err != nil || !slices.Equal(found, want) || looked != 6 {
		t.Errorf("of %d, %v\nfound are %q,\nwant      %q", looked, err, found, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := find(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
	d, err := r.Describe(t.Context(), r.path("team/hooked"))
	if err != nil || !slices.Equal(d.Hooks, []string{"hooks/update"}) || d.RepositoryHooks != "refuse" {
		t.Errorf("described as %+v, %v", d, err)
	}
}
