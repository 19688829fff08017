package store

import (
	"bytes"
	"context"
	"crypto/sha1"
	"fmt"
	"io"
	"net/http"
	"os/exec"
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
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// realGit runs the commands of maintenance with git.
func realGit(t *testing.T) places.RunGit {
	return func(_ context.Context, r *repo.Repo, c places.GitCommand) error {
		cmd := exec.Command("git", c.Args...)
		cmd.Dir, cmd.Env, cmd.Stdin = r.Dir, append(gittest.Env(), c.Env...), strings.NewReader(c.Stdin)
		if c.Input != nil {
			cmd.Stdin = c.Input
		}
		out, err := cmd.Output()
		if c.Output != nil {
			if readErr := c.Output(bytes.NewReader(out)); readErr != nil {
				return readErr
			}
		}
		if err != nil {
			t.Errorf("git %q: %v", c.Args, err)
		}
		return err
	}
}

// collectAll deletes all garbage, however young it is.
func collectAll(t *testing.T, b bucket.Bucket) *GCReport {
	t.Helper()
	report, err := CollectGarbage(t.Context(), b, GCOptions{OlderThan: -time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// newForkWorld returns a node with the repository app, of which clone is the origin.
func newForkWorld(t *testing.T) (b *buckettest.Memory, n *gitNode, clone *gittest.Repo) {
	t.Helper()
	b = newBucket(t)
	n = newGitNode(t, b, receivepack.Options{})
	clone = newClone(t)
	if err := n.ImportDir(t.Context(), repoPath("app"), clone.Dir); err != nil {
		t.Fatal(err)
	}
	return b, n, clone
}

func fork(t *testing.T, s *Store, source, target string, o places.ForkOptions) {
	t.Helper()
	if err := s.Fork(t.Context(), repoPath(source), repoPath(target), o); err != nil {
		t.Fatalf("Fork(%s, %s) = %v", source, target, err)
	}
}

// checkStore checks that all heads name objects that exist.
func checkStore(t *testing.T, b bucket.Bucket) {
	t.Helper()
	report, err := Check(t.Context(), b, CheckOptions{Deep: true})
	if err != nil || len(report.Problems) > 0 {
		t.Errorf("Check() = %+v, %v", report, err)
	}
}

// packsOf returns the number of packs that the bucket has.
func packsOf(b *buckettest.Memory) (n int) {
	for _, key := range b.Keys() {
		if strings.HasSuffix(key, ".pack") {
			n++
		}
	}
	return n
}

// A fork copies no pack. It takes pushes, survives its source and the collection of garbage, and can be detached and
// exported.
func TestFork(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	other := newGitNode(t, b, receivepack.Options{})
	before := packsOf(b)
	fork(t, n.Store, "app", "ann", places.ForkOptions{RequestID: "x"})
	fork(t, n.Store, "app", "ann", places.ForkOptions{RequestID: "x"})
	if err := n.Fork(t.Context(), repoPath("app"), repoPath("ann"), places.ForkOptions{}); !fault.Is(err, fault.Exists) {
		t.Errorf("Fork to a path that exists = %v", err)
	}
	if after := packsOf(b); after != before {
		t.Errorf("the store has %d packs after a fork, and had %d", after, before)
	}
	n.same("ann", clone)
	other.same("ann", clone)

	clone.Git("update-ref", "refs/heads/main", clone.Commit("of ann", clone.ID("main")).String())
	other.mustPush(clone, "ann", "main")
	n.same("ann", clone)
	fork(t, other.Store, "ann", "bob", places.ForkOptions{Refs: []string{"refs/heads/main"}})
	if got := other.copied("bob").Git("for-each-ref", "--format=%(refname)"); got != "refs/heads/main" {
		t.Errorf("the fork of selected refs has %q", got)
	}
	for _, path := range []string{"app", "ann"} {
		if err := n.Delete(t.Context(), repoPath(path), places.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	collectAll(t, b)
	checkStore(t, b)
	fresh := newGitNode(t, b, receivepack.Options{})
	fresh.copied("bob").Git("fsck", "--full", "--strict")
	fork(t, fresh.Store, "bob", "eve", places.ForkOptions{}) // its lenders are deleted
	fresh.copied("eve").Git("fsck", "--full", "--strict")

	if err := other.Detach(t.Context(), repoPath("bob"), realGit(t)); err != nil {
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), repoPath("bob"), realGit(t)); !fault.Is(err, fault.Exists) {
		t.Errorf("Detach again = %v, want exists", err)
	}
	if err := fresh.Export(t, b, "eve"); err != nil {
		t.Error(err)
	}
	if err := n.Delete(t.Context(), repoPath("eve"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	collectAll(t, b)
	checkStore(t, b)
	if got := packsOf(b); got != 1 {
		t.Errorf("the store has %d packs, want one: that of the detached fork", got)
	}
	n.copied("bob").Git("fsck", "--full", "--strict")
}

// TestForkWhileServing forks a SHA-256 repository and a fork of it, while another node pushes to it and renames it. A
// fork that succeeds is complete.
func TestForkWhileServing(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n, other := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{}, named("other"))
	if err := n.Create(t.Context(), repoPath("app"), git.SHA256, "refs/heads/main", "", nil); err != nil {
		t.Fatal(err)
	}
	clone := newClone(t, "--object-format=sha256")
	n.mustPush(clone, "app", "--mirror")
	names := []string{"app", "moved"}
	ctx, end := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		tip := clone.ID("main")
		for i := 0; ctx.Err() == nil; i++ {
			tip = clone.Commit(fmt.Sprint(i), tip)
			_, _ = other.push(clone, names[i%2], tip.String()+":refs/heads/topic")
		}
	})
	serving.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_ = other.Rename(ctx, repoPath(names[i%2]), repoPath(names[1-i%2]))
		}
	})
	made := names
	for i := 0; len(made) < 8; i++ {
		source, target := made[i%len(made)], fmt.Sprint("fork", i)
		switch err := n.Fork(t.Context(), repoPath(source), repoPath(target), places.ForkOptions{}); {
		case err == nil:
			made = append(made, target)
			n.copied(target).Git("fsck", "--full", "--strict")
		case !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Unavailable):
			t.Fatalf("Fork(%s) = %v", source, err)
		}
	}
	end()
	serving.Wait()
	checkStore(t, b)
	for _, target := range made[len(names):] {
		if err := n.Export(t, b, target); err != nil {
			t.Error(err)
		}
	}
}

// Export exports a repository and checks it.
func (n *gitNode) Export(t *testing.T, b bucket.Bucket, path string) error {
	dir := filepath.Join(t.TempDir(), "exported.git")
	if err := Export(t.Context(), b, repoPath(path), dir, nil); err != nil {
		return err
	}
	r := gittest.At(t, dir)
	r.Git("fsck", "--full", "--strict")
	if got := strings.TrimSpace(r.Git("count-objects", "-v")); strings.Contains(got, "alternate") {
		t.Errorf("the export borrows objects:\n%s", got)
	}
	return nil
}

// A push to the fork cannot name an object that only the source has, also if both have copies on the node.
func TestForkOfSecret(t *testing.T) {
	t.Parallel()
	_, n, clone := newForkWorld(t)
	fork(t, n.Store, "app", "ann", places.ForkOptions{})
	public := clone.ID("main")
	secret := clone.Commit("secret", public)
	clone.Git("update-ref", "refs/heads/secret", secret.String())
	n.mustPush(clone, "app", "secret")
	fork(t, n.Store, "app", "later", places.ForkOptions{})
	n.copied("later") // the directory that ann borrows from has the secret, too
	n.copied("ann")

	empty := []byte("PACK\x00\x00\x00\x02\x00\x00\x00\x00")
	sum := sha1.Sum(empty)
	body := pktline.AppendFlush(pktline.AppendLine(nil, strings.Repeat("0", 40)+" "+
		secret.String()+" refs/heads/stolen\x00report-status"))
	body = append(append(body, empty...), sum[:]...)
	for path, want := range map[string]string{"ann": "ng refs/heads/stolen", "later": "ok refs/heads/stolen"} {
		response, err := http.Post(n.url+path+"/git-receive-pack", "", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		report, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || !strings.Contains(string(report), want) {
			t.Errorf("a push of the secret to %s: %q, %v, want %q", path, report, err, want)
		}
	}
	place := n.place("ann")
	shadow, err := place.Push(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer shadow.Close()
	if shadow.Own() == "" {
		t.Error("the shadow of a fork does not say what its own objects are")
	}
	r, err := place.Open(t.Context(), repo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if !r.Objects.HasAlternates() || r.PackScope() != n.id("app") {
		t.Errorf("the fork has the pack scope %q, want that of its source %q", r.PackScope(), n.id("app"))
	}
}

// A fork that is being made keeps what it is about to name. A collection ends it if its node has crashed.
func TestForkPending(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"fork: source", "create: record", "create: name"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b, n, _ := newForkWorld(t)
			crashAt(n.Store, step)
			if err := n.Fork(t.Context(), repoPath("app"), repoPath("ann"), places.ForkOptions{}); err != errCrash {
				t.Fatalf("Fork = %v, want the crash", err)
			}
			c := newGitNode(t, b, receivepack.Options{})
			if err := c.Delete(t.Context(), repoPath("app"), places.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			before := packsOf(b)
			report, err := CollectGarbage(t.Context(), b, GCOptions{OlderThan: time.Hour})
			if err != nil || packsOf(b) != before {
				t.Errorf("a collection deleted packs of a fork that is being made: %+v, %v", report, err)
			}
			collectAll(t, b)
			collectAll(t, b)
			if step == "create: name" {
				return // the fork exists, without its path
			}
			checkStore(t, b)
			if got := packsOf(b); got != 0 {
				t.Errorf("the store has %d packs after the end of a fork that was never made, want none", got)
			}
		})
	}
}

// Between any two steps of a fork, the source can be compacted or deleted, and its garbage be collected.
func TestForkRacesWithCollection(t *testing.T) {
	t.Parallel()
	for _, isFork := range []bool{false, true} {
		for _, step := range []string{"fork: lender", "fork: source", "create: record", "create: name"} {
			t.Run(step, func(t *testing.T) {
				t.Parallel()
				b, n, clone := newForkWorld(t)
				c := newGitNode(t, b, receivepack.Options{})
				source := "app"
				if isFork {
					source = "ann"
					fork(t, c.Store, "app", "ann", places.ForkOptions{})
				}
				did := false
				n.failPoint = func(at string) error {
					if at != step || did {
						return nil
					}
					did = true
					for _, path := range []string{source, "app"} {
						err := c.Delete(context.Background(), repoPath(path), places.DeleteOptions{})
						if err != nil && !fault.Is(err, fault.NotFound) {
							t.Error(err)
						}
					}
					_, err := CollectGarbage(context.Background(), b, GCOptions{OlderThan: time.Nanosecond})
					if err != nil {
						t.Error(err)
					}
					return nil
				}
				err := n.Fork(t.Context(), repoPath(source), repoPath("bob"), places.ForkOptions{})
				checkStore(t, b)
				if err == nil {
					c.same("bob", clone)
				} else if !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.NotFound) {
					t.Errorf("Fork = %v", err)
				}
			})
		}
	}
}

// A collection of garbage sees forks that are newer than the head from which it begins.
func TestCondemnSeesNewForks(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	id := n.id("app")
	log := replog.Open(b, id)
	c := newCollector(b, GCOptions{OlderThan: -time.Hour})
	old, err := log.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	key := old.Packs[0].Key
	if err := n.place("app").Maintain(t.Context(), asGit(repackAll(t)), places.MaintainOptions{}); err != nil {
		t.Fatal(err)
	}
	head, err := log.Head(t.Context())
	if err != nil || head.HasKey(key) {
		t.Skipf("the compaction kept the pack: %v", err)
	}
	fork(t, n.Store, "app", "ann", places.ForkOptions{})
	if head, err = c.condemn(t.Context(), log, id, head, []string{key}); err != nil || len(head.Condemned) > 1 {
		t.Errorf("condemn = %+v, %v", head, err)
	}
	checkStore(t, b)
	n.same("ann", clone)
}

// A compaction of a fork keeps an object that only another fork borrows.
func TestCompactFork(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	fork(t, n.Store, "app", "ann", places.ForkOptions{})
	id := clone.ID("main")
	for _, text := range []string{"1", "2", "3"} {
		id = clone.Commit(text, id)
		clone.Git("update-ref", "refs/heads/main", id.String())
		n.mustPush(clone, "ann", "main")
	}
	n.mustPush(clone, "app", "main") // the same objects
	fork(t, n.Store, "app", "bob", places.ForkOptions{})
	n.same("bob", clone) // they are in the directory that ann borrows from
	if err := n.place("ann").Maintain(t.Context(), realGit(t), places.MaintainOptions{}); err != nil {
		t.Fatal(err)
	}
	head, err := n.place("ann").current(t.Context())
	if err != nil || head.record.Kind != replog.KindCompact || len(head.record.Lenders()) != 1 {
		t.Errorf("the head after a compaction is %+v, %v", head.record, err)
	}
	for _, path := range []string{"app", "bob"} {
		if err := n.Delete(t.Context(), repoPath(path), places.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	collectAll(t, b)
	checkStore(t, b)
	newGitNode(t, b, receivepack.Options{}).same("ann", clone)
}

// A fork with a lifetime is removed, also under another path, and only itself.
func TestForkLifetime(t *testing.T) {
	t.Parallel()
	b, n, _ := newForkWorld(t)
	fork(t, n.Store, "app", "ann", places.ForkOptions{Lifetime: time.Hour})
	if err := n.Rename(t.Context(), repoPath("ann"), repoPath("other")); err != nil {
		t.Fatal(err)
	}
	if err := n.removeExpiredBy(t.Context(), time.Now()); err != nil || idOf(t, n.Store, "other") == "" {
		t.Errorf("a fork was removed before the end of its lifetime: %v", err)
	}
	if err := n.removeExpiredBy(t.Context(), time.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if head, err := replog.Open(b, n.id("app")).Head(t.Context()); err != nil || len(head.Forks) > 0 {
		t.Errorf("the source lists %v after the end of the fork, error = %v", head.Forks, err)
	}
	if idOf(t, n.Store, "other") != "" || idOf(t, n.Store, "app") == "" {
		t.Error("not the fork, and only the fork, was removed")
	}
	if slices.ContainsFunc(b.Keys(), func(key string) bool { return strings.HasPrefix(key, expiryPrefix) }) {
		t.Errorf("the mark of the lifetime is left")
	}
}

// A copy of a store may lack the record that lists a fork. Promote lists it again.
func TestPromoteListsForks(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	fork(t, n.Store, "app", "ann", places.ForkOptions{})
	id := n.id("app")
	if err := b.Delete(t.Context(), replog.Open(b, id).Key(2)); err != nil {
		t.Fatal(err)
	}
	if _, err := Promote(t.Context(), b, PromoteOptions{}); err != nil {
		t.Fatal(err)
	}
	head, err := replog.Open(b, id).Head(t.Context())
	if err != nil || !slices.Equal(head.Forks, []string{n.id("ann")}) {
		t.Errorf("after Promote the source lists the forks %q, %v", head.Forks, err)
	}
	checkStore(t, b)
	newGitNode(t, b, receivepack.Options{}).same("ann", clone)
}

// A node that starts again has the packs that forks borrow, and evicts them.
func TestForkAfterAStart(t *testing.T) {
	t.Parallel()
	b, n, clone := newForkWorld(t)
	fork(t, n.Store, "app", "ann", places.ForkOptions{})
	root := t.TempDir()
	at := func(o *Options) { o.Cache.Root = root }
	first := newNode(t, b, at)
	done, err := acquire(t, first, "ann").Use(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	done()
	before := first.cache.Usage()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := newGitNode(t, b, receivepack.Options{}, at)
	if got := second.cache.Usage(); got.Bytes != before.Bytes || got.Bytes == 0 {
		t.Errorf("after a start the copies take %+v, and took %+v", got, before)
	}
	second.same("ann", clone)
}
