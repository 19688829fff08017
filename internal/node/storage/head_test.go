package storage_test

import (
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

func TestSetHead(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	repo := r.repo("app.git", "x")
	repo.Git("update-ref", "refs/heads/side", repo.ID("main").String())
	r.do(os.Chmod(filepath.Join(repo.Dir, "HEAD"), 0o640))
	for _, branch := range []git.RefName{"refs/heads/main", "refs/heads/none/yet", "refs/heads/side"} {
		exists := branch != "refs/heads/none/yet"
		is, err := r.SetHead(t.Context(), r.path("app"), branch, "")
		if is != exists || err != nil {
			t.Errorf("%s: %v, %v", branch, is, err)
		}
		d, err := r.Describe(t.Context(), r.path("app"))
		if now := repo.Git("symbolic-ref", "HEAD"); now != string(branch) || d.Head.Target != branch || err != nil {
			t.Errorf("HEAD is %s, and seen as %+v (%v); want %s", now, d.Head, err, branch)
		}
	}
	if info, err := os.Stat(filepath.Join(repo.Dir, "HEAD")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for _, name := range []git.RefName{"refs/tags/v1", "HEAD", "refs/headsx/main"} {
		if _, err := r.SetHead(t.Context(), r.path("app"), name, ""); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.SetHead(t.Context(), r.path("none"), "refs/heads/main", ""); !fault.Is(err, fault.NotFound) {
		t.Errorf("no repository: %v", err)
	}
	lock := filepath.Join(repo.Dir, "HEAD.lock")
	r.do(os.WriteFile(lock, nil, 0o600))
	if _, err := r.SetHead(t.Context(), r.path("app"), "refs/heads/side", ""); !fault.Is(err, fault.Exhausted) {
		t.Errorf("a lock: %v", err)
	}
	r.do(os.Remove(lock))
	broken := errors.New("broken")
	r.FailSync(broken)
	if _, err := r.SetHead(t.Context(), r.path("app"), "refs/heads/side", ""); !errors.Is(err, broken) {
		t.Errorf("not on disk: %v", err)
	}
	if _, err := os.Lstat(lock); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock is left: %v", err)
	}
}

// newAdopting makes a root that takes pushes and sets HEAD.
func newAdopting(t *testing.T, log *slog.Logger) *root {
	t.Helper()
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		receivepack.ClassReceive: {Slots: 4, Queue: 100},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	pushes, err := receivepack.New(receivepack.Options{Runner: runner, Agent: "test", Scripts: t.TempDir(),
		Journal: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return newRoot(t, storage.Options{Pushes: pushes, Log: log})
}

// branch pushes new refs to an object that is there, with an empty pack.
func (r *root) branch(path string, reply node.ResponseWriter, id git.ObjectID, refs ...string) error {
	var b []byte
	for i, ref := range refs {
		command := fmt.Sprintf("%s %s %s", strings.Repeat("0", 40), id, ref)
		if i == 0 {
			command += "\x00 report-status"
		}
		b = pktline.AppendLine(b, command)
	}
	pack := []byte("PACK\x00\x00\x00\x02\x00\x00\x00\x00")
	sum := sha1.Sum(pack)
	b = append(append(pktline.AppendFlush(b), pack...), sum[:]...)
	_, err := r.ReceivePack(context.Background(), r.path(path),
		node.Session{Service: protocol.ReceivePack, Stateless: true}, node.Pusher{},
		bytes.NewReader(b), reply)
	return err
}

// TestFirstPushSetsHead reads HEAD just before the report is written.
func TestFirstPushSetsHead(t *testing.T) {
	t.Parallel()
	r := newAdopting(t, nil)
	for i, test := range []struct {
		branches []string
		head     string
	}{
		{[]string{"refs/heads/trunk"}, "trunk"},
		{[]string{"refs/heads/b", "refs/heads/a"}, "b"},
		{[]string{"refs/heads/a", "refs/heads/master"}, "master"},
		{[]string{"refs/heads/a", "refs/heads/master", "refs/heads/main"}, "main"},
		{[]string{"refs/heads/main", "refs/heads/unborn"}, "unborn"}, // HEAD's own
		{[]string{"refs/tags/v1", "refs/notes/x"}, "unborn"},
		{[]string{"refs/tags/v1", "refs/heads/a"}, "a"},
	} {
		name := fmt.Sprint("r", i, ".git")
		repo := gittest.InitAt(t, filepath.Join(r.dir, name), "--initial-branch=unborn")
		id := repo.Commit("x")
		reply := &reporting{before: func() {
			if head := repo.Git("symbolic-ref", "--short", "HEAD"); head != test.head {
				t.Errorf("%q: HEAD is %s before the report, want %s", test.branches, head, test.head)
			}
		}}
		r.do(r.branch(name, reply, id, test.branches...))
		d, err := r.Describe(t.Context(), r.path(name))
		if string(d.Head.Target) != "refs/heads/"+test.head || err != nil {
			t.Errorf("%q: HEAD is seen as %+v, %v", test.branches, d.Head, err)
		}
		// No later push changes it.
		r.do(r.branch(name, &answer{}, id, "refs/heads/later", "refs/heads/zz"))
		if head := repo.Git("symbolic-ref", "--short", "HEAD"); head != test.head && test.head != "unborn" {
			t.Errorf("%q: HEAD is %s after another push", test.branches, head)
		}
	}
}

// TestFirstPushesAtTheSameTime leaves HEAD at one of the branches.
func TestFirstPushesAtTheSameTime(t *testing.T) {
	t.Parallel()
	r := newAdopting(t, nil)
	repo := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--initial-branch=unborn")
	id := repo.Commit("x")
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			if err := r.branch("app", &answer{}, id, fmt.Sprint("refs/heads/b", i)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if head := repo.Git("symbolic-ref", "--short", "HEAD"); !strings.HasPrefix(head, "b") {
		t.Errorf("HEAD is %s", head)
	}
	if _, err := os.Lstat(filepath.Join(repo.Dir, "HEAD.lock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock is left: %v", err)
	}
}

// TestDanglingHeadIsLogged once for each repository, and not for an empty one.
func TestDanglingHeadIsLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := newAdopting(t, slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})))
	gittest.InitAt(t, filepath.Join(r.dir, "empty.git"))
	repo := gittest.InitAt(t, filepath.Join(r.dir, "app.git"), "--initial-branch=unborn")
	repo.Git("update-ref", "refs/heads/main", repo.Commit("x").String())
	for range 2 {
		for _, name := range []string{"app", "empty"} {
			_, err := r.refs(name)
			r.do(err)
		}
	}
	if strings.Count(out.String(), "names a branch that does not exist") != 1 ||
		!strings.Contains(out.String(), "repository=app") {
		t.Errorf("%s", out.String())
	}
}
