package reaper

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// TestOpenGroup has directories like those of the kernel, and others.
func TestOpenGroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := OpenGroup(filepath.Join(dir, "none", "below"), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("opened a group below a directory that does not exist, want an error")
	}
	if _, err := OpenGroup(dir, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("opened a group in a directory that is not a cgroup, want an error")
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	one, err := OpenGroup(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	two, err := OpenGroup(dir, slog.New(slog.DiscardHandler))
	if err != nil || one.dir == two.dir {
		t.Fatalf("two groups in %s and %s, %v", one.dir, two.dir, err)
	}
	for _, g := range []*Group{one, two, nil} {
		if g.Close(); g != nil {
			if _, err := os.Stat(g.dir); err == nil {
				t.Errorf("%s was left", g.dir)
			}
		}
	}
	if dir := (*Group)(nil).Directory(); dir != nil {
		t.Errorf("the directory of no group is %s", dir.Name())
	}
}
