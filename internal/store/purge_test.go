package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// scanFiles inflates all packs below directories with git, and returns those that have an object.
func scanFiles(t *testing.T, id git.ObjectID, dirs ...string) (found []string) {
	t.Helper()
	empty := gittest.Init(t, "--bare")
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil || !strings.HasPrefix(string(content), "PACK") {
				return err
			}
			idx := filepath.Join(t.TempDir(), "x.idx")
			empty.Git("index-pack", "-o", idx, path)
			index, err := os.ReadFile(idx)
			if err == nil && strings.Contains(empty.GitIn(string(index), "show-index"), id.String()) {
				found = append(found, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

func named(name string) func(*Options) { return func(o *Options) { o.Node = name } }

// TestPurge removes a commit from a repository, its forks, all nodes, and a real bucket with old versions.
func TestPurge(t *testing.T) {
	t.Parallel()
	server := buckettest.Versioned(t)
	b := server.Bucket("store")
	if _, err := Init(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	n, other := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{}, named("other"))
	other.purges.interval = 100 * time.Millisecond
	other.running.Go(other.followPurges)
	gittest.WaitFor(t, "the other node", func() bool {
		list, err := b.List(t.Context(), nodesPrefix, "", 10)
		return err == nil && len(list) == 1
	})
	clone := newClone(t)
	if err := n.ImportDir(t.Context(), repoPath("app"), clone.Dir); err != nil {
		t.Fatal(err)
	}
	secret := clone.Commit("secret", clone.ID("main"))
	clone.Git("update-ref", "refs/heads/leak", secret.String())
	n.mustPush(clone, "app", "leak")
	fork(t, n.Store, "app", "ann", places.ForkOptions{})
	other.same("app", clone)
	other.same("ann", clone)
	if err := n.place("app").Maintain(t.Context(), realGit(t), places.MaintainOptions{}); err != nil {
		t.Fatal(err)
	}
	purge := func() error {
		_, err := n.node.Purge(t.Context(), repoPath("app"), places.PurgeOptions{IDs: []git.ObjectID{secret}})
		return err
	}
	for _, path := range []string{"app", "ann"} {
		if err := purge(); !fault.Is(err, fault.Precondition) || !strings.Contains(err.Error(), "refs/heads/leak") {
			t.Fatalf("purge of what %s reaches: %v", path, err)
		}
		n.mustPush(clone, path, ":leak")
	}
	dirs := []string{server.Dir, server.Versions, n.options.Cache.Root, other.options.Cache.Root}
	if len(scanFiles(t, secret, dirs...)) < 4 {
		t.Fatal("the test has no copies")
	}
	receipt, err := n.node.Purge(t.Context(), repoPath("app"), places.PurgeOptions{IDs: []git.ObjectID{secret}})
	if err != nil || len(receipt.Problems)+len(receipt.Outstanding) > 0 || len(receipt.Nodes) != 1 ||
		receipt.Objects != 1 {
		t.Fatalf("%+v, %v", receipt, err)
	}
	if copies := scanFiles(t, secret, dirs...); len(copies) > 0 {
		t.Errorf("copies are left: %q; receipt: %+v", copies, receipt)
	}
	found, err := n.node.FindCopies(t.Context(), repoPath("app"), places.PurgeOptions{IDs: []git.ObjectID{secret}})
	if err != nil || len(found.Copies)+len(found.Problems) > 0 || found.Searched == 0 {
		t.Errorf("FindCopies() = %+v, %v", found, err)
	}
	for _, path := range []string{"app", "ann"} {
		if out, err := other.push(clone, path, secret.String()+":refs/heads/again"); err == nil ||
			!strings.Contains(out+err.Error(), "was purged") {
			t.Errorf("a push to %s brings it back: %v %s", path, err, out)
		}
	}
	clone.Git("update-ref", "-d", "refs/heads/leak")
	for _, path := range []string{"app", "ann"} {
		other.same(path, clone)
		other.copied(path).Git("fsck", "--full", "--strict")
		clone.Git("update-ref", "refs/heads/"+path, clone.Commit(path, clone.ID("main")).String())
		other.mustPush(clone, path, path)
		clone.Git("update-ref", "-d", "refs/heads/"+path)
	}
	checkStore(t, b)
}

// TestPurgeOfAnAbsentNode lists a node that does not answer, which removes its copies when it comes back. A crash
// before each step is repaired by the next purge.
func TestPurgeOfAnAbsentNode(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	secret := clone.Commit("secret", clone.ID("main"))
	clone.Git("update-ref", "refs/heads/leak", secret.String())
	n.mustPush(clone, "app", "leak")
	other := newGitNode(t, b, receivepack.Options{}, named("other"))
	other.same("app", clone)
	n.mustPush(clone, "app", ":leak")
	b.Set(nodesPrefix+other.options.Node, []byte{})
	n.purges.wait = 1
	receipt, err := n.node.Purge(t.Context(), repoPath("app"), places.PurgeOptions{IDs: []git.ObjectID{secret}})
	if err != nil || !slices.Equal(receipt.Outstanding, []string{other.options.Node}) {
		t.Fatalf("%+v, %v, want an outstanding node", receipt, err)
	}
	if copies := scanFiles(t, secret, other.options.Cache.Root); len(copies) == 0 {
		t.Fatal("the other node has no copy")
	}
	if _, err := other.confirmPurges(t.Context()); err != nil {
		t.Fatal(err)
	}
	if copies := scanFiles(t, secret, other.options.Cache.Root); len(copies) > 0 {
		t.Errorf("copies are left: %q", copies)
	}
	for _, text := range []string{"another secret", "and one more"} { // also with a commit-graph that has them
		id := clone.Commit(text, clone.ID("main"))
		n.mustPush(clone, "app", id.String()+":refs/heads/leak")
		if err := n.place("app").Maintain(t.Context(), realGit(t), places.MaintainOptions{}); err != nil {
			t.Fatal(err)
		}
		n.mustPush(clone, "app", ":leak")
		if _, err := n.node.Purge(t.Context(), repoPath("app"), places.PurgeOptions{IDs: []git.ObjectID{id}}); err != nil {
			t.Errorf("a later purge: %v", err)
		}
		if copies := scanFiles(t, id, n.options.Cache.Root); len(copies) > 0 {
			t.Errorf("copies are left: %q", copies)
		}
		n.copied("app").Git("fsck", "--full", "--strict")
	}
	marks := func() (keys []string) {
		t.Helper()
		for _, key := range b.Keys() {
			if strings.HasPrefix(key, purgesPrefix) {
				keys = append(keys, key)
			}
		}
		return keys
	}
	if _, err := other.confirmPurges(t.Context()); err != nil { // of the later purges
		t.Fatal(err)
	}
	const open = purgesPrefix + "a-1"
	b.Set(open, []byte{}) // not confirmed by the other node
	b.Set(open+"."+n.options.Node, []byte{})
	b.Set(purgesPrefix+"b-1."+n.options.Node, []byte{}) // left by a collection that was interrupted
	before := marks()
	for _, step := range []struct {
		age  time.Duration
		o    GCOptions
		want int
	}{{0, GCOptions{}, len(before)}, {marksAge, GCOptions{DryRun: true}, len(before)}, {0, GCOptions{}, 2}} {
		b.Age(step.age)
		if _, err := CollectGarbage(t.Context(), b, step.o); err != nil {
			t.Fatal(err)
		}
		if got := marks(); len(before) < 9 || len(got) != step.want || !slices.Contains(got, open) {
			t.Fatalf("after %v: the marks are %q, want %d with %s; before: %q", step.age, got, step.want, open, before)
		}
	}
}

// TestPurgeOfRemovedSource purges forks whose source was removed: the ref of another fork is named, and its packs go.
func TestPurgeOfRemovedSource(t *testing.T) {
	t.Parallel()
	server := buckettest.Versioned(t)
	b := server.Bucket("store")
	if _, err := Init(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	n, clone := newGitNode(t, b, receivepack.Options{}), newClone(t)
	if err := n.ImportDir(t.Context(), repoPath("app"), clone.Dir); err != nil {
		t.Fatal(err)
	}
	secret := clone.Commit("secret", clone.ID("main"))
	n.mustPush(clone, "app", secret.String()+":refs/heads/leak")
	for _, path := range []string{"ann", "bob"} {
		fork(t, n.Store, "app", path, places.ForkOptions{})
		n.copied(path)
	}
	n.mustPush(clone, "ann", ":leak")
	if err := n.Delete(t.Context(), repoPath("app"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	o := places.PurgeOptions{IDs: []git.ObjectID{secret}}
	if _, err := n.node.Purge(t.Context(), repoPath("ann"), o); !fault.Is(err, fault.Precondition) ||
		!strings.Contains(err.Error(), "bob refs/heads/leak") {
		t.Fatalf("purge of what another fork reaches: %v", err)
	}
	n.mustPush(clone, "bob", ":leak")
	receipt, err := n.node.Purge(t.Context(), repoPath("ann"), o)
	if err != nil || len(receipt.Problems)+len(receipt.Outstanding) > 0 {
		t.Errorf("%+v, %v", receipt, err)
	}
	if copies := scanFiles(t, secret, server.Dir, server.Versions, n.options.Cache.Root); len(copies) > 0 {
		t.Errorf("copies are left: %q", copies)
	}
	for _, path := range []string{"ann", "bob"} {
		n.same(path, clone)
	}
	checkStore(t, b)
}

// TestPurgeOfDeltaBase purges a blob on which another one is a delta, in a SHA-256 repository.
func TestPurgeOfDeltaBase(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n := newGitNode(t, b, receivepack.Options{})
	if err := n.Create(t.Context(), repoPath("app"), git.SHA256, "refs/heads/main", "", nil); err != nil {
		t.Fatal(err)
	}
	clone := newClone(t, "--object-format=sha256")
	n.mustPush(clone, "app", "--mirror")
	text := ""
	for i := range 1000 {
		text += fmt.Sprintf("line %d of a file\n", i*i)
	}
	secret := clone.Blob(text + "the secret, which makes it the longer one: the base")
	clone.Git("update-ref", "refs/tags/secret", secret.String())
	clone.Git("update-ref", "refs/tags/kept", clone.Blob(text).String())
	clone.Git("repack", "-a", "-d", "-f", "-q")
	n.mustPush(clone, "app", "--tags")
	packs, err := filepath.Glob(filepath.Join(n.copied("app").Dir, "objects/pack/*.idx"))
	if err != nil || !strings.Contains(clone.Git(append([]string{"verify-pack", "-v"}, packs...)...),
		" 1 "+secret.String()) {
		t.Fatalf("no object in %q is a delta of the secret, error = %v", packs, err)
	}
	n.mustPush(clone, "app", ":refs/tags/secret")
	clone.Git("update-ref", "-d", "refs/tags/secret")
	o := places.PurgeOptions{IDs: []git.ObjectID{secret}}
	if receipt, err := n.node.Purge(t.Context(), repoPath("app"), o); err != nil || len(receipt.Problems) > 0 {
		t.Errorf("%+v, %v", receipt, err)
	}
	n.wantObject("app", secret, false)
	n.same("app", clone)
	checkStore(t, b)
}

// keepsVersions is a bucket whose credentials do not permit the deletion of versions.
type keepsVersions struct{ *bucket.S3 }

func (keepsVersions) DeleteVersion(context.Context, bucket.Version) error {
	return fault.Wrap(fault.Unavailable, "access denied: permit s3:DeleteObjectVersion", bucket.ErrDenied)
}

// TestPurgeKeepsVersions finds old versions that are left in the receipt and in its verification.
func TestPurgeKeepsVersions(t *testing.T) {
	t.Parallel()
	b := keepsVersions{buckettest.Versioned(t).Bucket("store")}
	if _, err := Init(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	n, clone := newGitNode(t, b, receivepack.Options{}), newClone(t)
	if err := n.ImportDir(t.Context(), repoPath("app"), clone.Dir); err != nil {
		t.Fatal(err)
	}
	secret := clone.Commit("secret", clone.ID("main"))
	n.mustPush(clone, "app", secret.String()+":refs/heads/leak")
	n.mustPush(clone, "app", ":leak")
	receipt, err := n.node.Purge(t.Context(), repoPath("app"), places.PurgeOptions{IDs: []git.ObjectID{secret}})
	if err != nil || len(receipt.Problems) != 1 || !strings.Contains(receipt.Problems[0], "s3:DeleteObjectVersion") {
		t.Errorf("%+v, %v, want the problem", receipt, err)
	}
	found, err := n.node.FindCopies(t.Context(), repoPath("app"), places.PurgeOptions{IDs: []git.ObjectID{secret}})
	if err != nil || len(found.Copies) != 1 || !strings.Contains(found.Copies[0], ".pack version ") {
		t.Errorf("FindCopies() = %+v, %v, want an old version", found, err)
	}
}

// TestPurgeInterrupted ends a purge when the objects are hidden. Another node ends it.
func TestPurgeInterrupted(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	other := newGitNode(t, b, receivepack.Options{}, named("other"))
	secret := clone.Commit("secret", clone.ID("main"))
	n.mustPush(clone, "app", secret.String()+":refs/heads/leak")
	n.mustPush(clone, "app", ":leak")
	ctx, cancel := context.WithCancel(t.Context())
	o := places.PurgeOptions{IDs: []git.ObjectID{secret}, Hidden: func([]git.RepoPath) { cancel() }}
	if _, err := n.place("app").Purge(ctx, realGit(t), o); !errors.Is(err, context.Canceled) {
		t.Fatalf("the purge was not interrupted: %v", err)
	}
	if out, err := other.push(clone, "app", secret.String()+":refs/heads/again"); err == nil {
		t.Errorf("a push during a purge brings the object back: %s", out)
	}
	younger := clone.Commit("younger", secret)
	if out, err := other.push(clone, "app", younger.String()+":refs/heads/again"); err == nil {
		t.Errorf("a push during a purge needs the object: %s", out)
	}
	b.SetHook(func(operation, key string) error { // another call confirms the purge first
		if operation == "create" && strings.HasPrefix(key, purgesPrefix) && strings.HasSuffix(key, ".other") {
			b.Set(key, []byte{})
		}
		return nil
	})
	if _, err := other.node.Purge(t.Context(), repoPath("app"), o); err != nil {
		t.Error(err)
	}
	b.SetHook(nil)
	if _, err := n.confirmPurges(t.Context()); err != nil {
		t.Error(err)
	}
	if copies := scanFiles(t, secret, n.options.Cache.Root, other.options.Cache.Root); len(copies) > 0 {
		t.Errorf("copies are left: %q", copies)
	}
	n.copied("app").Git("fsck", "--full", "--strict")
	clone.Git("update-ref", "refs/heads/good", clone.Commit("good", clone.ID("main")).String())
	n.mustPush(clone, "app", "good")
}

// TestPurgeLFS purges an LFS object in a repository and its fork, with the copies of two nodes, one that was set aside,
// and old versions.
func TestPurgeLFS(t *testing.T) {
	t.Parallel()
	server := buckettest.Versioned(t)
	b := server.Bucket("store")
	if _, err := Init(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	n, other := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{}, named("other"))
	other.OnPurge(other.node.Reopen)
	other.purges.interval = 100 * time.Millisecond
	other.running.Go(other.followPurges)
	clone := newClone(t)
	if err := n.ImportDir(t.Context(), repoPath("app"), clone.Dir); err != nil {
		t.Fatal(err)
	}
	secret, kept := n.mustUpload("app", "a secret in a large file"), n.mustUpload("app", "another one")
	blob := clone.Blob(fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", secret.OID,
		secret.Size))
	clone.Git("update-ref", "refs/heads/leak", clone.CommitTree("leak", "100644 blob "+blob.String()+"\tfile\n").String())
	n.mustPush(clone, "app", "leak")
	fork(t, n.Store, "app", "ann", places.ForkOptions{})
	n.mustUpload("ann", "a secret in a large file")
	for _, from := range []*gitNode{n, other} {
		if _, _, err := from.download("app", secret); err != nil {
			t.Fatal(err)
		}
	}
	key := n.place("app").lfsKey(secret.OID)
	if err := b.Copy(t.Context(), key, key+asideMark+"1", secret.Size); err != nil {
		t.Fatal(err)
	}
	o := places.PurgeOptions{LFS: []lfs.OID{secret.OID}}
	for _, path := range []string{"app", "ann"} {
		if _, err := n.node.Purge(t.Context(), repoPath("app"), o); !fault.Is(err, fault.Precondition) ||
			!strings.Contains(err.Error(), "refs/heads/leak") {
			t.Fatalf("purge of what %s reaches: %v", path, err)
		}
		n.mustPush(clone, path, ":leak")
	}
	if found, err := n.node.FindCopies(t.Context(), repoPath("app"), o); err != nil || len(found.Copies) < 3 {
		t.Errorf("before the purge: FindCopies() = %+v, %v", found, err)
	}
	late := newGitNode(t, b, receivepack.Options{}, named("late")) // knows the settings of before
	if _, err := late.states("app", false, kept); err != nil {
		t.Fatal(err)
	}
	receipt, err := n.node.Purge(t.Context(), repoPath("app"), o)
	if err != nil || len(receipt.Problems)+len(receipt.Outstanding) > 0 || len(receipt.Files) < 3 {
		t.Fatalf("%+v, %v", receipt, err)
	}
	if _, err := late.node.Purge(t.Context(), repoPath("app"), o); err != nil {
		t.Errorf("the same purge on another node: %v", err)
	}
	for _, dir := range []string{server.Dir, server.Versions, n.options.Cache.Root, other.options.Cache.Root} {
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if strings.Contains(string(text), "a secret in") {
				t.Errorf("a copy is left: %s", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	for _, from := range []*gitNode{n, other} {
		for _, path := range []string{"app", "ann"} {
			if states, err := from.states(path, false, secret); err != nil || states[0] != lfs.Missing {
				t.Errorf("states in %s: %v, %v", path, states, err)
			}
			if _, err := from.upload(path, "a secret in a large file"); !fault.Is(err, fault.Denied) {
				t.Errorf("upload to %s: %v", path, err)
			}
		}
		if _, _, err := from.download("app", kept); err != nil {
			t.Error(err)
		}
	}
	if found, err := n.node.FindCopies(t.Context(), repoPath("app"), o); err != nil || len(found.Copies) > 0 {
		t.Errorf("FindCopies() = %+v, %v", found, err)
	}
}

// TestPurgeAfterAFailedFork fails forks at each step. A purge does not wait for them, and ends those that are being
// made.
func TestPurgeAfterAFailedFork(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	other := newGitNode(t, b, receivepack.Options{}, named("other"))
	purge := func(what string) {
		t.Helper()
		secret := clone.Commit(what, clone.ID("main"))
		other.mustPush(clone, "app", secret.String()+":refs/heads/leak")
		other.mustPush(clone, "app", ":leak")
		receipt, err := other.node.Purge(t.Context(), repoPath("app"), places.PurgeOptions{IDs: []git.ObjectID{secret}})
		if err != nil || len(receipt.Problems) > 0 {
			t.Errorf("purge after %s: %+v, %v", what, receipt, err)
		}
	}
	tryFork := func(ctx context.Context) {
		t.Helper()
		o := places.ForkOptions{Lifetime: time.Hour}
		if err := n.Fork(ctx, repoPath("app"), repoPath("ann"), o); err == nil {
			t.Error("the fork was made")
		}
	}
	for _, part := range []string{"/refs/", expiryPrefix, openPrefix} {
		b.SetHook(func(operation, key string) error {
			if (operation == "create" || operation == "put") && strings.Contains(key, part) {
				return bucket.ErrDenied
			}
			return nil
		})
		tryFork(t.Context())
		b.SetHook(nil)
		if head, err := replog.Open(b, n.id("app")).Head(t.Context()); err != nil || len(head.Forks) == 0 {
			t.Fatalf("the fork that failed at %s was not listed: %v", part, err)
		}
		purge("an error at " + part)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n.failPoint = func(step string) error {
		if step == "fork: source" {
			cancel()
		}
		return nil
	}
	tryFork(ctx)
	purge("the end of the client")
	n.failPoint = func(step string) error {
		if step == "create: record" {
			purge("the beginning of a slow fork")
		}
		return nil
	}
	tryFork(t.Context())
	crashAt(n.Store, "fork: source")
	tryFork(t.Context())
	purge("a crash")
	checkStore(t, b)
}
