package storage_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
)

const day = 24 * time.Hour

// age makes all objects of a repository a month old.
func age(t *testing.T, of *gittest.Repo) {
	t.Helper()
	then := time.Now().Add(-30 * day)
	for _, pattern := range []string{"objects/??/*", "objects/pack/*"} {
		files, err := filepath.Glob(filepath.Join(of.Dir, pattern))
		for _, path := range files {
			err = os.Chtimes(path, then, then)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// lockGraph leaves the lock file of a git commit-graph that was killed.
func lockGraph(t *testing.T, of *gittest.Repo) {
	t.Helper()
	dir := filepath.Join(of.Dir, "objects/info/commit-graphs")
	err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "commit-graph-chain.lock"), nil, 0o400))
	if err != nil {
		t.Fatal(err)
	}
}

// randomText returns a text that does not compress.
func randomText() string {
	var b strings.Builder
	for range 1000 {
		b.WriteString(rand.Text())
	}
	return b.String()
}

// allObjects lists the objects of a repository, also unreachable ones.
func allObjects(of *gittest.Repo) []string {
	return strings.Fields(of.Git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)"))
}

func (r *root) collect(path string, o places.CollectOptions) (places.Collected, error) {
	r.t.Helper()
	return r.Collect(r.t.Context(), r.path(path), o)
}

// files lists the files of a repository's objects with their times.
func files(t *testing.T, of *gittest.Repo) (list []string) {
	t.Helper()
	err := filepath.WalkDir(of.Dir, func(path string, e os.DirEntry, err error) error {
		if info, statErr := e.Info(); err == nil && statErr == nil && !e.IsDir() {
			list = append(list, fmt.Sprint(path, info.Size(), info.ModTime()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestCollect(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			r := newManager(t)
			app := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--bare", "--object-format="+format)
			app.Git("update-ref", "refs/heads/main", app.Commit("x").String())
			history(app, 1)
			app.Git("config", "core.logAllRefUpdates", "always")
			app.Git("update-ref", "refs/heads/logged", app.Commit("in a reflog").String())
			app.Git("update-ref", "refs/heads/logged", "main")
			app.Git("update-index", "--add", "--cacheinfo", "100644", app.Blob("in the index").String(), "file")
			packed := app.Commit("old and packed" + randomText())
			app.Git("update-ref", "refs/heads/gone", packed.String())
			app.Git("repack", "-a", "-d", "-q")
			app.Git("update-ref", "-d", "refs/heads/gone")
			base := app.Commit("old, but a young commit builds on it")
			old := app.Commit("old and loose")
			age(t, app)
			young := app.Commit("young", base)

			before := files(t, app)
			dry, err := r.collect("app", places.CollectOptions{OlderThan: 14 * day, DryRun: true})
			if err != nil || dry.Freed <= 0 || !slices.Equal(files(t, app), before) {
				t.Errorf("a dry run has changed something: %+v, %v", dry, err)
			}
			objects := allObjects(app)
			lockGraph(t, app)
			unready := filepath.Join(app.Dir, "objects/pack/pack-"+strings.Repeat("0", len(young.String()))+".pack")
			r.do(os.WriteFile(unready, []byte("PACK"), 0o400)) // a push adds its index next
			done, err := r.collect("app", places.CollectOptions{OlderThan: 14 * day})
			r.do(err)
			left := allObjects(app)
			r.do(os.Remove(unready))
			gone := slices.DeleteFunc(objects, func(id string) bool { return slices.Contains(left, id) })
			if len(gone) != 6 || !strings.Contains(fmt.Sprint(gone), old.String()) ||
				!strings.Contains(fmt.Sprint(gone), packed.String()) {
				t.Errorf("%d objects are gone, want the 6 of two commits: %v", len(gone), gone)
			}
			if done.After.Packed != int64(len(left)) || !done.After.Bitmap || !done.After.MultiPackIndex {
				t.Errorf("%+v, want %d objects", done, len(left))
			}
			app.Git("cat-file", "-e", young.String()+"^{tree}")
			app.Git("fsck", "--full", "--strict")
			app.Git("commit-graph", "verify")
			app.Git("multi-pack-index", "verify")
			if _, err := r.collect("app", places.CollectOptions{OlderThan: 14 * day}); err != nil ||
				!slices.Equal(allObjects(app), left) {
				t.Errorf("the second time: %v", err)
			}
			_, err = r.collect("app", places.CollectOptions{})
			r.do(err)
			if _, err := app.Try("cat-file", "-e", young.String()); err == nil {
				t.Error("an unreachable object is younger than no time")
			}
			app.Git("fsck", "--full", "--strict")
		})
	}
}

func TestCollectIsRefused(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	lender := r.repo("lender.git", "x")
	borrower := r.repo("borrower.git", "x")
	r.do(os.WriteFile(borrower.Dir+"/objects/info/alternates", []byte(lender.Dir+"/objects\n"), 0o600))
	r.repo("precious.git", "x").Git("config", "extensions.preciousObjects", "true")
	r.repo("partial.git", "x").Git("config", "extensions.partialClone", "origin")
	r.repo("mirror.git", "x").Git("config", "packhorse.mirror", "true")
	for path, want := range map[string]string{"lender": "borrower.git", "precious": "preciousObjects",
		"partial": "partial clone", "mirror": "mirror"} {
		if _, err := r.collect(path, places.CollectOptions{}); !fault.Is(err, fault.Denied) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
		before := files(t, gittest.At(t, filepath.Join(r.dir, path+".git")))
		id := gittest.At(t, filepath.Join(r.dir, path+".git")).Blob("unreachable")
		if _, err := r.purge(path, id); !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), want) ||
			path == "mirror" && !strings.Contains(err.Error(), "its origin has the objects") {
			t.Errorf("purge in %s: %v", path, err)
		}
		if after := files(t, gittest.At(t, filepath.Join(r.dir, path+".git"))); len(after) != len(before)+1 {
			t.Errorf("%s has %d files, and had %d before the blob", path, len(after), len(before))
		}
	}
	if _, err := r.collect("borrower", places.CollectOptions{OlderThan: -1}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a negative age: %v", err)
	}
}

// A member of a network keeps what it needs and loses what it has twice. The network loses what no member reaches.
func TestCollectFork(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	source := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--bare")
	source.Git("update-ref", "refs/heads/main", source.Commit("x").String())
	history(source, 1)
	gone := source.Commit("shared, and then undone")
	source.Git("update-ref", "refs/heads/undone", gone.String())
	fork := r.fork("app", "fork")
	own := fork.Commit("own", fork.ID("main"))
	fork.Git("update-ref", "refs/heads/main", own.String())
	fork.Git("config", "uploadpack.grace", "0")
	dropped := fork.Commit("dropped")
	source.Git("update-ref", "-d", "refs/heads/undone")
	age(t, source)
	age(t, fork)
	for path, member := range map[string]*gittest.Repo{"app": source, "fork": fork} {
		done, err := r.collect(path, places.CollectOptions{OlderThan: 14 * day})
		own, countErr := pack.Open(filepath.Join(member.Dir, "objects"), pack.Options{Alone: true})
		r.do(countErr)
		counts, countErr := own.Count(t.Context())
		r.do(countErr)
		own.Close()
		if err != nil || len(done.Members) != 2 || counts.Packed > 4 {
			t.Errorf("%s: %+v, %v; it has %+v", path, done, err, counts)
		}
	}
	source.Git("fsck", "--full", "--strict")
	fork.Git("fsck", "--full", "--strict")
	fork.Git("cat-file", "-e", gone.String())
	fork.Git("config", "core.logAllRefUpdates", "always")
	fork.Git("update-ref", "-m", "logged", "refs/heads/logged", gone.String())
	fork.Git("update-ref", "refs/heads/logged", "main")
	fork.Git("update-ref", "-d", "refs/heads/undone")
	_, logErr := r.collect("app", places.CollectOptions{OlderThan: 14 * day})
	r.do(logErr)
	fork.Git("cat-file", "-e", gone.String()) // a reflog has it
	fork.Git("update-ref", "-d", "refs/heads/logged")
	_, goneErr := r.collect("app", places.CollectOptions{OlderThan: 14 * day})
	r.do(goneErr)
	for _, member := range []*gittest.Repo{source, fork} {
		if _, err := member.Try("cat-file", "-e", gone.String()); err == nil {
			t.Error("an expired object of the network is there")
		}
	}
	if _, err := fork.Try("cat-file", "-e", dropped.String()); err == nil {
		t.Error("an expired object of the fork is there")
	}
	_, err := r.collect("app", places.CollectOptions{})
	r.do(err)
	fork.Git("fsck", "--full", "--strict")
}

// collectedRoot accepts pushes, makes packs by Git, and maintains repositories.
func collectedRoot(t *testing.T, o receivepack.Options) *root {
	t.Helper()
	limits := process.Limits{Slots: 8, Queue: 1000}
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		places.ClassMaintain: limits, places.ClassManage: limits, packsource.ClassPack: limits,
		receivepack.ClassReceive: limits,
		receivepack.ClassHook:    limits, receivepack.ClassUpdate: limits, repo.ClassRefs: limits,
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	o.Runner, o.Agent, o.Scripts, o.Journal = runner, "test", t.TempDir(), t.TempDir()
	pushes, err := receivepack.New(o)
	if err != nil {
		t.Fatal(err)
	}
	source, err := packsource.NewGit(runner, packsource.GitOptions{Scratch: filepath.Join(t.TempDir(), "scratch")})
	if err != nil {
		t.Fatal(err)
	}
	r := &root{t: t, dir: t.TempDir()}
	r.Node, err = storage.New(uploadpack.New(source, uploadpack.Options{Agent: "test"}),
		storage.Options{Root: r.dir, Runner: runner, Pushes: pushes, Tables: repo.NewTables(runner)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// serveHTTP is as much of the smart HTTP protocol as fetches and pushes need.
func (r *root) serveHTTP(w http.ResponseWriter, request *http.Request) {
	name, service, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/"), "/")
	isAdvertised := service == "info/refs"
	if isAdvertised {
		_, service, _ = strings.Cut(service, "/")
		service = request.URL.Query().Get("service")
	}
	path, _ := git.ParseRepoPath(name)
	session := node.Session{Service: protocol.UploadPack, Version: protocol.V2, Stateless: true}
	if service == "git-receive-pack" {
		session.Service, session.Version = protocol.ReceivePack, protocol.V0
	}
	var reply answer
	var err error
	switch {
	case isAdvertised:
		_, err = r.Advertise(request.Context(), path, session, &reply)
	case session.Service == protocol.ReceivePack:
		_, err = r.ReceivePack(request.Context(), path, session, node.Pusher{}, request.Body, &reply)
	default:
		_, err = r.UploadPack(request.Context(), path, session, request.Body, &reply)
	}
	if err != nil && reply.Len() == 0 {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	kind := "result"
	if isAdvertised {
		kind = "advertisement"
	}
	w.Header().Set("Content-Type", "application/x-"+service+"-"+kind)
	if isAdvertised {
		_, _ = w.Write(pktline.AppendFlush(pktline.AppendLine(nil, "# service="+service)))
	}
	_, _ = io.Copy(w, &reply)
}

// TestCollectWhileServing collects all the time, with no age at all. Meanwhile Git clones and pushes, deletes and
// pushes again what was deleted, and calls commit.
func TestCollectWhileServing(t *testing.T) {
	t.Parallel()
	r := collectedRoot(t, receivepack.Options{})
	app := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--bare")
	app.Git("config", "uploadpack.grace", "0")
	app.Git("update-ref", "refs/heads/main", app.Commit("x").String())
	history(app, 1)
	front := httptest.NewServer(http.HandlerFunc(r.serveHTTP))
	defer front.Close()
	var stop atomic.Bool
	time.AfterFunc(4*time.Second, func() { stop.Store(true) })
	var wg sync.WaitGroup
	var pushes, refused, calls, clones, collections atomic.Int32
	for i := range 2 {
		client := gittest.Init(t, "--bare")
		client.Git("fetch", "-q", front.URL+"/app", "main:main")
		branch := fmt.Sprint("refs/heads/topic", i)
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				tip := client.Commit(fmt.Sprint("topic", i, n/4), client.ID("main")) // the same again and again
				client.Git("update-ref", "refs/heads/next", tip.String())
				out, err := client.Try("push", "-q", "-f", front.URL+"/app", "next:"+branch)
				switch {
				case err == nil:
					pushes.Add(1)
				case strings.Contains(out+err.Error(), "push again"):
					refused.Add(1)
				default:
					t.Errorf("push: %v\n%s", err, out)
				}
				if n%2 == 0 {
					_, _ = client.Try("push", "-q", front.URL+"/app", ":"+branch)
				}
			}
		})
	}
	wg.Go(func() {
		for n := 0; !stop.Load(); n++ {
			if _, err := r.change("app", put("main", fmt.Sprint("file", n), fmt.Sprint(n))); err != nil {
				t.Error(err)
			}
			calls.Add(1)
			text := fmt.Sprint("again ", n/8)
			if _, err := r.change("app", put("side", "file", text)); err != nil && !fault.Is(err, fault.Unavailable) {
				t.Error(err)
			}
		}
	})
	wg.Go(func() {
		for n := 0; !stop.Load(); n++ {
			dir := filepath.Join(t.TempDir(), fmt.Sprint("clone", n))
			gittest.Run(t, "", "", "clone", "-q", "--bare", "--single-branch", "--branch", "main", front.URL+"/app", dir)
			gittest.At(t, dir).Git("fsck", "--full")
			clones.Add(1)
		}
	})
	for !stop.Load() {
		switch _, err := r.collect("app", places.CollectOptions{}); {
		case err == nil:
			collections.Add(1)
		case !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Exhausted):
			t.Error(err)
		}
	}
	wg.Wait()
	app.Git("fsck", "--full", "--strict")
	if got := len(strings.Fields(app.Git("ls-tree", "--name-only", "main"))); got < int(calls.Load()) {
		t.Errorf("main has %d files of %d calls", got, calls.Load())
	}
	t.Logf("%d pushes, %d refused, %d calls, %d clones, %d collections", pushes.Load(), refused.Load(), calls.Load(),
		clones.Load(), collections.Load())
	if pushes.Load() == 0 || calls.Load() == 0 || clones.Load() == 0 || collections.Load() == 0 {
		t.Error("not everything has run")
	}
}

// TestCollectGrace keeps what a client may still fetch after its branch was deleted.
func TestCollectGrace(t *testing.T) {
	t.Parallel()
	r := collectedRoot(t, receivepack.Options{})
	app := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--bare")
	app.Git("update-ref", "refs/heads/main", app.Commit("x").String())
	old := app.Commit("of a branch")
	app.Git("update-ref", "refs/heads/topic", old.String())
	front := httptest.NewServer(http.HandlerFunc(r.serveHTTP))
	defer front.Close()
	gittest.Run(t, "", "", "ls-remote", front.URL+"/app")
	age(t, app)
	app.Git("update-ref", "-d", "refs/heads/topic")
	if _, err := r.collect("app", places.CollectOptions{OlderThan: day}); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(err.Error(), "fetch.grace") {
		t.Errorf("a collection within the grace: %v", err)
	}
	gittest.Init(t, "--bare").Git("fetch", "-q", front.URL+"/app", old.String())
	app.Git("config", "uploadpack.grace", "0")
	_, err := r.collect("app", places.CollectOptions{OlderThan: day})
	r.do(err)
	if _, err := app.Try("cat-file", "-e", old.String()); err == nil {
		t.Error("the old commit is left without a grace")
	}
}

// TestCollectGraceOfFork keeps what a client of a fork may still fetch when the objects of the network are collected.
func TestCollectGraceOfFork(t *testing.T) {
	t.Parallel()
	r := collectedRoot(t, receivepack.Options{})
	app := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--bare")
	app.Git("update-ref", "refs/heads/main", app.Commit("x").String())
	old := app.Commit("of a branch")
	app.Git("update-ref", "refs/heads/topic", old.String())
	fork := r.fork("app", "fork")
	app.Git("update-ref", "-d", "refs/heads/topic")
	front := httptest.NewServer(http.HandlerFunc(r.serveHTTP))
	defer front.Close()
	gittest.Run(t, "", "", "ls-remote", front.URL+"/fork")
	age(t, app)
	fork.Git("update-ref", "-d", "refs/heads/topic")
	for _, grace := range []string{"24h", "0"} {
		fork.Git("config", "uploadpack.grace", grace)
		_, err := r.collect("app", places.CollectOptions{OlderThan: day})
		r.do(err)
		if _, err := fork.Try("cat-file", "-e", old.String()); (err == nil) != (grace != "0") {
			t.Errorf("after a collection with a grace of %s: %v", grace, err)
		}
	}
}
