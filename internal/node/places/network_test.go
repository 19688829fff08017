package places

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// noGit is a RunGit that does nothing.
func noGit(context.Context, *repo.Repo, GitCommand) error { return nil }

// realGit is a RunGit.
func realGit(ctx context.Context, r *repo.Repo, c GitCommand) error {
	command := exec.CommandContext(ctx, "git", append([]string{"--git-dir=" + r.Common}, c.Args...)...)
	command.Env = append(os.Environ(), c.Env...)
	command.Stdin = strings.NewReader(c.Stdin)
	var messages strings.Builder
	command.Stderr = &messages
	out, err := command.Output()
	if err == nil && c.Output != nil {
		err = c.Output(bytes.NewReader(out))
	}
	return fault.Wrap(fault.Internal, messages.String(), err)
}

// fork forks the repository "app".
func (r *testRoot) fork(target string) {
	r.t.Helper()
	r.do(r.Fork(r.t.Context(), r.path("app"), r.path(target), ForkOptions{}))
}

// family returns the family of the repository "app", and its place. The caller closes the family and the repository.
func (r *testRoot) family() (*family, *dirPlace) {
	r.t.Helper()
	p, err := r.acquire(r.path("app"))
	r.do(err)
	_, err = p.Open(r.t.Context(), r.Repo)
	r.do(err)
	f, err := p.family(r.t.Context())
	r.do(err)
	return f, p
}

// A removal that waits for a fork does not keep the fork from its network.
func TestForkDuringRemoval(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	made := newTestRoot(t, dir)
	made.repo("app.git", "x")
	made.fork("one")
	synctest.Test(t, func(t *testing.T) {
		r := newTestRoot(t, dir)
		f, p := r.family()
		collection := r.Claims.Gates.Collect(p.repo.Common)
		release, err := r.Claims.Gates.Hold(t.Context(), p.repo.Common) // as a fork
		r.do(err)
		ended := make(chan error)
		go func() { ended <- f.remove(t.Context(), noGit, nil, map[git.ObjectID]bool{}, &Purged{}) }()
		synctest.Wait()
		if !r.sharing.TryAcquire(1) {
			t.Fatal("the removal keeps forks from the network while it waits for them")
		}
		r.sharing.Release(1)
		release()
		r.do(<-ended)
		collection.End()
		f.close()
		r.do(p.repo.Close())
	})
}

// A push may need objects that no ref reaches when a repository leaves its network. Own ones stay. If it needs those of
// the network, the repository does not leave.
func TestDetachDuringPush(t *testing.T) {
	t.Parallel()
	r := newTestRoot(t, t.TempDir())
	app := r.repo("app.git", "x")
	shared := app.Commit("shared")
	app.Git("update-ref", "refs/heads/undone", shared.String())
	r.fork("one")
	one := gittest.At(t, filepath.Join(r.dir, "one"))
	one.Git("update-ref", "refs/heads/undone", one.Commit("own").String())
	own := one.ID("undone")
	one.Git("repack", "-a", "-d", "-l", "-q")
	one.Git("update-ref", "-d", "refs/heads/undone")
	push := func(ctx context.Context, repository *repo.Repo, c GitCommand) error {
		err := realGit(ctx, repository, c)
		if c.Args[0] == "repack" {
			one.Git("update-ref", "refs/heads/pushed", shared.String())
		}
		return err
	}
	alternates := filepath.Join(one.Dir, "objects/info/alternates")
	if err := r.Detach(t.Context(), r.path("one"), push); !fault.Is(err, fault.Unavailable) {
		t.Errorf("after a push that needs an object of the network: %v", err)
	}
	if _, err := os.Stat(alternates); err != nil {
		t.Errorf("the repository has left the network: %v", err)
	}
	one.Git("fsck", "--strict")
	r.do(r.Detach(t.Context(), r.path("one"), realGit))
	if _, err := os.Stat(alternates); err == nil {
		t.Error("the repository is in the network")
	}
	one.Git("fsck", "--strict")
	one.Git("cat-file", "-e", own.String()+"^{tree}")
}

// A fork that is made after the members of its network were listed ends the removal.
func TestRemovalDuringFork(t *testing.T) {
	t.Parallel()
	r := newTestRoot(t, t.TempDir())
	r.repo("app.git", "x")
	r.fork("one")
	for _, isRunning := range []bool{true, false} {
		f, p := r.family()
		network := p.repo.Network()
		if isRunning {
			r.networks.use(network)
		} else {
			r.fork("two")
		}
		err := f.remove(t.Context(), noGit, nil, map[git.ObjectID]bool{}, &Purged{})
		if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "fork") {
			t.Errorf("removal, while a fork is being made: %t: %v", isRunning, err)
		}
		if isRunning {
			r.networks.release(network)
		}
		f.close()
		r.do(p.repo.Close())
	}
	f, p := r.family()
	r.do(f.remove(t.Context(), noGit, nil, map[git.ObjectID]bool{}, &Purged{}))
	f.close()
	r.do(p.repo.Close())
}

// Members whose objects must not be removed keep those of the network.
func TestRemovalIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(one *gittest.Repo){
		"preciousObjects": func(one *gittest.Repo) { one.Git("config", "extensions.preciousObjects", "true") },
		"work tree":       func(one *gittest.Repo) { one.Git("worktree", "add", "-q", "--detach", "../tree", "main") },
	} {
		r := newTestRoot(t, t.TempDir())
		r.repo("app.git", "x")
		r.fork("one")
		one := gittest.At(t, filepath.Join(r.dir, "one"))
		change(one)
		p, err := r.acquire(r.path("app"))
		r.do(err)
		_, err = p.Open(t.Context(), r.Repo)
		r.do(err)
		_, err = p.Collect(t.Context(), realGit, CollectOptions{})
		if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), name) {
			t.Errorf("collection with a member with %s: %v", name, err)
		}
		_, err = p.Purge(t.Context(), realGit, PurgeOptions{IDs: []git.ObjectID{one.ID("main")}})
		if !fault.Is(err, fault.Denied) || !strings.Contains(err.Error(), name) {
			t.Errorf("purge with a member with %s: %v", name, err)
		}
		r.do(p.repo.Close())
	}
}

// A dry run has the numbers of all members, and changes nothing.
func TestDryRunInANetwork(t *testing.T) {
	t.Parallel()
	r := newTestRoot(t, t.TempDir())
	app := r.repo("app.git", "x")
	app.Git("update-ref", "refs/heads/old", app.Commit("old, and reached by nothing").String())
	r.fork("one")
	one := gittest.At(t, filepath.Join(r.dir, "one"))
	for _, member := range []*gittest.Repo{app, one} {
		member.Git("update-ref", "-d", "refs/heads/old")
		member.Git("reflog", "expire", "--expire=now", "--all")
	}
	one.Commit("an own object that nothing reaches")
	p, err := r.acquire(r.path("app"))
	r.do(err)
	_, err = p.Open(t.Context(), r.Repo)
	r.do(err)
	var results [3]Collected
	for i := range results {
		results[i], err = p.Collect(t.Context(), realGit, CollectOptions{DryRun: i < 2, OlderThan: -time.Hour})
		r.do(err)
		if names := fmt.Sprint(results[i].Members); names != "[app.git one]" {
			t.Errorf("the members are %s", names)
		}
	}
	count := func(c pack.Counts) int64 { return c.Packed + c.Loose }
	if dry := results[0]; count(dry.Before) < count(dry.After)+3 || dry.Freed <= 0 {
		t.Errorf("a dry run: %+v, want at least 3 objects less", dry)
	}
	if fmt.Sprint(results[0]) != fmt.Sprint(results[1]) {
		t.Errorf("a second dry run: %+v, want %+v", results[1], results[0])
	}
	dry, done := results[0], results[2]
	if count(dry.Before) != count(done.Before) || count(dry.After) != count(done.After) {
		t.Errorf("the collection: %+v, want the numbers of the dry run, %+v", done, dry)
	}
	app.Git("fsck", "--strict")
	one.Git("fsck", "--strict")
	r.do(p.repo.Close())
}

// Doomed finds what needs an object over several objects, and nothing else.
func TestDoomed(t *testing.T) {
	t.Parallel()
	r := newTestRoot(t, t.TempDir())
	app := r.repo("app.git", "x")
	secret := app.Blob("secret")
	want := map[git.ObjectID]bool{secret: true}
	id := app.CommitTree("needs it", "100644 blob "+secret.String()+"\tfile\n")
	want[app.ID(id.String()+"^{tree}")] = true
	for i := range 20 {
		want[id] = true
		id = app.Commit(fmt.Sprint("younger ", i), id)
	}
	want[id] = true
	app.Commit("another unreachable one", app.ID("main"))
	p, err := r.acquire(r.path("app"))
	r.do(err)
	opened, err := p.Open(t.Context(), r.Repo)
	r.do(err)
	s := &Survey{Repo: opened, Run: realGit, Tips: []NamedTip{{"main", app.ID("main")}}}
	got, err := s.Doomed(t.Context(), PurgeOptions{IDs: []git.ObjectID{secret}})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("Doomed() has %d objects, %v, want %d", len(got), err, len(want))
	}
	r.do(opened.Close())
}
