package storage_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// TestRename renames the members of a network to other depths, with everything in their directories.
func TestRename(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	source := r.repo("team/app.git", "x")
	source.Git("config", "gitweb.owner", "ann")
	r.do(errors.Join(os.MkdirAll(source.Dir+"/lfs/objects/ab/cd", 0o700),
		os.WriteFile(source.Dir+"/lfs/objects/ab/cd/abcd", []byte("large"), 0o600)))
	main := source.ID("main")
	r.fork("team/app", "fork")
	r.serves("team/app", main)
	for from, to := range map[string]string{"team/app": "a/b/c/app", "fork": "d/fork"} {
		r.do(r.Rename(t.Context(), r.path(from), r.path(to)))
		r.refuses(from, fault.NotFound, "no repository "+from+" here")
		r.serves(to, main)
		gittest.At(t, filepath.Join(r.dir, to+".git")).Git("fsck", "--strict", "--full")
		if text, _ := os.ReadFile(filepath.Join(r.dir, to+".git", "objects/info/alternates")); strings.Count(string(text),
			"\n") != 1 {
			t.Errorf("%s has the alternates %q, want one", to, text)
		}
	}
	if _, err := os.Stat(filepath.Join(r.dir, "a/b/c/app.git/lfs/objects/ab/cd/abcd")); err != nil {
		t.Error(err)
	}
	r.do(r.Rename(t.Context(), r.path("a/b/c/app.git"), r.path("a/b/c/app")))
	r.do(r.create("team/app")) // the former path is free
	r.fork("a/b/c/app", "third").Git("fsck", "--strict")
	r.do(r.Rename(t.Context(), r.path("third"), r.path("team/third")))
	for _, name := range []string{"a/b/c/app", "d/fork"} {
		r.do(r.Delete(t.Context(), r.path(name), places.DeleteOptions{}))
	}
	gittest.At(t, filepath.Join(r.dir, "team/third.git")).Git("fsck", "--strict")
	if left, err := filepath.Glob(filepath.Join(r.dir, ".packhorse/moves/*")); err != nil || len(left) > 0 {
		t.Errorf("notes of renamings are left: %q, %v", left, err)
	}
}

func TestRenameRefusals(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	r.repo("app.git", "x")
	r.repo("lender.git", "x")
	r.repo("borrower.git", "y")
	r.do(os.WriteFile(filepath.Join(r.dir, "borrower.git/objects/info/alternates"), []byte("../../lender.git/objects\n"),
		0o600))
	r.repo("work/.git", "work")
	r.repo("mirror.git", "x").Git("config", "packhorse.mirror", "true")
	r.repo("broken.git", "x")
	r.do(os.WriteFile(filepath.Join(r.dir, "broken.git/objects/info/alternates"), []byte("../../none\n"), 0o600))
	r.repo("precious.git", "x").Git("config", "extensions.preciousObjects", "true")
	r.do(errors.Join(os.Symlink("app.git", filepath.Join(r.dir, "link.git")),
		os.WriteFile(filepath.Join(r.dir, "file"), nil, 0o600), os.Symlink(t.TempDir(), filepath.Join(r.dir, "out"))))
	for _, test := range []struct {
		from, to string
		kind     fault.Kind
		says     string
	}{
		{"none", "x", fault.NotFound, "no repository none here"},
		{"app", "lender", fault.Exists, "already exists"},
		{"app", "app/below", fault.Exists, "cannot be below it"},
		{"app", "file", fault.Exists, "another file"},
		{"app", "file/x", fault.Exists, "file"},
		{"app", "out/x", fault.Denied, "not allowed"},
		{"app", "-x", fault.Invalid, "path component"},
		{"app", ".packhorse/x", fault.Invalid, "path component"},
		{"app", "a/.git", fault.Invalid, "path component"},
		{"app", "a%2Fb", fault.Invalid, "percent-encoded"},
		{"lender", "x", fault.Denied, "borrow its objects"},
		{"broken", "x", fault.Denied, "borrows objects by a path"},
		{"work", "x", fault.Denied, "work tree"},
		{"link", "x", fault.Denied, "link"},
		{"mirror", "x", fault.NotFound, "no repository mirror"},
		{"precious", "x", fault.Denied, "preciousObjects"},
	} {
		err := r.Rename(t.Context(), r.path(test.from), r.path(test.to))
		if fault.KindOf(err) != test.kind || !strings.Contains(fault.Message(err), test.says) {
			t.Errorf("%s to %s: kind %v, %v; want %v, %q", test.from, test.to, fault.KindOf(err), err, test.kind, test.says)
		}
	}
	r.do(r.Rename(t.Context(), r.path("borrower"), r.path("a/b/borrower"))) // its path to the lender is changed
	gittest.At(t, filepath.Join(r.dir, "a/b/borrower.git")).Git("fsck", "--strict")
}

// TestRenameWhileServing renames a member of a network again and again. Each push that is accepted is in it at the end.
func TestRenameWhileServing(t *testing.T) {
	t.Parallel()
	r := collectedRoot(t, receivepack.Options{})
	app := gittest.InitAt(t, filepath.Join(r.dir, "source.git"), "--bare")
	app.Git("update-ref", "refs/heads/main", app.Commit("x").String())
	r.fork("source", "app")
	front := httptest.NewServer(http.HandlerFunc(r.serveHTTP))
	defer front.Close()
	names := []string{"app", "a/b/app"}
	urls := strings.NewReplacer("a/b/app", "a%2Fb%2Fapp")
	var stop atomic.Bool
	var wg sync.WaitGroup
	var accepted, cloned atomic.Int32
	last := make([]string, 2)
	for i := range last {
		client := gittest.Init(t, "--bare")
		client.Git("fetch", "-q", front.URL+"/source", "main:main")
		tip := client.ID("main")
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				tip = client.Commit(fmt.Sprint(i, n), tip)
				client.Git("update-ref", "refs/heads/next", tip.String())
				_, err := client.Try("push", "-q", front.URL+"/"+urls.Replace(names[n%2]), fmt.Sprint("next:topic", i))
				if err == nil {
					accepted.Add(1)
					last[i] = tip.String()
				}
			}
		})
	}
	wg.Go(func() {
		for n := 0; !stop.Load(); n++ {
			client := gittest.Init(t, "--bare")
			if _, err := client.Try("fetch", "-q", front.URL+"/"+urls.Replace(names[n%2]), "refs/*:refs/*"); err == nil {
				client.Git("fsck", "--full")
				cloned.Add(1)
			}
		}
	})
	for n := 0; n < 6 || accepted.Load() < 2 || cloned.Load() == 0; n++ {
		err := r.Rename(t.Context(), r.path(names[n%2]), r.path(names[1-n%2]))
		if fault.Is(err, fault.Exhausted) || fault.Is(err, fault.Unavailable) {
			n--
		} else if err != nil {
			t.Fatal(err)
		}
		r.do(os.MkdirAll(filepath.Join(r.dir, "a/b"), 0o700))
	}
	stop.Store(true)
	wg.Wait()
	for _, name := range names {
		dir := filepath.Join(r.dir, name+".git")
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		end := gittest.At(t, dir)
		end.Git("fsck", "--full", "--strict")
		for i, id := range last {
			if id != "" {
				end.Git("merge-base", "--is-ancestor", id, fmt.Sprint("topic", i))
			}
		}
	}
	t.Logf("%d pushes, %d clones", accepted.Load(), cloned.Load())
}
