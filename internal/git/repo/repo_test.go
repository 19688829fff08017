package repo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// opened is a new repository and our view of it, until the test ends.
func opened(t *testing.T) (*gittest.Repo, *Repo) {
	t.Helper()
	made := gittest.Init(t)
	r, err := Open(made.Dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return made, r
}

func TestShallowFile(t *testing.T) {
	t.Parallel()
	made, r := opened(t)
	id := strings.Repeat("a1", 20)
	for name, test := range map[string]struct {
		text string
		ids  int // -1: damaged
	}{
		"empty": {"", 0}, "two": {id + "\n" + strings.Repeat("b", 40) + "\n", 2}, "no newline": {id, 1},
		"blank line": {id + "\n\n", -1},
		"cut off":    {id[:39] + "\n", -1}, "of the other format": {strings.Repeat("a", 64) + "\n", -1},
		"no hex": {strings.Repeat("g", 40), -1},
	} {
		if err := os.WriteFile(filepath.Join(made.Dir, "shallow"), []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		ids, err := r.Shallow()
		if test.ids < 0 && !fault.Is(err, fault.Corrupt) || test.ids >= 0 && (err != nil || len(ids) != test.ids) {
			t.Errorf("%s: %v, %v", name, ids, err)
		}
	}
	if err := os.Remove(filepath.Join(made.Dir, "shallow")); err != nil {
		t.Fatal(err)
	}
	if ids, err := r.Shallow(); ids != nil || err != nil {
		t.Errorf("without the file: %v, %v", ids, err)
	}
}

// TestPipesInsteadOfFiles would hang if a file were opened without O_NONBLOCK, because the pipes have no writer.
func TestPipesInsteadOfFiles(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"config", "config.worktree", "shallow", "packed-refs", "objects/info/alternates",
		"objects/info/commit-graph"} {
		made := gittest.Init(t)
		made.Git("config", "extensions.worktreeConfig", "true")
		path := filepath.Join(made.Dir, name)
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		err := visit(t, made.Dir, Options{})
		if name == "objects/info/commit-graph" {
			if err != nil {
				t.Errorf("%s: %v; want it to be passed over", name, err)
			}
			continue
		}
		if !fault.Is(err, fault.Corrupt) || strings.Contains(fault.Message(err), made.Dir) {
			t.Errorf("%s: %v, want Corrupt without a path in the message", name, err)
		}
	}
}

// visit opens a repository and reads everything except for objects.
func visit(t *testing.T, dir string, o Options) error {
	t.Helper()
	r, err := Open(dir, o)
	if err != nil {
		return err
	}
	defer r.Close()
	_, shallowErr := r.Shallow()
	_, refsErr := r.Refs.Snapshot(t.Context())
	return errors.Join(r.Refresh(), shallowErr, refsErr)
}

// A config that changes in place is seen, though inode and size stay and it happens within one tick of the clock or the
// time of modification is put back.
func TestConfigThatChangesInPlace(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"config", worktreeFile} {
		made := gittest.Init(t)
		config := filepath.Join(made.Dir, name)
		text := "[core]\n\trepositoryFormatVersion = 0\n\tbare = true\n[extensions]\n\tworktreeConfig = true\n[x]\n\ty = "
		made.Git("config", "extensions.worktreeConfig", "true")
		old := time.Now().Add(-time.Hour)
		for i := range 50 {
			setConfig := func(value string) {
				if err := os.WriteFile(config, []byte(text+value+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				if i%2 == 1 {
					if err := os.Chtimes(config, old, old); err != nil {
						t.Fatal(err)
					}
				}
			}
			setConfig("1")
			r, err := Open(made.Dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if !r.Fresh(made.Dir) || !r.Fresh(made.Dir) {
				t.Errorf("%s, round %d: not fresh though nothing changed", name, i)
			}
			setConfig("2")
			if r.Fresh(made.Dir) {
				t.Errorf("%s, round %d: fresh though the config changed", name, i)
			}
			r.Close()
		}
		r, err := Open(made.Dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := os.Remove(config); err != nil {
			t.Fatal(err)
		}
		if r.Fresh(made.Dir) {
			t.Errorf("fresh though %s is gone", name)
		}
	}
}

// A commit-graph that is cut off costs time, no request.
func TestCommitGraphCutOff(t *testing.T) {
	t.Parallel()
	made := gittest.Random(t, 3, gittest.Shape{Commits: 20})
	made.Git("commit-graph", "write", "--reachable")
	r, err := Open(made.Dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	file := filepath.Join(made.Dir, "objects/info/commit-graph")
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{1200, 100, 0} {
		if err := os.Truncate(file, size); err != nil {
			t.Fatal(err)
		}
		if err := r.Refresh(); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		head := made.ID("HEAD")
		if c, err := r.Graph.Commit(head); c.ID != head || err != nil {
			t.Errorf("%d bytes: %v, %v", size, c, err)
		}
	}
}

// A directory that replaces a deleted one is another one, even with the same inode number.
func TestIdentityOfRecreatedDirectory(t *testing.T) {
	t.Parallel()
	for name, parent := range map[string]string{"temporary directory": t.TempDir(), "memory": "/dev/shm"} {
		parent, err := os.MkdirTemp(parent, "identity")
		if err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		t.Cleanup(func() { os.RemoveAll(parent) })
		dir := filepath.Join(parent, "repo.git")
		seen := map[string]bool{}
		for range 50 {
			gittest.InitAt(t, dir)
			id, err := identity(dir)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := identity(dir); again != id || err != nil {
				t.Errorf("%s: %s became %s, %v", name, id, again, err)
			}
			if seen[id] {
				t.Errorf("%s: %s for two directories", name, id)
			}
			seen[id] = true
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := identity(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("of nothing: %v", err)
	}
}

// Extensions that do not change how objects and refs are stored do not make a repository unreadable. Unknown ones may
// change anything.
func TestExtensions(t *testing.T) {
	t.Parallel()
	for extension, isKnown := range map[string]bool{
		"noop": true, "noop-v1": true, "partialClone": true, "preciousObjects": true, "worktreeConfig": true,
		"relativeWorktrees": true, "submodulePathConfig": true, "compatObjectFormat": true, "storeObjectsBackwards": false,
	} {
		made := gittest.Init(t)
		made.Git("config", "core.repositoryFormatVersion", "1")
		made.Git("config", "extensions."+extension, "true")
		r, err := Open(made.Dir, Options{})
		if err == nil {
			r.Close()
		}
		if text := fault.Message(err); isKnown && err != nil || !isKnown && (!fault.Is(err, fault.Unavailable) ||
			!strings.Contains(text, strings.ToLower(extension))) {
			t.Errorf("%s: %v", extension, err)
		}
	}
}
