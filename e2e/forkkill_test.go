package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestForkKills kills commands that fork and rename at random moments. All repositories are complete then, for git too,
// and the same command succeeds afterwards, or says that it has succeeded before.
func TestForkKills(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "repos")
	source := gittest.InitAt(t, filepath.Join(root, "app.git"))
	source.Git("update-ref", "refs/heads/main", source.Commit("x").String())
	run := func(limit time.Duration, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		out, err := exec.CommandContext(ctx, filepath.Join(binDir, "packhorse"),
			append(append([]string{"repo"}, args...), "--root", root)...).CombinedOutput()
		return string(out), err
	}
	const patience = time.Minute
	start := time.Now()
	if out, err := run(patience, "fork", "app", "first"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	usual := time.Since(start)
	killed := 0
	check := func(args []string, accepted string) {
		t.Helper()
		if _, err := run(rand.N(usual)+time.Millisecond, args...); err != nil {
			killed++
		}
		repositories, err := filepath.Glob(filepath.Join(root, "*.git"))
		deep, deepErr := filepath.Glob(filepath.Join(root, "a/b/*.git"))
		if err != nil || deepErr != nil {
			t.Fatal(err, deepErr)
		}
		for _, dir := range append(repositories, deep...) {
			if text := gittest.At(t, dir).Git("log", "--format=%s", "main"); text != "x" {
				t.Errorf("after %q: %s has the commits %q", args, dir, text)
			}
		}
		if out, err := run(patience, args...); err != nil && !strings.Contains(out, accepted) {
			t.Errorf("%q after a kill: %v\n%s", args, err, out)
		}
	}
	for i := range 12 {
		fork := fmt.Sprint("fork", i)
		check([]string{"fork", "app", fork}, "already exists")
		check([]string{"rename", fork, "a/b/" + fork}, "no repository "+fork+" here")
		dir := filepath.Join(root, "a/b", fork+".git")
		gittest.At(t, dir).Git("fsck", "--strict")
		if text, err := os.ReadFile(filepath.Join(dir, "objects/info/alternates")); err != nil ||
			!strings.HasPrefix(string(text), "../../../../.packhorse/") {
			t.Errorf("%s has the alternates %q, error = %v", fork, text, err)
		}
	}
	t.Logf("%d of 24 commands were killed", killed)
}
