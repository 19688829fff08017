package places

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestRenameAfterACrash ends a renaming before each step, as kill -9 does. The repository is complete at one of the
// paths, also for git, and the next node restores the rest.
func TestRenameAfterACrash(t *testing.T) {
	t.Parallel()
	errCrash := errors.New("the process was killed")
	for step, isMoved := range map[string]bool{"note": false, "rename": false, "sync": true, "finish": true} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := newTestRoot(t, dir)
			r.repo("app.git", "x")
			r.do(r.Fork(t.Context(), r.path("app"), r.path("fork.git"), ForkOptions{}))
			hasCrashed := false
			r.failPoint = func(at string) error {
				if hasCrashed = hasCrashed || at == step; hasCrashed {
					return errCrash
				}
				return nil
			}
			if err := r.Rename(t.Context(), r.path("fork"), r.path("a/b/fork.git")); !errors.Is(err, errCrash) {
				t.Fatalf("Rename = %v", err)
			}
			name := map[bool]string{false: "fork.git", true: "a/b/fork.git"}[isMoved]
			if text := gittest.At(t, filepath.Join(dir, name)).Git("log", "--format=%s", "main"); text != "x" {
				t.Errorf("git log before the next start: %q", text)
			}
			next := newTestRoot(t, dir)
			text, err := os.ReadFile(filepath.Join(dir, name, "objects/info/alternates"))
			want, _ := filepath.Rel(filepath.Join(dir, name, "objects"), networkOf(t, dir))
			if err != nil || string(text) != want+"\n" {
				t.Errorf("alternates are %q, want %q, error = %v", text, want, err)
			}
			gittest.At(t, filepath.Join(dir, name)).Git("fsck", "--strict")
			if notes, _ := filepath.Glob(filepath.Join(dir, ".packhorse/moves/*")); len(notes) > 0 {
				t.Errorf("notes are left: %q", notes)
			}
			from := next.path(name)
			r.do(next.Rename(t.Context(), from, next.path("end.git")))
		})
	}
}

func networkOf(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, ".packhorse/networks/*/objects"))
	if err != nil || len(found) != 1 {
		t.Fatalf("networks: %q, %v", found, err)
	}
	return found[0]
}
