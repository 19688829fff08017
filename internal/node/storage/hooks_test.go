package storage_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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

// logLines is where a log is written, line by line.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// A node logs which of the repositories that it serves have hooks.
func TestHooksAreLogged(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	r.repo("team/hooked.git", "x")
	r.hook("team/hooked.git/hooks/update")
	r.repo("team/plain.git", "x")
	r.repo("hidden/a.git", "x")
	r.hook("hidden/a.git/hooks/update")
	r.repo(".packhorse/trash/b.git", "x")
	r.hook(".packhorse/trash/b.git/hooks/update")
	gittest.Run(t, "", "", "init", "-q", "-b", "main", filepath.Join(r.dir, "work"))
	r.hook("work/.git/hooks/post-receive")
	r.repo("odd.git", "x").Git("config", "core.hooksPath", "~nobody/x")
	r.do(os.Symlink(filepath.Join(r.dir, "team/hooked.git"), filepath.Join(r.dir, "link.git")))
	r.do(os.Symlink(t.TempDir(), filepath.Join(r.dir, "out")))
	lines := make(logLines, 100)
	n := newRoot(t, storage.Options{Root: r.dir, Hidden: []string{filepath.Join(r.dir, "hidden")},
		Pushes: newPushServer(t), Log: slog.New(slog.NewTextHandler(lines, nil))})
	var line string
	for !strings.Contains(line, "hooks that are not run") {
		select {
		case line = <-lines:
		case <-time.After(time.Minute):
			t.Fatal("the hooks were not logged")
		}
	}
	if want := "hooked=3 repositories=5 complete=true " +
		`examples="[link.git/hooks/update team/hooked.git/hooks/update work/.git/hooks/post-receive]"`; !strings.Contains(
		line, want) {
		t.Errorf("got the line %s, want %s", line, want)
	}
	d, err := n.Describe(t.Context(), r.path("team/hooked"))
	if err != nil || !slices.Equal(d.Hooks, []string{"hooks/update"}) || d.RepositoryHooks != "refuse" {
		t.Errorf("Describe = %+v, %v", d, err)
	}
}
