package storage_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// fork forks a repository and returns the fork.
func (r *root) fork(source, target string, refs ...string) *gittest.Repo {
	r.t.Helper()
	_, err := r.Fork(r.t.Context(), r.path(source), r.path(target), places.ForkOptions{Refs: refs})
	r.do(err)
	return gittest.At(r.t, filepath.Join(r.dir, target+".git"))
}

// networks returns the number of networks of forks.
func (r *root) networks() int {
	found, err := filepath.Glob(filepath.Join(r.dir, ".packhorse/networks/*/objects"))
	r.do(err)
	return len(found)
}

func TestFork(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			r := newManager(t)
			source := gittest.InitAt(t, filepath.Join(r.dir, "team/app.git"), "--bare", "--object-format="+format)
			first := source.Commit("one")
			source.Git("update-ref", "refs/heads/main", first.String())
			source.Git("tag", "-a", "-m", "tag", "v1", first.String())
			source.Git("repack", "-a", "-d", "-q")
			second := source.Commit("two", first) // loose
			source.Git("update-ref", "refs/heads/topic", second.String())
			source.Git("update-ref", "refs/internal/secret", second.String())
			source.Git("config", "transfer.hideRefs", "refs/internal")

			one := r.fork("team/app", "users/ann/app")
			if got, want := one.Git("show-ref"), source.Git("show-ref", "--heads", "--tags"); got != want {
				t.Errorf("the fork has\n%s\nwant\n%s", got, want)
			}
			two := r.fork("users/ann/app", "users/bob/deep/app", "refs/heads/main")
			if got := two.Git("for-each-ref", "--format=%(refname)"); got != "refs/heads/main" {
				t.Errorf("the second fork has %s", got)
			}
			for _, member := range []*gittest.Repo{source, one, two} {
				member.Git("fsck", "--strict")
				member.Git("gc", "-q", "--prune=now") // as an administrator would
			}
			if n := r.networks(); n != 1 {
				t.Errorf("%d networks", n)
			}
			// new commits of a fork stay its own
			third := one.Commit("three", second)
			one.Git("update-ref", "refs/heads/mine", third.String())
			if _, err := source.Try("cat-file", "-e", third.String()); err == nil {
				t.Error("the source has a commit of its fork")
			}
			three := r.fork("users/ann/app", "c")
			for _, name := range []string{"team/app", "users/ann/app"} {
				r.do(r.Delete(t.Context(), r.path(name), places.DeleteOptions{}))
			}
			two.Git("fsck", "--strict")
			three.Git("fsck", "--strict")

			r.do(r.Detach(t.Context(), r.path("c")))
			r.do(r.Delete(t.Context(), r.path("users/bob/deep/app"), places.DeleteOptions{}))
			until(t, "the network is removed", func() bool { return r.networks() == 0 })
			three.Git("fsck", "--strict")
			if _, err := os.Stat(filepath.Join(three.Dir, "objects/info/alternates")); err == nil {
				t.Error("a detached fork borrows objects")
			}
		})
	}
}

func TestForkRefused(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	source := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--bare")
	source.Git("update-ref", "refs/heads/main", source.Commit("one").String())
	fork := func(source, target string) error {
		_, err := r.Fork(t.Context(), r.path(source), r.path(target), places.ForkOptions{})
		return err
	}
	r.do(fork("app", "fork"))
	partial := gittest.InitAt(t, filepath.Join(r.dir, "partial.git"), "--bare")
	partial.Git("config", "remote.origin.promisor", "true")
	lender := gittest.InitAt(t, filepath.Join(r.dir, "lender.git"), "--bare")
	borrower := gittest.InitAt(t, filepath.Join(r.dir, "borrower.git"), "--bare")
	r.do(os.WriteFile(filepath.Join(borrower.Dir, "objects/info/alternates"), []byte(lender.Dir+"/objects\n"), 0o666))
	for _, c := range []struct {
		source, target string
		kind           fault.Kind
		text           string
	}{
		{"app", "fork", fault.Exists, "fork already exists"},
		{"app", "fork/below", fault.Exists, "cannot be below"},
		{"app", "app", fault.Exists, "already exists"},
		{"none", "x", fault.NotFound, "none"},
		{"app", ".x", fault.Invalid, "dot"},
		{"partial", "x", fault.Denied, "partial clone"},
		{"borrower", "x", fault.Denied, "borrows objects"},
	} {
		err := fork(c.source, c.target)
		if !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s to %s: %v", c.source, c.target, err)
		}
	}
	if err := r.Detach(t.Context(), r.path("lender")); !fault.Is(err, fault.Exists) {
		t.Errorf("detach of a repository without a network: %v", err)
	}
}

// A repeated request with the same ID succeeds; a shallow repository and one with reftables can be forked.
func TestForkKinds(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	origin := gittest.Init(t)
	var tip git.ObjectID
	for range 3 {
		if tip.IsZero() {
			tip = origin.Commit("x")
		} else {
			tip = origin.Commit("x", tip)
		}
	}
	origin.Git("update-ref", "refs/heads/main", tip.String())
	gittest.Run(t, r.dir, "", "clone", "-q", "--bare", "--depth=2", "file://"+origin.Dir, "shallow.git")
	fork := r.fork("shallow", "fork")
	if got := fork.Git("rev-list", "--count", "main"); got != "2" {
		t.Errorf("%s commits", got)
	}
	fork.Git("fsck", "--strict")
	for range 2 {
		_, err := r.Fork(t.Context(), r.path("shallow"), r.path("again"), places.ForkOptions{RequestID: "once"})
		r.do(err)
	}
}

// A fork with a lifetime is removed when that has ended, also by a node that started later.
func TestForkLifetime(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	source := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--bare")
	source.Git("update-ref", "refs/heads/main", source.Commit("one").String())
	fork := func(name string, lifetime time.Duration) error {
		_, err := r.Fork(t.Context(), r.path("app"), r.path(name), places.ForkOptions{Lifetime: lifetime})
		return err
	}
	if err := fork("short", time.Second); !fault.Is(err, fault.Invalid) {
		t.Errorf("a fork for a second: %v", err)
	}
	r.do(fork("long", time.Hour))
	r.do(fork("over", time.Hour))
	over := gittest.At(t, filepath.Join(r.dir, "over.git"))
	over.Git("config", "packhorse.expires", time.Now().Add(-time.Minute).Format(time.RFC3339))
	if testing.Short() {
		t.Skip("lifetimes are checked every ten seconds")
	}
	until(t, "the fork is removed", func() bool {
		_, err := os.Stat(over.Dir)
		return errors.Is(err, fs.ErrNotExist)
	})
	gittest.At(t, filepath.Join(r.dir, "long.git")).Git("fsck")
}

// TestForkWhileServing forks a repository that is pushed to, renamed, configured and removed at the same time. A fork
// that succeeds is complete, and others leave nothing.
func TestForkWhileServing(t *testing.T) {
	t.Parallel()
	r := collectedRoot(t, receivepack.Options{})
	app := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--bare")
	app.Git("update-ref", "refs/heads/main", app.Commit("x").String())
	app.Git("update-ref", "refs/secret/one", app.Commit("secret").String())
	front := httptest.NewServer(http.HandlerFunc(r.serveHTTP))
	defer front.Close()
	var stop atomic.Bool
	var wg sync.WaitGroup
	client := gittest.Init(t, "--bare")
	tip := client.Commit("pushed")
	wg.Go(func() {
		for n := 0; !stop.Load(); n++ {
			tip = client.Commit(fmt.Sprint(n), tip)
			client.Git("update-ref", "refs/heads/next", tip.String())
			_, _ = client.Try("push", "-q", front.URL+"/app", "next:topic")
		}
	})
	wg.Go(func() {
		for n := 0; !stop.Load(); n++ {
			_ = r.Rename(t.Context(), r.path([]string{"app", "a/app"}[n%2]), r.path([]string{"app", "a/app"}[1-n%2]))
		}
	})
	wg.Go(func() {
		for n := 0; !stop.Load(); n++ {
			_, _ = r.Configure(t.Context(), r.path("app"), func(s places.Settings) error {
				s["transfer.hiderefs"] = []string{"refs/secret"}
				return nil
			})
		}
	})
	made := 0
	for n := 0; made < 12; n++ {
		target := fmt.Sprint("fork", n)
		_, err := r.Fork(t.Context(), r.path("app"), r.path(target), places.ForkOptions{})
		switch {
		case err == nil:
			made++
			gittest.At(t, filepath.Join(r.dir, target+".git")).Git("fsck", "--strict")
		case !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Unavailable):
			t.Errorf("fork: kind %v, %v", fault.KindOf(err), err)
			made++
		default:
			r.refuses(target, fault.NotFound, "no repository")
		}
	}
	stop.Store(true)
	wg.Wait()
	name := "app"
	if _, err := os.Stat(app.Dir); err != nil {
		name = "a/app"
	}
	removed := make(chan error)
	go func() { removed <- r.Delete(t.Context(), r.path(name), places.DeleteOptions{}) }()
	_, err := r.Fork(t.Context(), r.path(name), r.path("last"), places.ForkOptions{})
	r.do(<-removed)
	if err == nil {
		gittest.At(t, filepath.Join(r.dir, "last.git")).Git("fsck", "--strict")
	} else if !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Unavailable) {
		t.Errorf("a fork of a repository that is removed meanwhile: kind %v, %v", fault.KindOf(err), err)
	}
}

// A repository with reftables can be forked; the fork has files.
func TestForkOfReftables(t *testing.T) {
	t.Parallel()
	program := newerGit(t)
	r, _ := newTables(t, program)
	made := r.repo("app.git", "one")
	id := made.ID("main")
	by(t, program, made.Dir, "", "refs", "migrate", "--ref-format=reftable")
	fork := r.fork("app", "fork")
	fork.Git("fsck", "--strict")
	r.serves("fork", id)
	r.do(r.Rename(t.Context(), r.path("app"), r.path("a/app")))
	by(t, program, filepath.Join(r.dir, "a/app.git"), "", "fsck")
}

// An ID that does not exist is invisible in a fork, because another member could get the object before a call looks for
// it. Other revisions that do not exist are reported by the call.
func TestInvisibleInAFork(t *testing.T) {
	t.Parallel()
	r := collectedRoot(t, receivepack.Options{})
	r.repo("app.git", "x")
	r.repo("plain.git", "x")
	r.fork("app", "fork")
	id, zero := strings.Repeat("ab", 20), strings.Repeat("0", 40)
	for _, test := range []struct{ path, revision, want string }{
		{"fork", id, id}, {"fork", id + "~1", id + "~1"}, {"fork", "abcd", "abcd"}, {"fork", "none", ""}, {"fork", zero, ""},
		{"fork", "main", ""}, {"plain", id, ""},
	} {
		got, err := r.FindInvisible(t.Context(), r.path(test.path), []string{test.revision}, true)
		if err != nil || got != test.want {
			t.Errorf("%s of %s: %q, %v, want %q", test.revision, test.path, got, err, test.want)
		}
	}
}

// A fork has the LFS objects that its refs name, and no others of its source.
func TestForkWithLFS(t *testing.T) {
	t.Parallel()
	l := newLarge(t, storage.Options{Runner: newRunner(t)}, "app")
	app := gittest.At(t, filepath.Join(l.dir, "app.git"))
	var uploaded []lfs.Object
	for i, ref := range []string{"refs/heads/topic", "refs/heads/other", ""} {
		o := l.upload(l.path("app"), []byte(fmt.Sprint("content", i)))
		uploaded = append(uploaded, o)
		blob := app.Blob(fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", o.OID, o.Size))
		app.Git("update-index", "--add", "--cacheinfo", "100644", blob.String(), "large")
		tree := app.Git("write-tree")
		commit := app.Git("commit-tree", "-m", "x", tree)
		if ref != "" {
			app.Git("update-ref", ref, commit)
		}
	}
	_, err := l.Fork(t.Context(), l.path("app"), l.path("fork"), places.ForkOptions{Refs: []string{"refs/heads/topic"}})
	l.do(err)
	states := l.states(l.path("fork"), false, uploaded...)
	if states[0].State != lfs.Present || states[1].State != lfs.Missing || states[2].State != lfs.Missing {
		t.Errorf("the fork has %v, want only the first object", states)
	}
	_, err = l.Fork(t.Context(), l.path("app"), l.path("all"), places.ForkOptions{})
	l.do(err)
	states = l.states(l.path("all"), false, uploaded...)
	if states[0].State != lfs.Present || states[1].State != lfs.Present || states[2].State != lfs.Missing {
		t.Errorf("the second fork has %v, want the first two objects", states)
	}
	info, err := os.Stat(l.objectPath("fork", uploaded[0]))
	if err != nil || links(info) < 3 {
		t.Errorf("the object is not shared: %v", err)
	}
}
