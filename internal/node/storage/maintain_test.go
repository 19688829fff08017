package storage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
)

// history makes a repository with many small packs and loose objects.
func history(repo *gittest.Repo, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	tip := repo.ID("main")
	for i := range 12 {
		tip = repo.Commit(fmt.Sprint(seed, i, strings.Repeat("x", rnd.IntN(5000))), tip)
		repo.Git("update-ref", "refs/heads/main", tip.String())
		if i%3 == 0 {
			repo.Git("repack", "-d", "-q")
		}
	}
	repo.Git("tag", "-a", "-m", "t", fmt.Sprintf("v%d", seed), "main")
}

// TestMaintain compares what a repository holds before and after, and that no command of its configuration has run.
func TestMaintain(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	repo := r.repo("app.git", "x")
	history(repo, 1)
	unreachable := repo.Commit("nobody refers to this")
	marker := filepath.Join(t.TempDir(), "ran")
	program := filepath.Join(t.TempDir(), "program")
	r.do(os.WriteFile(program, []byte("#!/bin/sh\necho \"$0 $*\" >>"+marker+"\n"), 0o700))
	for _, key := range []string{
		"core.fsmonitor", "core.alternateRefsCommand", "core.sshCommand", "core.pager", "core.editor", "core.askPass",
		"core.gitProxy", "gc.recentObjectsHook",
		"gpg.program", "gpg.ssh.program", "pager.repack", "pager.pack-refs", "alias.repack", "alias.pack-objects",
		"uploadpack.packObjectsHook",
		"filter.x.clean", "diff.external", "merge.x.driver", "credential.helper", "trailer.x.command",
		"remote.origin.uploadpack", "remote.origin.vcs",
	} {
		repo.Git("config", key, program)
	}
	repo.Git("config", "remote.origin.url", "ext::"+program)
	hooks := filepath.Join(repo.Dir, "hooks")
	r.do(os.MkdirAll(hooks, 0o700))
	for _, hook := range []string{"reference-transaction", "pre-auto-gc", "post-index-change", "post-rewrite",
		"fsmonitor-watchman", "update"} {
		r.do(os.Symlink(program, filepath.Join(hooks, hook)))
	}
	repo.Git("config", "core.hooksPath", hooks)
	old := filepath.Join(repo.Dir, "objects/pack/tmp_pack_123456")
	r.do(os.WriteFile(old, []byte("x"), 0o600))
	long := time.Now().Add(-30 * 24 * time.Hour)
	r.do(os.Chtimes(old, long, long))

	objects, refs := repo.Objects(), repo.Git("for-each-ref")
	_ = os.Remove(marker) // git itself ran some
	m, err := r.Maintain(t.Context(), r.path("app"))
	r.do(err)
	if text, err := os.ReadFile(marker); err == nil {
		t.Errorf("the repository's configuration ran programs:\n%s", text)
	}
	if m.Before.Packs < 4 || m.After.Packs >= m.Before.Packs || m.After.Loose != 0 || !m.After.MultiPackIndex ||
		!m.After.Bitmap || !m.After.CommitGraph || m.Took <= 0 {
		t.Errorf("%+v", m)
	}
	graphs, err := filepath.Glob(filepath.Join(repo.Dir, "objects/info/commit-graphs/graph-*.graph"))
	if err != nil || len(graphs) != 1 {
		t.Fatalf("commit-graphs %v, %v, want one", graphs, err)
	}
	if b, err := os.ReadFile(graphs[0]); err != nil || !bytes.Contains(b[:200], []byte("BDAT")) {
		t.Errorf("the commit-graph has no filters of changed paths: %v", err)
	}
	for _, hook := range []string{"core.fsmonitor", "core.hooksPath", "core.alternateRefsCommand", "core.pager",
		"alias.repack"} {
		repo.Git("config", "--unset", hook)
	}
	if !slices.Equal(repo.Objects(), objects) || repo.Git("for-each-ref") != refs {
		t.Error("the repository holds something else now")
	}
	repo.Git("cat-file", "-e", unreachable.String())
	repo.Git("fsck", "--full", "--strict")
	if loose, err := filepath.Glob(repo.Dir + "/refs/heads/*"); err != nil || len(loose) > 0 {
		t.Errorf("loose refs %q, %v", loose, err)
	}
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Error("an abandoned pack is still there")
	}
	r.serves("app", repo.ID("main"))
	repo.Git("config", "hook.x.command", program) // which git runs of itself, but for what we tell it
	repo.Git("config", "hook.x.event", "reference-transaction")
	if _, err := r.Maintain(t.Context(), r.path("app")); err != nil {
		t.Errorf("with hooks in its configuration: %v", err)
	}
}

// The packs of who borrows become fewer, and hold only what was its own: whatever the packs of the lender are like.
func TestMaintainReducesPacksOfAFork(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	base := r.repo("base.git", "x")
	history(base, 1)
	gittest.Run(t, "", "", "clone", "-q", "--bare", "--shared", base.Dir, filepath.Join(r.dir, "fork.git"))
	fork := gittest.At(t, filepath.Join(r.dir, "fork.git"))
	history(fork, 2)
	tip := fork.ID("main")
	for i := range 8 { // as pushes leave them
		tip = fork.Commit(fmt.Sprint("more", i), tip)
		fork.Git("update-ref", "refs/heads/main", tip.String())
		fork.Git("repack", "-d", "-l", "-q")
	}
	loose := fork.Commit("nobody refers to this", tip)
	objects := fork.Objects()
	all := fork.Git("cat-file", "--batch-all-objects", "--batch-check")
	packs := func(g *gittest.Repo) []string {
		list, err := filepath.Glob(filepath.Join(g.Dir, "objects/pack/*.pack"))
		r.do(err)
		return list
	}
	lenders := packs(base)
	m, err := r.Maintain(t.Context(), r.path("fork"))
	r.do(err)
	if m.Before.Packs < 8 || m.After.Packs > 2 || m.After.Loose != 0 || !m.After.MultiPackIndex || m.After.Bitmap ||
		m.After.Packed > m.Before.Packed+m.Before.Loose {
		t.Errorf("%+v", m)
	}
	if !slices.Equal(packs(base), lenders) {
		t.Error("the lender's packs have changed")
	}
	if !slices.Equal(fork.Objects(), objects) || fork.Git("cat-file", "--batch-all-objects", "--batch-check") != all {
		t.Error("the fork holds something else now")
	}
	fork.Git("cat-file", "-e", loose.String())
	fork.Git("fsck", "--full")
	if left, err := filepath.Glob(filepath.Join(r.dir, ".packhorse/new/*")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// Others' objects stay what they are.
func TestMaintainWhereObjectsAreShared(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	base := r.repo("base.git", "x")
	history(base, 1)
	gittest.Run(t, "", "", "clone", "-q", "--bare", "--shared", base.Dir, filepath.Join(r.dir, "fork.git"))
	fork := gittest.At(t, filepath.Join(r.dir, "fork.git"))
	fork.Git("config", "transfer.unpackLimit", "1")
	history(fork, 2)
	fork.Git("repack", "-d", "-l", "-q")
	base.Git("update-ref", "-d", "refs/heads/main") // the fork alone needs some of it
	base.Git("tag", "-d", "v1")
	base.Git("update-ref", "refs/heads/main", base.Commit("new").String())
	objects := fork.Objects()
	for range 2 {
		for _, name := range []string{"base", "fork", "base"} {
			if _, err := r.Maintain(t.Context(), r.path(name)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if !slices.Equal(fork.Objects(), objects) {
		t.Error("the fork has lost objects")
	}
	fork.Git("fsck", "--full")
	if m, err := r.Maintain(t.Context(), r.path("fork")); err != nil || m.After.Bitmap || m.After.Packed > 60 {
		t.Errorf("the fork was packed with what it borrows: %+v, %v", m, err)
	}
	history(base, 3)
	base.Git("config", "core.repositoryFormatVersion", "1")
	base.Git("config", "extensions.preciousObjects", "true")
	before := base.Objects()
	m, err := r.Maintain(t.Context(), r.path("base"))
	if err != nil || m.After.Packs != m.Before.Packs || !slices.Equal(base.Objects(), before) {
		t.Errorf("precious: %+v, %v", m, err)
	}
}

func TestMaintainOneAtATime(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	repo := r.repo("app.git", "x")
	history(repo, 1)
	var done, refused atomic.Int32
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			switch _, err := r.Maintain(context.Background(), r.path("app")); {
			case err == nil:
				done.Add(1)
			case fault.Is(err, fault.Exhausted) && fault.RetryAfter(err) > 0:
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if done.Load() == 0 {
		t.Error("nobody could maintain it")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Maintain(ctx, r.path("app")); fault.KindOf(err) != fault.Cancelled {
		t.Errorf("after its caller has gone: %v", err)
	}
	r.do(r.Delete(t.Context(), r.path("app"), places.DeleteOptions{}))
}

// A git commit-graph that was killed has left a lock file. After a minute it is not that of another program.
func TestMaintainAfterAKill(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	repo := r.repo("app.git", "x")
	lockGraph(t, repo)
	if _, err := r.Maintain(t.Context(), r.path("app")); err == nil || !strings.Contains(err.Error(), "chain.lock") {
		t.Errorf("with the lock file of another program: %v", err)
	}
	minutesAgo := time.Now().Add(-2 * time.Minute)
	r.do(os.Chtimes(filepath.Join(repo.Dir, "objects/info/commit-graphs/commit-graph-chain.lock"), minutesAgo, minutesAgo))
	_, err := r.Maintain(t.Context(), r.path("app"))
	r.do(err)
}

// TestClonesBesideMaintenance fetches while the repository grows and is maintained all the time. Every fetch gets a
// whole pack.
func TestClonesBesideMaintenance(t *testing.T) {
	t.Parallel()
	runner := newRunner(t)
	source, err := packsource.NewGit(runner, packsource.GitOptions{Scratch: filepath.Join(t.TempDir(), "scratch")})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	node, err := storage.New(uploadpack.New(source, uploadpack.Options{Agent: "test"}),
		storage.Options{Root: dir, Runner: runner})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	repo := gittest.InitAt(t, filepath.Join(dir, "app.git"))
	repo.Git("update-ref", "refs/heads/main", repo.Commit("x").String())
	path, err := git.ParseRepoPath("app")
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var clones atomic.Int32
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				main, err := node.Resolve(context.Background(), path, "main")
				if err != nil {
					t.Error(err)
					return
				}
				into := gittest.Init(t)
				if err := fetchInto(node, path, into, main.ID); err != nil {
					t.Error(err)
					return
				}
				clones.Add(1)
			}
		})
	}
	for seed := uint64(0); seed < 3 || clones.Load() < 3 && !t.Failed(); seed++ {
		history(repo, seed)
		if _, err := node.Maintain(context.Background(), path); err != nil {
			t.Error(err)
		}
		runtime.Gosched()
	}
	stop.Store(true)
	wg.Wait()
	repo.Git("fsck", "--full")
}

// packIn is the pack in an answer to fetch.
func packIn(reply []byte) ([]byte, error) {
	var pack []byte
	r := pktline.NewReader(bytes.NewReader(reply))
	for {
		typ, data, err := r.Next()
		switch {
		case err != nil:
			return nil, fmt.Errorf("an answer that is cut off: %w", err)
		case typ == pktline.Flush:
			return pack, nil
		case typ == pktline.Data && len(data) > 0 && pktline.Band(data[0]) == pktline.BandData:
			pack = append(pack, data[1:]...)
		case typ == pktline.Data && len(data) > 0 && data[0] == 3:
			return nil, fmt.Errorf("the answer says: %s", data[1:])
		}
	}
}

// fetchInto fetches one commit with all that it reaches, and has git check it.
func fetchInto(node *storage.Node, path git.RepoPath, into *gittest.Repo, want git.ObjectID) error {
	request := pktline.AppendDelim(pktline.AppendLine(nil, "command=fetch"))
	request = pktline.AppendFlush(pktline.AppendLine(pktline.AppendLine(request, "want "+want.String()), "done"))
	var out answer
	if _, err := node.UploadPack(context.Background(), path, version2, bytes.NewReader(request), &out); err != nil {
		return err
	}
	pack, err := packIn(out.Bytes())
	if err != nil {
		return err
	}
	into.GitIn(string(pack), "index-pack", "--stdin", "--strict")
	into.Git("rev-list", "--objects", "--quiet", want.String())
	return nil
}

// TestMaintainSaysWhy checks that the administrator reads which pack is damaged, and no path of the server.
func TestMaintainSaysWhy(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	repo := r.repo("app.git", "x")
	history(repo, 1)
	last := repo.GitIn(repo.ID("main").String()+"\n", "pack-objects", "-q", filepath.Join(repo.Dir, "objects/pack/pack"))
	pack := filepath.Join(repo.Dir, "objects/pack/pack-"+last+".pack")
	info, err := os.Stat(pack)
	r.do(err)
	r.do(os.Chmod(pack, 0o600))
	r.do(os.Truncate(pack, info.Size()-25))
	_, err = r.Maintain(t.Context(), r.path("app"))
	text := fault.Message(err)
	if err == nil || !strings.Contains(text, "pack-"+last) || strings.Contains(text, repo.Dir) {
		t.Errorf("the administrator reads %q: %v", text, err)
	}
}
