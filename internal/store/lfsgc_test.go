package store

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node/gc"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// collectLFS collects in app with a grace of an hour, and returns the numbers of objects that were removed and freed.
func (n *gitNode) collectLFS(isDryRun bool) (removed, freed int64, err error) {
	path := repoPath("app.git")
	listed := int64(0)
	result, err := n.node.LFSKeeper().Collect(n.t.Context(), gc.CollectOptions{Path: &path, DryRun: isDryRun,
		Grace: time.Hour, Removed: func(o gc.Removed) { listed++ }})
	if listed != result.Removed.Objects {
		n.t.Errorf("LFSCollect lists %d removed objects, and counts %d", listed, result.Removed.Objects)
	}
	return result.Removed.Objects, result.Freed.Objects, err
}

func (n *gitNode) wantCollected(removed, freed int64) {
	n.t.Helper()
	gotRemoved, gotFreed, err := n.collectLFS(false)
	if err != nil || gotRemoved != removed || gotFreed != freed {
		n.t.Errorf("LFSCollect = %d removed, %d freed, %v, want %d, %d", gotRemoved, gotFreed, err, removed, freed)
	}
}

func (n *gitNode) wantState(want lfs.State, o lfs.Object) {
	n.t.Helper()
	if states, err := n.states("app", true, o); err != nil || states[0] != want {
		n.t.Errorf("state = %v, %v, want %v", states, err, want)
	}
}

// lfsNames returns the keys of the bucket's LFS objects of a repository, below its prefix.
func lfsNames(b *buckettest.Memory, id string) (names []string) {
	for _, key := range b.Keys() {
		if name, ok := strings.CutPrefix(key, "repos/"+id+"/lfs/"); ok {
			names = append(names, name)
		}
	}
	return names
}

// lfsWorld has two nodes, and a repository with an object that main names, and with old garbage.
type lfsWorld struct {
	*buckettest.Memory
	a, c           *gitNode
	id             string
	named, garbage lfs.Object
}

func newLFSWorld(t *testing.T) lfsWorld {
	t.Helper()
	b := newBucket(t)
	w := lfsWorld{Memory: b, a: newGitNode(t, b, receivepack.Options{}), c: newGitNode(t, b, receivepack.Options{})}
	create(t, w.a.Store, "app")
	w.id = w.a.id("app")
	clone := newClone(t)
	w.named = commitPointer(clone, "named")
	w.a.mustUpload("app", "named")
	w.a.mustPush(clone, "app", "main")
	w.garbage = w.a.mustUpload("app", "garbage")
	b.Age(2 * time.Hour)
	return w
}

// pushGarbage pushes a commit that names the garbage.
func (w *lfsWorld) pushGarbage(t *testing.T, n *gitNode) {
	t.Helper()
	clone := newClone(t)
	commitPointer(clone, "garbage")
	n.mustPush(clone, "app", "main:again")
}

// wantGarbage expects that a node without copies has the garbage.
func (w *lfsWorld) wantGarbage(t *testing.T) {
	t.Helper()
	n := newGitNode(t, w.Memory, receivepack.Options{})
	if got, _, err := n.download("app", w.garbage); err != nil || got != "garbage" {
		t.Errorf("download = %q, %v, want the object", got, err)
	}
}

// Any node removes an old object that no pointer file names, and frees it after the grace. Others stay.
func TestLFSCollect(t *testing.T) {
	t.Parallel()
	w := newLFSWorld(t)
	w.a.mustUpload("app", "young")
	before := repositoryKeys(w.Memory)
	if removed, freed, err := w.c.collectLFS(true); err != nil || removed != 1 || freed != 0 ||
		!slices.Equal(repositoryKeys(w.Memory), before) {
		t.Errorf("dry run = %d removed, %d freed, %v, want 1 that stays", removed, freed, err)
	}
	w.c.wantCollected(1, 0)
	if used, err := (lfsObjects{w.c.place("app")}).Usage(); err != nil || used != int64(len("named")+len("young")) {
		t.Errorf("usage = %d, %v, want that of two objects", used, err)
	}
	report, err := Check(t.Context(), w.Memory, CheckOptions{Deep: true})
	if err != nil || report.Unnamed != 1 || len(report.Problems) > 0 {
		t.Errorf("Check = %+v, %v, want one unnamed object", report, err)
	}
	w.a.wantCollected(0, 0)
	w.Age(30 * time.Minute)
	w.a.wantCollected(0, 0)
	w.Age(time.Hour)
	w.a.wantCollected(1, 1) // young is old now
	if _, err := os.Stat(filepath.Join(w.a.options.Cache.Root, w.id+".git", lfsFile(w.garbage.OID))); !os.IsNotExist(err) {
		t.Errorf("the local copy: %v, want none", err)
	}
	w.c.wantState(lfs.Missing, w.garbage)
	w.Age(2 * time.Hour)
	w.c.wantCollected(0, 1)
	if got, want := lfsNames(w.Memory, w.id), []string{w.named.OID.String()}; !slices.Equal(got, want) {
		t.Errorf("the bucket has %q, want %q", got, want)
	}
}

// place returns a repository until the test ends.
func (n *gitNode) place(path string) *place {
	n.t.Helper()
	p, err := n.Acquire(n.t.Context(), repoPath(path))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(p.Release)
	return p.(*place)
}

// An object that was set aside comes back for clients that ask for it. Later collections delete the copy only.
func TestLFSComesBack(t *testing.T) {
	t.Parallel()
	many := make([]lfs.Object, 0, maxLFSLookups+2)
	for i := range maxLFSLookups + 1 {
		many = append(many, lfsObjectOf(fmt.Sprint(i)))
	}
	for name, ask := range map[string]func(t *testing.T, n *gitNode, w *lfsWorld){
		"batch": func(_ *testing.T, n *gitNode, w *lfsWorld) { n.wantState(lfs.Present, w.garbage) },
		"large batch": func(t *testing.T, n *gitNode, w *lfsWorld) {
			states, err := n.states("app", false, append(many, w.garbage)...)
			if err != nil || states[len(many)] != lfs.Present {
				t.Errorf("%v, want present", err)
			}
		},
		"download": func(t *testing.T, n *gitNode, w *lfsWorld) {
			if got, _, err := n.download("app", w.garbage); err != nil || got != "garbage" {
				t.Errorf("download = %q, %v, want the object", got, err)
			}
		},
		"upload": func(_ *testing.T, n *gitNode, w *lfsWorld) { n.mustUpload("app", "garbage") },
		"push":   func(t *testing.T, n *gitNode, w *lfsWorld) { w.pushGarbage(t, n) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newLFSWorld(t)
			w.c.wantCollected(1, 0)
			w.Age(2 * time.Hour)
			ask(t, newGitNode(t, w.Memory, receivepack.Options{}), &w)
			if name != "push" {
				w.pushGarbage(t, w.c)
			}
			w.Age(30 * time.Minute)
			w.c.wantCollected(0, 0)
			want := []string{w.named.OID.String(), w.garbage.OID.String()}
			slices.Sort(want)
			if got := lfsNames(w.Memory, w.id); !slices.Equal(got, want) {
				t.Errorf("the bucket has %q, want %q", got, want)
			}
			w.wantGarbage(t)
		})
	}
}

// A push that relies on an earlier answer names an object that was set aside meanwhile. The next collection brings it
// back, also on a node that need not look for pushes of others.
func TestLFSPushAfterAnEarlierAnswer(t *testing.T) {
	t.Parallel()
	w := newLFSWorld(t)
	w.a.wantState(lfs.Present, w.garbage)
	stale := newGitNode(t, w.Memory, receivepack.Options{}, func(o *Options) { o.MaxStaleness = time.Hour })
	stale.wantCollected(1, 0)
	w.a.noteSizes("app", w.garbage)
	w.pushGarbage(t, w.a)
	if got := lfsNames(w.Memory, w.id); slices.Contains(got, w.garbage.OID.String()) {
		t.Fatalf("the bucket has %q, want that the push did not look", got)
	}
	w.Age(2 * time.Hour)
	stale.wantCollected(0, 0)
	w.wantGarbage(t)
	if got := lfsNames(w.Memory, w.id); len(got) != 2 {
		t.Errorf("the bucket has %q, want two objects", got)
	}
}

// noteSizes lets a node remember that the bucket has an object.
func (n *gitNode) noteSizes(path string, o lfs.Object) {
	lfsObjects{n.place(path)}.keepSize(o.OID, o.Size)
}

// A node that remembers an object which was set aside, downloads it.
func TestLFSDownloadAfterAnEarlierAnswer(t *testing.T) {
	t.Parallel()
	w := newLFSWorld(t)
	n := newGitNode(t, w.Memory, receivepack.Options{})
	n.wantState(lfs.Present, w.garbage)
	w.c.wantCollected(1, 0)
	if got, _, err := n.download("app", w.garbage); err != nil || got != "garbage" {
		t.Errorf("download = %q, %v, want the object", got, err)
	}
}

// stopAt lets a collection stop before its first operation on an object, until resume is called.
func (w *lfsWorld) stopAt(operation string, o lfs.Object) (stopped <-chan struct{}, resume func()) {
	at, goOn := make(chan struct{}), make(chan struct{})
	var others atomic.Bool
	key := "repos/" + w.id + "/lfs/" + o.OID.String()
	w.SetHook(func(op, k string) error {
		if op == operation && k == key && !others.Swap(true) {
			close(at)
			<-goOn
		}
		return nil
	})
	return at, func() { close(goOn) }
}

// A collection stops between its copy and its deletion. Meanwhile another one sets the object aside, a client finds it,
// and pushes a commit that names it. Then the first one deletes it.
func TestLFSLateDeletion(t *testing.T) {
	t.Parallel()
	w := newLFSWorld(t)
	stopped, resume := w.stopAt("delete", w.garbage)
	var late sync.WaitGroup
	late.Go(func() { w.c.wantCollected(1, 0) })
	<-stopped
	w.a.wantCollected(1, 0)
	w.a.wantState(lfs.Present, w.garbage) // brings it back
	w.pushGarbage(t, w.a)
	resume()
	late.Wait()
	if got := lfsNames(w.Memory, w.id); slices.Contains(got, w.garbage.OID.String()) || len(got) != 3 {
		t.Fatalf("the bucket has %q, want two copies of the object", got)
	}
	w.Age(2 * time.Hour)
	w.c.wantCollected(0, 0)
	w.wantGarbage(t)
	if got := lfsNames(w.Memory, w.id); len(got) != 2 {
		t.Errorf("the bucket has %q, want two objects", got)
	}
}

// A copy ends between the look-up of an object and its return: the object is missing, and an upload stores it.
func TestLFSFreedBeforeItComesBack(t *testing.T) {
	t.Parallel()
	w := newLFSWorld(t)
	w.c.wantCollected(1, 0)
	w.Age(2 * time.Hour)
	n := newGitNode(t, w.Memory, receivepack.Options{}) // without a local copy
	w.SetHook(func(operation, _ string) error {
		if operation == "copy" {
			w.SetHook(nil)
			w.c.wantCollected(0, 1)
		}
		return nil
	})
	n.wantState(lfs.Missing, w.garbage)
	n.mustUpload("app", "garbage")
	w.wantGarbage(t)
}

// Collections at the same time remove an object once, or leave several copies.
func TestLFSCollectionsAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := newLFSWorld(t)
	stopped, resume := w.stopAt("copy", w.garbage)
	var second sync.WaitGroup
	second.Go(func() { w.c.wantCollected(0, 0) })
	<-stopped
	w.a.wantCollected(1, 0)
	resume()
	second.Wait()
	w.wantGarbage(t)
}

// Without a complete and new copy, an object stays. A storage that does not copy may make an empty one.
func TestLFSWithoutACopy(t *testing.T) {
	t.Parallel()
	w := newLFSWorld(t)
	for name, spoil := range map[string]func(operation, key string) error{
		"empty": func(operation, key string) error {
			if operation == "list" && strings.Contains(key, asideMark) {
				w.Set(key, []byte{})
			}
			return nil
		},
		"old": func(operation, key string) error {
			if operation == "list" && strings.Contains(key, asideMark) {
				w.Age(2 * time.Hour)
			}
			return nil
		},
		"failed": func(operation, _ string) error {
			if operation == "copy" {
				return fault.New(fault.Unavailable, "not now")
			}
			return nil
		},
	} {
		w.SetHook(spoil)
		if removed, _, err := w.c.collectLFS(false); err == nil || removed != 0 {
			t.Errorf("%s: LFSCollect = %d removed, %v, want an error", name, removed, err)
		}
		w.SetHook(nil)
		if !slices.Contains(lfsNames(w.Memory, w.id), w.garbage.OID.String()) {
			t.Errorf("%s: the object is gone", name)
		}
	}
}

// The objects that are set aside are in exports, and are deleted with their repository.
func TestLFSSetAside(t *testing.T) {
	t.Parallel()
	w := newLFSWorld(t)
	w.c.wantCollected(1, 0)
	w.wantGarbage(t) // now the bucket has both
	w.Age(2 * time.Hour)
	w.a.wantCollected(1, 1)
	out := filepath.Join(t.TempDir(), "out.git")
	if err := Export(t.Context(), w.Memory, repoPath("app"), out, nil); err != nil {
		t.Fatal(err)
	}
	for _, o := range []lfs.Object{w.named, w.garbage} {
		if _, err := os.Stat(filepath.Join(out, lfsFile(o.OID))); err != nil {
			t.Errorf("export: %v", err)
		}
	}
	if err := w.a.Delete(t.Context(), repoPath("app"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := CollectGarbage(t.Context(), w.Memory, GCOptions{OlderThan: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	if got := lfsNames(w.Memory, w.id); len(got) > 0 {
		t.Errorf("a deleted repository has %q, want nothing", got)
	}
}

// A repository without pointer files, or whose configuration says never, keeps its objects.
func TestLFSKept(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n := newGitNode(t, b, receivepack.Options{})
	create(t, n.Store, "app")
	n.mustUpload("app", "of another repository")
	b.Age(2 * time.Hour)
	result, err := n.node.LFSKeeper().Collect(t.Context(), gc.CollectOptions{Grace: time.Hour})
	if err != nil || result.Removed.Objects != 0 || len(result.Skipped) != 1 {
		t.Errorf("LFSCollect = %+v, %v, want a skipped repository", result, err)
	}
	clone := newClone(t)
	commitPointer(clone, "named")
	clone.Git("config", "lfs.grace", "never")
	if err := n.ImportDir(t.Context(), repoPath("assets"), clone.Dir); err != nil {
		t.Fatal(err)
	}
	n.mustUpload("assets", "of another repository")
	b.Age(2 * time.Hour)
	result, err = n.node.LFSKeeper().Collect(t.Context(), gc.CollectOptions{Grace: time.Hour})
	if err != nil || result.Removed.Objects != 0 || len(result.Skipped) != 1 {
		t.Errorf("LFSCollect = %+v, %v, want that assets keeps its objects", result, err)
	}
}
