package repo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/graph"
)

func TestAllows(t *testing.T) {
	t.Parallel()
	served := Options{Root: "/srv", Hidden: []string{"/srv/state", "/cache"}}
	for path, want := range map[string]bool{
		"/srv": true, "/srv/a.git": true, "/srv/state": false, "/srv/state/a": false, "/srv/stately": true,
		"/srv2": false, "/": false, "/cache/a": false, "/etc": false,
	} {
		if served.Allows(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
	if !(Options{}).Allows("/etc") {
		t.Error("Allows(/etc) = false without a root, want true")
	}
}

// If a root cannot be resolved, paths below it do not count as outside.
func TestRootThatCannotBeFollowed(t *testing.T) {
	t.Parallel()
	made := gittest.Init(t)
	loop := filepath.Join(t.TempDir(), "root")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	_, err := Open(made.Dir, Options{Root: loop})
	if !fault.Is(err, fault.Unavailable) || strings.Contains(fault.Message(err), loop) {
		t.Errorf("%v, want Unavailable without a path in the message", err)
	}
	link := filepath.Join(t.TempDir(), "root")
	if err := os.Symlink(filepath.Dir(made.Dir), link); err != nil {
		t.Fatal(err)
	}
	r, err := Open(made.Dir, Options{Root: link})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Refs.Snapshot(t.Context()); err != nil {
		t.Errorf("a root that is a link: %v", err)
	}
}

// TestFilesThatAreLinks replaces each file by a link. A link within the root works like its target. A link to the
// outside is refused, and a commit-graph there is ignored.
func TestFilesThatAreLinks(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"config": "", "config.worktree": "[x]\n", "commondir": ".\n", "shallow": strings.Repeat("a1", 20) + "\n",
		"objects/info/commit-graph": "",
	} {
		root := t.TempDir()
		made := gittest.InitAt(t, filepath.Join(root, "app.git"))
		head := made.Commit("x")
		made.Git("update-ref", "HEAD", head.String())
		made.Git("commit-graph", "write", "--reachable")
		made.Git("config", "extensions.worktreeConfig", "true")
		path := filepath.Join(made.Dir, name)
		if text != "" {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, dir := range []string{root, t.TempDir()} {
			inside, target := dir == root, filepath.Join(dir, "moved")
			real, err := filepath.EvalSymlinks(path)
			if err := errors.Join(err, os.Rename(real, target), os.RemoveAll(path), os.Symlink(target, path)); err != nil {
				t.Fatal(err)
			}
			err = visit(t, made.Dir, Options{Root: root})
			if name == "objects/info/commit-graph" {
				if used := generation(t, made, root) != graph.NoGeneration; err != nil || used != inside {
					t.Errorf("%s within the root %v: used %v, %v", name, inside, used, err)
				}
				continue
			}
			if inside && err != nil || !inside && (!fault.Is(err, fault.Denied) ||
				strings.Contains(fault.Message(err), target)) {
				t.Errorf("%s within the root %v: %v", name, inside, err)
			}
		}
	}
}

// generation is that of HEAD.
func generation(t *testing.T, made *gittest.Repo, root string) uint64 {
	t.Helper()
	r, err := Open(made.Dir, Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c, err := r.Graph.Commit(made.ID("HEAD"))
	if err != nil {
		t.Fatal(err)
	}
	return c.Generation
}
