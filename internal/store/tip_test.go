package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// checkTip checks that a repository on a node has one tip pack, for a commit. A zero commit means no tip pack.
func (n *gitNode) checkTip(what, path string, want git.ObjectID) {
	n.t.Helper()
	objects := filepath.Join(n.copied(path).Dir, "objects")
	files, err := filepath.Glob(objects + "/tip/*")
	if err != nil || len(files) != 2 && !want.IsZero() || len(files) > 0 && want.IsZero() {
		n.t.Errorf("%s: the tip pack is %v, %v", what, files, err)
	}
	if want.IsZero() {
		return
	}
	tip, err := pack.OpenTip(objects, git.SHA1)
	if err != nil || tip == nil {
		n.t.Fatalf("%s: OpenTip() = %v, %v", what, tip, err)
	}
	defer tip.Close()
	if err := tip.Verify(git.SHA1); err != nil {
		n.t.Errorf("%s: %v", what, err)
	}
	ids, err := pack.After(tip.Path+".idx", git.SHA1, 0)
	if err != nil || ids[0] != want {
		n.t.Errorf("%s: the tip pack is for %v, %v, want %v", what, ids[0], err, want)
	}
	n.copied(path).Git("fsck", "--full", "--strict")
	if got := n.copied(path).Git("count-objects", "-v"); !strings.Contains(got, "garbage: 0") {
		n.t.Errorf("%s: git count-objects says %s", what, got)
	}
}

// A compaction uploads the tip pack with the first new pack, and other nodes download it. A later one replaces it.
func TestTipPack(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a := newGitNode(t, b, receivepack.Options{})
	create(t, a.Store, "x")
	clone := gittest.Init(t)
	push := func(commits int) git.ObjectID {
		t.Helper()
		for range 2 { // with one pack there is nothing to compact
			clone.Edit(commits / 2)
			a.mustPush(clone, "x", "main")
		}
		return clone.ID("main")
	}
	compact := func(n *gitNode) {
		t.Helper()
		if _, err := n.node.Maintain(t.Context(), repoPath("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := CollectGarbage(t.Context(), b, GCOptions{OlderThan: time.Nanosecond}); err != nil {
			t.Fatal(err)
		}
		checkClean(t, b)
		var tips []string
		for _, key := range b.Keys() {
			if strings.Contains(key, ".tip-") {
				tips = append(tips, filepath.Ext(key))
			}
		}
		if slices.Sort(tips); len(tips) > 0 && !slices.Equal(tips, []string{replog.TipIdx, replog.TipPack}) {
			t.Errorf("the bucket has the files %v of tip packs, want those of one", tips)
		}
	}
	first := push(400)
	compact(a)
	a.checkTip("after the first compaction", "x", first)
	newGitNode(t, b, receivepack.Options{}).checkTip("on a new node", "x", first)

	push(10)
	compact(a)
	a.checkTip("after 10 commits", "x", first)
	c := newGitNode(t, b, receivepack.Options{})
	c.checkTip("on another new node", "x", first)

	later := push(80)
	path, made := pack.FindTip(filepath.Join(c.copied("x").Dir, "objects"))
	if err := os.Chtimes(path+".idx", made, made.Add(-2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	compact(c)
	c.checkTip("after 90 commits and two hours", "x", later)
	a.checkTip("on the first node after that", "x", later)
	c.same("x", clone)
	newGitNode(t, b, receivepack.Options{}).checkTip("on a third new node", "x", later)

	out := filepath.Join(t.TempDir(), "export.git")
	if err := Export(t.Context(), b, repoPath("x"), out, nil); err != nil {
		t.Fatal(err)
	}
	exported := gittest.At(t, out)
	exported.Git("fsck", "--full", "--strict")
	if path, _ := pack.FindTip(out + "/objects"); path == "" {
		t.Error("an export has no tip pack")
	}

	push(2)
	var zero git.ObjectID
	run := func(_ context.Context, r *repo.Repo, c places.GitCommand) error {
		_, err := gittest.At(t, r.Dir).TryIn(c.Stdin, c.Args...)
		return err
	}
	if err := a.acquired("x").Maintain(t.Context(), run, places.MaintainOptions{}); err != nil {
		t.Fatal(err)
	}
	newGitNode(t, b, receivepack.Options{}).checkTip("without tip packs", "x", zero)
	if keys := fmt.Sprint(b.Keys()); strings.Contains(keys, ".tip-") {
		t.Errorf("without tip packs, the bucket has %s", keys)
	}
}
