package search_test

import (
	"bytes"
	"crypto/sha1"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestPurge removes shards that have the content of a file which was in an older commit, also if the repository changes
// hands meanwhile.
func TestPurge(t *testing.T) {
	t.Parallel()
	s := newSource()
	const secret = "the secret is hunter2\n"
	s.push("app.git", main, files{"f": "needle", "secret": secret})
	s.push("app-other.git", main, files{"f": secret})
	o := options(t, s)
	e := start(t, o)
	await(t, e, "hunter2", has(2))
	s.push("app.git", main, files{"f": "needle"})
	await(t, e, "hunter2", has(1))
	sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(secret), secret))
	ids := []git.ObjectID{git.RawObjectID(sum[:])}
	copies := func(path string) []string {
		t.Helper()
		list, err := e.Copies(t.Context(), repoPath(path), ids)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	if list := copies("app.git"); len(list) != 1 {
		t.Fatalf("%q has the secret, want the shard of the older commit", list)
	}
	if err := e.Purge(t.Context(), repoPath("app.git"), "1"); err != nil { // the last characters of the incarnation
		t.Fatal(err)
	}
	if list := copies("app.git"); len(list) != 1 {
		t.Errorf("%q has the secret: shards after the purge with a mark were removed", list)
	}
	if err := e.Purge(t.Context(), repoPath("app.git"), ""); err != nil {
		t.Fatal(err)
	}
	if list := copies("app.git"); len(list) > 0 {
		t.Errorf("%q have the secret after the purge", list)
	}
	if list := copies("app-other.git"); len(list) != 1 {
		t.Errorf("%q has the secret, want the shard of the other repository", list)
	}
	s.push("app-other.git", main, files{"f": "needle"})
	if err := e.Purge(t.Context(), repoPath("app-other.git"), "new mark"); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(o.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if text, _ := os.ReadFile(path); bytes.Contains(text, []byte("hunter2")) {
			t.Errorf("%s has the secret", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	await(t, e, "needle", has(2))
	if err := e.Purge(t.Context(), repoPath("unknown.git"), ""); err != nil {
		t.Errorf("a repository without an index: %v", err)
	}
	// A purge while no server ran is noticed by the incarnation.
	s.push("app.git", main, files{"f": "needle", "secret": secret})
	await(t, e, "hunter2", has(1))
	s.mu.Lock()
	s.repos[repoPath("app.git")].incarnation += "mark"
	s.mu.Unlock()
	s.push("app.git", main, files{"f": "needle"})
	gittest.WaitFor(t, "the removal of the shards", func() bool { return len(copies("app.git")) == 0 })
	await(t, e, "needle", has(2))
}
