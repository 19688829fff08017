package store

import (
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// pushKnown pushes a ref to an object that the repository is believed to have, and returns the report.
func (n *gitNode) pushKnown(path, ref string, id git.ObjectID) string {
	n.t.Helper()
	empty := []byte("PACK\x00\x00\x00\x02\x00\x00\x00\x00")
	sum := sha1.Sum(empty)
	body := pktline.AppendFlush(pktline.AppendLine(nil, strings.Repeat("0", 40)+" "+id.String()+" "+ref+
		"\x00report-status"))
	body = append(append(body, empty...), sum[:]...)
	response, err := http.Post(n.url+path+"/git-receive-pack", "", bytes.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	defer response.Body.Close()
	report, err := io.ReadAll(response.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(report)
}

// collect removes the unreachable objects that are older than a time, also those that clients may still fetch.
func (n *gitNode) collect(path string, run places.RunGit, age time.Duration) places.Collected {
	n.t.Helper()
	done, err := n.place(path).Collect(context.Background(), run, places.CollectOptions{OlderThan: age})
	if err != nil {
		n.t.Fatalf("Collect(%s) = %v", path, err)
	}
	return done
}

// swept returns the local copy of a repository when its old packs are removed.
func (n *gitNode) swept(path string) *gittest.Repo {
	n.t.Helper()
	r := n.copied(path)
	gittest.WaitFor(n.t, "the removal of old packs", func() bool {
		counts, err := n.place(path).Counts(context.Background())
		entries, dirErr := os.ReadDir(filepath.Join(r.Dir, "objects/pack"))
		packs := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !strings.HasSuffix(e.Name(), ".pack") })
		return errors.Join(err, dirErr) == nil && int64(len(packs)) == counts.Packs
	})
	return r
}

// wantObject checks that a repository has an object, or that it does not.
func (n *gitNode) wantObject(path string, id git.ObjectID, want bool) {
	n.t.Helper()
	r := n.swept(path)
	r.Git("fsck", "--full", "--strict")
	if _, err := r.Try("cat-file", "-e", id.String()); (err == nil) != want {
		n.t.Errorf("%s has %s: %t, want %t", path, id, err == nil, want)
	}
}

// leak pushes a branch with a new commit, and deletes it.
func (n *gitNode) leak(clone *gittest.Repo, path, text string) git.ObjectID {
	n.t.Helper()
	id := clone.Commit(text, clone.ID("main"))
	n.mustPush(clone, path, id.String()+":refs/heads/leak")
	n.mustPush(clone, path, ":leak")
	return id
}

// TestCollect removes unreachable objects from a real bucket. Requests that run keep the old packs, which a later push
// must not use. Those that clients may still fetch stay.
func TestCollect(t *testing.T) {
	t.Parallel()
	b := buckettest.Versitygw(t).Bucket("store")
	if _, err := Init(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	n, other := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{}, named("other"))
	clone := newClone(t)
	if err := n.ImportDir(t.Context(), repoPath("app"), clone.Dir); err != nil {
		t.Fatal(err)
	}
	id := clone.Commit("unreachable", clone.ID("main"))
	n.mustPush(clone, "app", id.String()+":refs/heads/leak")
	if _, err := n.node.Maintain(t.Context(), repoPath("app")); err != nil { // its commit-graph has the commit
		t.Fatal(err)
	}
	other.copied("app")
	n.mustPush(clone, "app", ":leak")
	if _, err := n.node.Collect(t.Context(), repoPath("app"), places.CollectOptions{}); err != nil {
		t.Fatal(err)
	}
	n.wantObject("app", id, true) // within the grace
	n.collect("app", realGit(t), time.Hour)
	n.wantObject("app", id, true)

	before := n.place("app").Known().Number
	dry, err := n.place("app").Collect(t.Context(), realGit(t), places.CollectOptions{DryRun: true})
	if err != nil || dry.Before.Packed-dry.After.Packed != 3 || dry.Freed <= 0 ||
		n.place("app").Known().Number != before {
		t.Errorf("a dry run: %+v, %v, want three objects less and no record", dry, err)
	}
	var ends []func()
	for _, node := range []*gitNode{n, other} {
		done, err := node.place("app").Use(t.Context(), nil) // a running request
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, done)
	}
	if done := n.collect("app", realGit(t), 0); fmt.Sprint(done) != fmt.Sprint(dry) {
		t.Errorf("Collect() = %+v, want %+v", done, dry)
	}
	for _, node := range []*gitNode{n, other} {
		report := node.pushKnown("app", "refs/heads/again", id)
		if !strings.Contains(report, "ng refs/heads/again") {
			t.Errorf("a push that needs a removed object: %q", report)
		}
		if _, err := gittest.At(t, node.place("app").Dir()).Try("cat-file", "-e", id.String()); err != nil {
			t.Error("a running request has lost its packs")
		}
	}
	for _, end := range ends {
		end()
	}
	for _, node := range []*gitNode{n, other, newGitNode(t, b, receivepack.Options{})} {
		node.wantObject("app", id, false)
		node.same("app", clone)
	}
	collectAll(t, b)
	checkStore(t, b)
	other.mustPush(clone, "app", id.String()+":refs/heads/again") // the client has all objects
	n.wantObject("app", id, true)

	clone.Git("update-ref", "refs/heads/main", clone.Commit("later", clone.ID("main")).String())
	n.mustPush(clone, "app", "main", ":again", ":v1")
	clone.Git("tag", "-d", "v1")
	n.same("app", clone)
}

// TestCollectEverything removes the last objects of a repository, with its commit-graph.
func TestCollectEverything(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	other := newGitNode(t, b, receivepack.Options{}, named("other"))
	id := n.leak(clone, "app", "more")
	if _, err := n.node.Maintain(t.Context(), repoPath("app")); err != nil {
		t.Fatal(err)
	}
	other.wantObject("app", id, true)
	if _, err := n.place("app").SetHead(t.Context(), "refs/heads/none", nil); err != nil {
		t.Fatal(err)
	}
	n.mustPush(clone, "app", ":main", ":v1")
	n.collect("app", realGit(t), 0)
	for _, node := range []*gitNode{n, other} {
		node.wantObject("app", clone.ID("main"), false)
		if _, err := os.Stat(hydrate.FilePath(node.place("app").Dir(), ".graph")); err == nil {
			t.Error("the commit-graph is left")
		}
		if packs := node.place("app").known().record.Packs; len(packs) > 0 {
			t.Errorf("packs are left: %+v", packs)
		}
	}
	other.mustPush(clone, "app", "--mirror")
	n.same("app", clone)
}

// TestCollectAges keeps objects that a younger one needs. A compaction does not make objects younger than the youngest
// pack that it replaces.
func TestCollectAges(t *testing.T) {
	t.Parallel()
	_, n, clone := newForkWorld(t)
	old := clone.Commit("old", clone.ID("main"))
	n.mustPush(clone, "app", old.String()+":refs/heads/old")
	gone := n.leak(clone, "app", "gone")
	since := time.Now()
	young := clone.Commit("young", old)
	n.mustPush(clone, "app", young.String()+":refs/heads/young", ":old")
	n.mustPush(clone, "app", ":young")
	n.collect("app", realGit(t), time.Since(since))
	n.wantObject("app", old, true)
	n.wantObject("app", young, true)
	n.wantObject("app", gone, false)
	since = time.Now()
	if err := n.place("app").compact(t.Context(), asGit(repackAll(t)), false, false); err != nil {
		t.Fatal(err)
	}
	n.wantObject("app", young, true)
	n.collect("app", realGit(t), time.Since(since))
	n.wantObject("app", young, false)
	n.wantObject("app", old, false)
	n.same("app", clone)
}

// TestCollectDuringPush refuses a push that Git has checked before the collection of another node, and accepts it
// afterwards. A push that only deletes refs needs no objects.
func TestCollectDuringPush(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	id := n.leak(clone, "app", "unreachable")
	collect := func() { n.collect("app", realGit(t), 0) }
	once := sync.OnceFunc(collect)
	other := newGitNode(t, b, receivepack.Options{Decider: decider(func(*receivepack.Push) error { once(); return nil })},
		named("other"))
	report := other.pushKnown("app", "refs/heads/again", id)
	if !strings.Contains(report, "were removed during the push") {
		t.Errorf("the push: %q", report)
	}
	if report := other.pushKnown("app", "refs/heads/again", id); !strings.Contains(report, "ng refs/heads/again") {
		t.Errorf("the push after the collection: %q", report)
	}
	n.wantObject("app", id, false)
	other.mustPush(clone, "app", id.String()+":refs/heads/again")
	n.wantObject("app", id, true)
	n.leak(clone, "app", "another")
	once = sync.OnceFunc(collect)
	other.mustPush(clone, "app", ":refs/heads/again")
	checkStore(t, b)
}

// TestPushDuringCollect keeps what a push on another node needs which ends before the collection. Other pushes do not
// matter.
func TestPushDuringCollect(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	other := newGitNode(t, b, receivepack.Options{}, named("other"))
	id, gone := n.leak(clone, "app", "needed again"), n.leak(clone, "app", "not needed")
	git, rewrites := realGit(t), 0
	during := func(ctx context.Context, r *repo.Repo, c places.GitCommand) error {
		if c.Args[0] == "rev-list" { // it fails
			_, err := gittest.At(t, r.Dir).TryIn(c.Stdin, c.Args...)
			return fault.Wrap(fault.Internal, "git failed", err)
		}
		if c.Args[0] == "fsck" {
			rewrites++
		}
		if err := git(ctx, r, c); err != nil || c.Args[0] != "commit-graph" {
			return err
		}
		switch rewrites {
		case 1:
			if report := other.pushKnown("app", "refs/heads/again", id); !strings.Contains(report, "ok refs/heads/again") {
				t.Errorf("the push: %q", report)
			}
		case 2:
			clone.Git("update-ref", "refs/heads/main", clone.Commit("unrelated", clone.ID("main")).String())
			other.mustPush(clone, "app", "main")
		}
		return nil
	}
	n.collect("app", during, 0)
	if rewrites != 2 {
		t.Errorf("the collection began %d times, want twice", rewrites)
	}
	for _, node := range []*gitNode{n, other} {
		node.wantObject("app", id, true)
		node.wantObject("app", gone, false)
	}
	collectAll(t, b)
	checkStore(t, b)
	clone.Git("update-ref", "refs/heads/again", id.String())
	newGitNode(t, b, receivepack.Options{}).same("app", clone)
}

// TestCollectForks takes nothing from forks of the repository, and from a fork only what it has itself.
func TestCollectForks(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	id := clone.Commit("of a fork", clone.ID("main"))
	n.mustPush(clone, "app", id.String()+":refs/heads/topic")
	fork(t, n.Store, "app", "ann", places.ForkOptions{})
	n.mustPush(clone, "app", ":topic")
	own := n.leak(clone, "ann", "of ann")
	n.collect("app", realGit(t), 0)
	collectAll(t, b)
	n.wantObject("app", id, false)
	n.wantObject("ann", own, true)
	n.wantObject("ann", id, true)

	n.mustPush(clone, "ann", ":topic")
	done := n.collect("ann", realGit(t), 0)
	if done.Before.Packed-done.After.Packed != 3 {
		t.Errorf("the collection of a fork: %+v, want three objects less", done)
	}
	n.wantObject("ann", own, false)
	n.wantObject("ann", id, true) // its pack is shared
	if report := n.pushKnown("ann", "refs/heads/again", own); !strings.Contains(report, "ng refs/heads/again") {
		t.Errorf("a push that needs a removed object: %q", report)
	}
	other := newGitNode(t, b, receivepack.Options{})
	other.mustPush(clone, "ann", clone.Commit("later", clone.ID("main")).String()+":refs/heads/later")
	if err := n.Delete(t.Context(), repoPath("app"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	collectAll(t, b)
	checkStore(t, b)
	newGitNode(t, b, receivepack.Options{}).wantObject("ann", clone.ID("main"), true)
}

// TestCollectWhilePushing collects again and again while two nodes accept pushes. Each push that was accepted is there.
func TestCollectWhilePushing(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	nodes := []*gitNode{n, newGitNode(t, b, receivepack.Options{}, named("other"))}
	clones := []*gittest.Repo{clone, newClone(t)}
	ctx, end := context.WithCancel(t.Context())
	accepted := make([]map[string]git.ObjectID, len(nodes))
	var pushing, collecting sync.WaitGroup
	for i, node := range nodes {
		pushing.Go(func() {
			random, refs := rand.New(rand.NewPCG(1, uint64(i))), map[string]git.ObjectID{}
			for step := range 15 {
				ref := fmt.Sprintf("refs/heads/%d/%d", i, random.IntN(3))
				id := clones[i].Commit(fmt.Sprint(i, step), clones[i].ID("main"))
				spec := id.String()
				if random.IntN(3) == 0 && !refs[ref].IsZero() {
					id, spec = git.ObjectID{}, ""
				}
				out, err := node.push(clones[i], "app", "+"+spec+":"+ref)
				if err == nil {
					refs[ref] = id
				} else if !strings.Contains(out, "were removed during the push") && !strings.Contains(out, "503") {
					t.Errorf("a push: %v\n%s", err, out)
				}
			}
			accepted[i] = refs
		})
	}
	collecting.Go(func() {
		for ctx.Err() == nil {
			_, err := n.place("app").Collect(ctx, realGit(t), places.CollectOptions{})
			if err != nil && ctx.Err() == nil && !fault.Is(err, fault.Unavailable) {
				t.Errorf("Collect() = %v", err)
			}
			collectAll(t, b)
		}
	})
	pushing.Wait()
	end()
	collecting.Wait()
	n.collect("app", realGit(t), 0)
	collectAll(t, b)
	checkStore(t, b)
	for _, node := range slices.Concat(nodes, []*gitNode{newGitNode(t, b, receivepack.Options{})}) {
		r := node.swept("app")
		r.Git("fsck", "--full", "--strict")
		for _, refs := range accepted {
			for ref, id := range refs {
				if got, _ := r.Try("rev-parse", "-q", "--verify", ref); got != id.String() && !(id.IsZero() && got == "") {
					t.Errorf("%s is %q, want %s", ref, got, id)
				}
			}
		}
	}
}

// TestCollectByItself collects after a push, as a node with maintenance.unreachable does.
func TestCollectByItself(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	id := n.leak(clone, "app", "unreachable")
	clone.Git("update-ref", "refs/heads/main", clone.Commit("later", clone.ID("main")).String())
	n.mustPush(clone, "app", "main")
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		places.ClassMaintain: {Slots: 1, Queue: 10}}})
	if err != nil {
		t.Fatal(err)
	}
	s := newNode(t, b) // it does not remember the deleted branch
	node, err := storage.New(uploadpack.New(nil, uploadpack.Options{}), storage.Options{Root: s.options.Cache.Root,
		Places: s, Runner: runner, Maintenance: &storage.Maintenance{Quiet: time.Millisecond, Unreachable: time.Nanosecond}})
	if err != nil {
		t.Fatal(err)
	}
	node.RefsChanged(repoPath("app"))
	gittest.WaitFor(t, "a collection", func() bool {
		head, err := n.place("app").current(t.Context())
		return err == nil && head.record.ObjectsEpoch == 1
	})
	if err := errors.Join(node.Close(), runner.Close(context.Background())); err != nil {
		t.Error(err)
	}
	n.wantObject("app", id, false)
	n.same("app", clone)
}
