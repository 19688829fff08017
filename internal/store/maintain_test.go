package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// pushPack appends a record with a pack of all objects of a repository that are not in its earlier packs, and with a
// branch.
func pushPack(t *testing.T, s *Store, path string, from *gittest.Repo, branch string, id git.ObjectID) {
	t.Helper()
	r, err := s.find(t.Context(), repoPath(path))
	if err != nil {
		t.Fatal(err)
	}
	defer s.release(r)
	from.Git("update-ref", "refs/heads/"+branch, id.String())
	from.Git("repack", "-q", "-d")
	name := strings.TrimSpace(from.Git("rev-parse", "--git-path", "objects/pack"))
	packs, err := filepath.Glob(filepath.Join(from.Dir, name, "*.pack"))
	if err != nil || len(packs) == 0 {
		t.Fatalf("packs %v, %v", packs, err)
	}
	newest := packs[0]
	for _, p := range packs {
		a, b := stat(t, p), stat(t, newest)
		if a.ModTime().After(b.ModTime()) {
			newest = p
		}
	}
	base := strings.TrimSuffix(newest, ".pack")
	pack, err := r.uploader().pack(t.Context(), base, replog.NewID())
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.change(t.Context(), func(head *state) (*replog.Record, error) {
		next := head.record.Next(replog.KindPush, "", time.Now())
		pack.Since = next.Number
		next.Packs = append(next.Packs, pack)
		next.Refs.Tail = append(next.Refs.Tail, replog.TailEntry{Number: next.Number,
			Changes: []replog.RefChange{{Name: git.RefName("refs/heads/" + branch), New: id}}})
		return next, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// asGit runs a function instead of git repack, and nothing instead of other commands.
func asGit(repack func(ctx context.Context, dir string) error) places.RunGit {
	return func(ctx context.Context, r *repo.Repo, c places.GitCommand) error {
		if c.Args[0] != "repack" {
			return nil
		}
		return repack(ctx, r.Dir)
	}
}

// repackAll is a repack that makes one pack.
func repackAll(t *testing.T) func(context.Context, string) error {
	return func(_ context.Context, dir string) error {
		copy := gittest.At(t, dir)
		copy.Git("repack", "-q", "-a", "-d", "-k", "--write-bitmap-index")
		copy.Git("commit-graph", "write", "--reachable")
		return nil
	}
}

// A compaction is visible on other nodes, which need nothing of the old packs.
func TestMaintain(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newNode(t, b), newNode(t, b)
	create(t, a, "x")
	from := gittest.Init(t)
	tip := from.Commit("0")
	pushPack(t, a, "x", from, "main", tip)
	for i := range 3 {
		tip = from.Commit(fmt.Sprint(i+1), tip)
		pushPack(t, a, "x", from, "main", tip)
	}
	p := acquire(t, a, "x")
	repack := repackAll(t)
	during := func(ctx context.Context, dir string) error { // a push during the repack does not matter
		if err := repack(ctx, dir); err != nil {
			return err
		}
		tip = from.Commit("during", tip)
		pushPack(t, c, "x", from, "topic", tip)
		return nil
	}
	if err := p.Maintain(t.Context(), asGit(during), places.MaintainOptions{}); err != nil {
		t.Fatal(err)
	}
	other := acquire(t, c, "x")
	head, err := other.current(t.Context())
	if err != nil || len(head.record.Packs) != 2 || head.record.Kind != replog.KindCompact {
		t.Fatalf("the head is %+v, %v, want two packs", head.record, err)
	}
	var compacted replog.Pack
	for _, pack := range head.record.Packs {
		if len(pack.Extra) > 0 {
			compacted = pack
		}
	}
	if compacted.Objects != 12 || len(compacted.Extra) < 2 {
		t.Errorf("the new pack is %+v, want 12 objects, a bitmap and a commit-graph", compacted)
	}
	for _, node := range []*place{p, other} {
		done, err := node.Use(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		local := gittest.At(t, node.Dir())
		local.Git("fsck", "--full", "--strict")
		if got := local.Git("cat-file", "-t", tip.String()); got != "commit" {
			t.Errorf("%s is a %q, want a commit", tip, got)
		}
		done()
	}
	nothing := func(context.Context, string) error { return nil }
	before := head.record.Number
	if err := p.Maintain(t.Context(), asGit(nothing), places.MaintainOptions{}); err != nil {
		t.Fatal(err)
	}
	if head, err := other.current(t.Context()); err != nil || head.record.Number != before {
		t.Errorf("a compaction without new packs appended record %d, %v", head.record.Number, err)
	}
}

// Git's maintenance of a node reduces the packs of pushes. Afterwards garbage is deleted, and a new node needs none of
// it.
func TestMaintainWithGit(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a := newGitNode(t, b, receivepack.Options{})
	create(t, a.Store, "x")
	clone := newClone(t)
	a.mustPush(clone, "x", "--mirror")
	for i := range 6 {
		clone.Git("update-ref", "refs/heads/main", clone.Commit(fmt.Sprint(i), clone.ID("main")).String())
		a.mustPush(clone, "x", "main")
	}
	m, err := a.node.Maintain(t.Context(), repoPath("x"))
	if err != nil || m.Before.Packs != 7 || m.After.Packs > 3 || !m.After.CommitGraph {
		t.Errorf("Maintain() = %+v, %v, want 7 packs before, at most 3 after, and a commit-graph", m, err)
	}
	clone.Git("update-ref", "refs/heads/main", clone.Commit("later", clone.ID("main")).String())
	a.mustPush(clone, "x", "main")
	report, err := CollectGarbage(t.Context(), b, GCOptions{OlderThan: time.Nanosecond})
	if err != nil || report.Objects < 8 {
		t.Errorf("CollectGarbage = %+v, %v, want at least 8 deleted objects", report, err)
	}
	a.same("x", clone)
	newGitNode(t, b, receivepack.Options{}).same("x", clone)
}

// Of two compactions of the same packs one is dropped.
func TestConcurrentMaintain(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newNode(t, b), newNode(t, b)
	create(t, a, "x")
	from := gittest.Init(t)
	tip := from.Commit("0")
	pushPack(t, a, "x", from, "main", tip)
	pushPack(t, a, "x", from, "main", from.Commit("1", tip))
	repack := repackAll(t)
	var winner uint64
	err := acquire(t, a, "x").Maintain(t.Context(), asGit(func(ctx context.Context, dir string) error {
		other := acquire(t, c, "x")
		if err := other.Maintain(ctx, asGit(repack), places.MaintainOptions{}); err != nil {
			return err
		}
		winner = other.Known().Number
		return repack(ctx, dir)
	}), places.MaintainOptions{})
	if err != nil {
		t.Fatal(err)
	}
	head, err := acquire(t, a, "x").current(t.Context())
	if err != nil || head.record.Number != winner || len(head.record.Packs) != 1 {
		t.Errorf("the head is record %d with %d packs, %v, want record %d with 1", head.record.Number,
			len(head.record.Packs), err, winner)
	}
}

// Git leaves objects out of new packs that are in packs of the copy which stay. So of two compactions one is dropped
// even if they replace different packs.
func TestDisjointMaintain(t *testing.T) {
	t.Parallel()
	names := []string{"packs/pack-1-a", "packs/pack-2-a", "packs/pack-3-a"}
	head := &replog.Record{Number: 7, Packs: []replog.Pack{{Key: names[0]}, {Key: names[1]}}}
	s := &Store{}
	first := &compaction{repository: &repository{store: s}, head: &state{record: head}, removed: names[:1],
		added: []replog.Pack{{Key: names[2]}}}
	second := &compaction{repository: first.repository, head: first.head, removed: names[1:2]}
	pushed := *head
	pushed.Packs = append(slices.Clone(head.Packs), replog.Pack{Key: "packs/pack-4-a"})
	next := first.replace(&pushed)
	if next == nil || len(next.Packs) != 3 {
		t.Fatalf("the record after a compaction and a push is %+v, want 3 packs", next)
	}
	if next := second.replace(next); next != nil {
		t.Errorf("the second compaction replaced packs: %+v", next.Packs)
	}
}

// A long tail is folded into a checkpoint in the background, and all nodes have the same refs.
func TestCheckpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		a, c := newNode(t, b), newNode(t, b)
		create(t, a, "x")
		for i := range maxTailEntries + 3 {
			setRef(t, a, "x", git.RefName(fmt.Sprintf("refs/heads/%d", i%50)), id1)
		}
		synctest.Wait()
		setRef(t, a, "x", "refs/heads/0", git.ObjectID{})
		r := acquire(t, c, "x")
		head, err := r.current(t.Context())
		if err != nil || head.record.Refs.Count != 50 || len(head.record.Refs.Tail) > 4 {
			t.Fatalf("the head has %d refs and a tail of %d, %v, want 50 and at most 4", head.record.Refs.Count,
				len(head.record.Refs.Tail), err)
		}
		if got := refOf(t, c, "x", "refs/heads/0"); !got.IsZero() {
			t.Errorf("a deleted ref is %s", got)
		}
	})
}

// A push of many refs has its own checkpoint.
func TestLargePush(t *testing.T) {
	t.Parallel()
	const refs = 5000
	b := newBucket(t)
	a, c := newNode(t, b), newNode(t, b)
	create(t, a, "x")
	p := newPusher(t, a, "x")
	if _, err := p.push(nil, update("first", 0, 1)); err != nil {
		t.Fatal(err)
	}
	var updates []receivepack.Update
	for i := range refs {
		updates = append(updates, update(fmt.Sprint(i), 0, i+1))
	}
	gets := b.Requests()["open"]
	result, err := p.push(nil, updates...)
	if err != nil || slices.ContainsFunc(result.Refused, func(r *receivepack.Refusal) bool { return r != nil }) {
		t.Fatalf("Commit() = %v", err)
	}
	if n := b.Requests()["open"] - gets; n != 0 {
		t.Errorf("%d downloads of a checkpoint that was made here, want none", n)
	}
	if _, err := p.push(nil, update("4999", 5000, 1), update("0", 1, 0)); err != nil {
		t.Fatal(err)
	}
	other := acquire(t, c, "x")
	head, err := other.current(t.Context())
	if err != nil || head.record.Refs.Count != refs+1 || len(head.record.Refs.Tail) != 1 {
		t.Fatalf("the head has %+v, %v, want %d refs in the checkpoint and a tail of 1", head.record.Refs, err, refs+1)
	}
	snapshot, err := snapshotOf(head.layers, git.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[git.RefName]int{"refs/heads/first": 1, "refs/heads/0": 0, "refs/heads/77": 78,
		"refs/heads/4999": 1} {
		if ref, _, err := snapshot.Lookup(name); err != nil || ref.ID != objectID(want) && (want > 0 || !ref.ID.IsZero()) {
			t.Errorf("Lookup(%s) = %v, %v, want %d", name, ref.ID, err, want)
		}
	}
}

func TestIsTailLong(t *testing.T) {
	t.Parallel()
	change := replog.RefChange{Name: git.RefName("refs/heads/" + strings.Repeat("x", 900)), New: id1}
	for n, want := range map[int]bool{1: false, 31: false, 36: true} {
		refs := &replog.Refs{Tail: []replog.TailEntry{{Changes: make([]replog.RefChange, n)}}}
		for i := range n {
			refs.Tail[0].Changes[i] = change
		}
		if got := isTailLong(refs); got != want {
			t.Errorf("isTailLong of %d changes = %v, want %v", n, got, want)
		}
	}
}

// Files that no record names are deleted after a week, those of deleted repositories and of interrupted imports too.
func TestCollectGarbage(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a := newNode(t, b)
	from := gittest.Init(t)
	ids := map[string]string{}
	for _, path := range []string{"kept", "deleted"} {
		ids[path] = create(t, a, path)
		pushPack(t, a, path, from, path, from.Commit(path))
		pushPack(t, a, path, from, path, from.Commit(path+"2"))
	}
	if err := acquire(t, a, "kept").Maintain(t.Context(), asGit(repackAll(t)), places.MaintainOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := a.Delete(t.Context(), repoPath("deleted"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	imported := replog.NewID()
	b.Set("repos/"+imported+"/packs/pack-1-x.pack", []byte("x"))
	before := len(repositoryKeys(b))
	for _, test := range []struct {
		age            time.Duration
		dry            bool
		objects, after int
	}{
		{age: time.Hour, objects: 0, after: before},
		{age: time.Nanosecond, dry: true, objects: 9, after: before},
		{age: time.Nanosecond, objects: 9, after: before - 9 + 2*3 + 1}, // records: two for each repository, and a first
		{age: time.Nanosecond, objects: 0, after: before - 9 + 2*3 + 1},
	} {
		report, err := CollectGarbage(t.Context(), b, GCOptions{OlderThan: test.age, DryRun: test.dry})
		if err != nil || report.Objects != test.objects || len(report.Keys) != test.objects || report.Repositories != 3 {
			t.Errorf("%+v: CollectGarbage = %+v, %v", test, report, err)
		}
		if got := len(repositoryKeys(b)); got != test.after {
			t.Errorf("%+v: the bucket has %d objects", test, got)
		}
	}
	for _, key := range b.Keys() {
		if strings.Contains(key, "/packs/") && !strings.Contains(key, ids["kept"]) {
			t.Errorf("%s is left", key)
		}
	}
	node := acquire(t, newNode(t, b), "kept")
	done, err := node.Use(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	gittest.At(t, node.Dir()).Git("fsck", "--full")
	// An import that ends after its files were collected must not win.
	first := &replog.Record{ObjectFormat: git.SHA1, Head: "refs/heads/main"}
	if _, err = a.create(t.Context(), repoPath("imported"), imported, first); !fault.Is(err, fault.Unavailable) {
		t.Errorf("create of a collected repository = %v, want unavailable", err)
	}
}

// A damaged repository does not keep the garbage of others.
func TestCollectGarbageBesideDamage(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a := newNode(t, b)
	garbage := "repos/" + create(t, a, "x") + "/packs/pack-1-x.pack"
	b.Set(garbage, []byte("x"))
	b.Set("repos/"+strings.Repeat("a", 26)+"/log/x", []byte("x"))
	if _, err := CollectGarbage(t.Context(), b, GCOptions{OlderThan: time.Nanosecond}); !fault.Is(err, fault.Corrupt) {
		t.Errorf("CollectGarbage = %v, want an error of kind Corrupt", err)
	}
	if slices.Contains(b.Keys(), garbage) {
		t.Errorf("%s is left", garbage)
	}
}

// Nodes collect garbage in the background. The store of a command, which may run for hours, does not.
func TestCommandsDoNotCollectGarbage(t *testing.T) {
	t.Parallel()
	for _, isNode := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBucket(t)
			end := func() {}
			if isNode {
				s, err := Open(t.Context(), Options{Bucket: b, Node: "n", Cache: hydrate.Options{Root: t.TempDir()}})
				if err != nil {
					t.Fatal(err)
				}
				end = func() { _ = s.Close() }
			} else {
				var err error
				if _, end, err = openTemporary(t.Context(), b, t.TempDir(), "n"); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(2 * gcInterval)
			claims, err := b.List(t.Context(), gcPrefix, "", 100)
			if err != nil || (len(claims) > 0) != isNode {
				t.Errorf("node %t: claims of garbage after %v = %v, %v, want some: %t", isNode, 2*gcInterval, claims, err,
					isNode)
			}
			end()
		})
	}
}

// Nodes share the collection: each shard is collected once in a week.
func TestShards(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	nodes := []*Store{newNode(t, b), newNode(t, b)}
	now := time.Date(2026, 12, 31, 0, 0, 0, 0, time.UTC)
	for range 2 {
		seen := map[string]int{}
		for i := range 40 {
			shard, err := nodes[i%2].claimShard(t.Context(), now)
			if err != nil {
				t.Fatal(err)
			}
			seen[shard]++
		}
		if len(seen) != 33 || seen[""] != 8 {
			t.Errorf("claims of shards: %v, want 32 shards once", seen)
		}
		now = now.Add(gcAge)
	}
	for _, key := range b.Keys() {
		if strings.HasPrefix(key, gcPrefix) && !strings.HasPrefix(key, "gc/2027-w01/") {
			t.Errorf("the mark %s of an earlier week is left", key)
		}
	}
	for _, s := range nodes {
		for _, shard := range strings.Split(shards, "") {
			if err := s.collectShard(t.Context(), shard); err != nil {
				t.Error(err)
			}
		}
	}
}
