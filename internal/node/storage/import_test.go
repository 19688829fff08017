package storage_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

func newImporter(t *testing.T) *root {
	t.Helper()
	limits := process.Limits{Slots: 2, Queue: 100}
	runner, err := process.New(process.Options{TempDir: t.TempDir(),
		Classes: map[process.Class]process.Limits{places.ClassUpstream: limits, places.ClassManage: limits}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	return newRoot(t, storage.Options{Runner: runner})
}

// TestImport brings in repositories of several kinds, from paths and bundles, and compares them with what they were.
func TestImport(t *testing.T) {
	t.Parallel()
	r := newImporter(t)
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		from := gittest.Init(t, "--object-format="+format.String())
		from.Git("update-ref", "refs/heads/main", from.Commit("x").String())
		history(from, 1)
		from.Git("update-ref", "refs/merge-requests/1/head", "main~1")
		from.Git("symbolic-ref", "HEAD", "refs/heads/trunk")
		from.Git("update-ref", "refs/heads/trunk", "main~2")
		from.Git("config", "hook.x.command", "/bin/false")
		bundle := filepath.Join(t.TempDir(), "all.bundle")
		from.Git("bundle", "create", "-q", bundle, "--all", "HEAD")
		borrows := filepath.Join(t.TempDir(), "borrows.git")
		gittest.Run(t, "", "", "clone", "-q", "--mirror", "--shared", from.Dir, borrows)
		for name, source := range map[string]string{"path": from.Dir, "bundle": bundle, "borrows": borrows} {
			name += "/" + format.String()
			var said atomic.Int32
			d, err := r.Import(t.Context(), r.path(name), places.ImportOptions{Source: source, Check: true,
				Progress: func([]byte) { said.Add(1) }})
			r.do(err)
			made := gittest.At(t, filepath.Join(r.dir, name+".git"))
			if !slices.Equal(made.Objects(), from.Objects()) || made.Git("for-each-ref") != from.Git("for-each-ref") ||
				made.Git("symbolic-ref", "HEAD") != "refs/heads/trunk" {
				t.Errorf("%s is another repository", name)
			}
			if d.Format != format || !d.Objects.Bitmap || !d.Objects.CommitGraph || d.Objects.Packs != 1 || said.Load() == 0 {
				t.Errorf("%s: %+v, %d times progress", name, d, said.Load())
			}
			if config := made.Git("config", "--list", "--local"); strings.Contains(config, "remote") ||
				strings.Contains(config, "hook") || strings.Contains(config, "include") {
				t.Errorf("%s has the configuration %s", name, config)
			}
			if _, err := os.Stat(filepath.Join(made.Dir, "objects/info/alternates")); err == nil {
				t.Errorf("%s borrows objects", name)
			}
		}
	}
	empty := gittest.Init(t)
	_, err := r.Import(t.Context(), r.path("empty"), places.ImportOptions{Source: empty.Dir, Check: true})
	r.do(err)
	if left, _ := filepath.Glob(r.dir + "/.packhorse/new/*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// A failed import leaves nothing behind.
func TestImportRefuses(t *testing.T) {
	t.Parallel()
	r := newImporter(t)
	good := gittest.Init(t)
	good.Git("update-ref", "refs/heads/main", good.Commit("x").String())
	bad := gittest.Init(t)
	tree := bad.GitIn("100644 blob "+bad.GitIn("x", "hash-object", "-w", "--stdin")+"\t.git\n", "mktree")
	bad.Git("update-ref", "refs/heads/main", bad.Git("commit-tree", "-m", "x", tree))
	damaged := gittest.Init(t)
	damaged.Git("update-ref", "refs/heads/main", damaged.Commit("x").String())
	blob := damaged.Git("rev-parse", "main:file")
	r.do(os.Remove(filepath.Join(damaged.Dir, "objects", blob[:2], blob[2:])))
	cut := filepath.Join(t.TempDir(), "cut.bundle")
	good.Git("bundle", "create", "-q", cut, "--all")
	text, err := os.ReadFile(cut)
	r.do(err)
	r.do(os.WriteFile(cut, text[:len(text)-30], 0o600))
	marker := filepath.Join(t.TempDir(), "ran")
	r.repo("taken.git", "x")
	for source, kind := range map[string]fault.Kind{
		bad.Dir: fault.Internal, damaged.Dir: fault.Internal, cut: fault.Internal,
		"ext::sh -c touch% " + marker: fault.Invalid, "fd::17": fault.Invalid, "file://" + good.Dir: fault.Invalid,
		"git://127.0.0.1/x":             fault.Invalid,
		"--upload-pack=touch " + marker: fault.Invalid, "relative": fault.Invalid,
		"http://user:secret@127.0.0.1/x": fault.Invalid,
		"ssh://-oProxyCommand=touch/x":   fault.Invalid, "https:///x": fault.Invalid,
		"http://127.0.0.1:1/x\ny": fault.Invalid,
		"http://127.0.0.1:1/x":    fault.Internal, "/nowhere": fault.NotFound, "": fault.Invalid,
	} {
		_, err := r.Import(t.Context(), r.path("new"), places.ImportOptions{Source: source, Check: true})
		if fault.KindOf(err) != kind || strings.Contains(err.Error(), "secret@") {
			t.Errorf("from %q: %v, %v", source, fault.KindOf(err), err)
		}
	}
	if _, err := r.Import(t.Context(), r.path("taken"), places.ImportOptions{Source: good.Dir}); !fault.Is(err,
		fault.Exists) {
		t.Error(err)
	}
	if _, err := r.Import(t.Context(), r.path("taken/below"), places.ImportOptions{Source: good.Dir}); !fault.Is(err,
		fault.Exists) {
		t.Error(err)
	}
	if _, err := r.Import(t.Context(), r.path("unchecked"), places.ImportOptions{Source: bad.Dir}); err != nil {
		t.Error("without a check: ", err)
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("a program ran")
	}
	if found, _ := filepath.Glob(r.dir + "/new*"); len(found) > 0 {
		t.Errorf("there is %q", found)
	}
	if left, _ := filepath.Glob(r.dir + "/.packhorse/new/*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
