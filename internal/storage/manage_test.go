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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/gittest"
	"github.com/packhorse-git/packhorse/internal/packsource"
	"github.com/packhorse-git/packhorse/internal/storage"
	"github.com/packhorse-git/packhorse/internal/uploadpack"
)

// newRunner is what a node makes and maintains repositories with.
func newRunner(t *testing.T) *process.Runner {
	t.Helper()
	limits := process.Limits{Slots: 2, Queue: 100}
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		storage.ClassManage: limits, storage.ClassMaintain: {Slots: 1, Queue: 100, Nice: 1}, packsource.ClassPack: limits,
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	return runner
}

func newManager(t *testing.T) *root {
	t.Helper()
	return newRoot(t, storage.Options{Runner: newRunner(t)})
}

func (r *root) path(name string) git.RepoPath {
	r.t.Helper()
	path, err := git.ParseRepoPath(name)
	r.do(err)
	return path
}

func (r *root) create(name string) error {
	_, err := r.Create(context.Background(), r.path(name), storage.NewRepository{})
	return err
}

func TestCreate(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		name := "team/" + format.String()
		d, err := r.Create(t.Context(), r.path(name), storage.NewRepository{Format: format, Branch: "trunk/one"})
		r.do(err)
		made := gittest.At(t, filepath.Join(r.dir, name+".git"))
		if d.Path != name+".git" || d.Format != format || d.Head.Target != "refs/heads/trunk/one" || d.Refs != 0 || d.Size == 0 || d.Version.Incarnation == "" {
			t.Errorf("%+v", d)
		}
		if got := made.Git("rev-parse", "--show-object-format", "--is-bare-repository"); got != format.String()+"\ntrue" {
			t.Errorf("git says %q", got)
		}
		if got := made.Git("symbolic-ref", "HEAD"); got != "refs/heads/trunk/one" {
			t.Errorf("HEAD is %q", got)
		}
		made.Git("fsck", "--strict")
		if _, err := os.Stat(filepath.Join(made.Dir, "hooks")); !errors.Is(err, fs.ErrNotExist) {
			t.Error("there are hooks")
		}
		id := made.Commit("x")
		made.Git("update-ref", "refs/heads/main", id.String())
		r.serves(name, id)
	}
	r.do(r.create("plain.git"))
	r.repo("work/.git", "work")
	r.do(os.WriteFile(filepath.Join(r.dir, "file"), nil, 0o600))
	r.do(os.MkdirAll(filepath.Join(r.dir, "empty/dir"), 0o700))
	r.do(os.Mkdir(filepath.Join(r.dir, "taken.git"), 0o700))
	outside := t.TempDir()
	r.do(errors.Join(os.Symlink(outside, filepath.Join(r.dir, "out")), os.Symlink("team", filepath.Join(r.dir, "in")), os.Symlink("plain.git", filepath.Join(r.dir, "alias.git"))))
	for name, kind := range map[string]fault.Kind{
		"plain": fault.Exists, "plain.git": fault.Exists, "team": fault.Exists, "team.git": fault.Exists, "team/sha1/x": fault.Exists, "work": fault.Exists,
		"work/sub": fault.Exists, "work/sub/sub": fault.Exists, "plain.git/sub": fault.Invalid, "file": fault.Exists, "file/x": fault.Exists, "taken": fault.Exists,
		"alias": fault.Exists, "in/sha1": fault.Exists, "out/x": fault.Denied, "out/x/y": fault.Denied,
		".hidden": fault.Invalid, "a/.git": fault.Invalid, "-x": fault.Invalid, "a/-x": fault.Invalid, "x.lock": fault.Invalid, "x.lock.git": fault.Invalid,
		"x.git/y": fault.Invalid, "x.git.git": fault.Invalid, ".packhorse/x": fault.Invalid, ".git": fault.Invalid,
		strings.Repeat("x", 251): fault.Invalid, strings.Repeat("a/", 70) + "b": fault.Invalid,
	} {
		if err := r.create(name); fault.KindOf(err) != kind || err == nil {
			t.Errorf("%.50q: kind %v, %v; want %v", name, fault.KindOf(err), err, kind)
		} else if strings.Contains(fault.Message(err), r.dir) {
			t.Errorf("%s: the caller is told a path of the server: %v", name, fault.Message(err))
		}
	}
	for _, name := range []string{"empty", "empty2/dir/a", "in/new", strings.Repeat("x", 250)} {
		if err := r.create(name); err != nil {
			t.Errorf("%.50s: %v", name, err)
		}
	}
	for _, branch := range []string{"-x", "HEAD", "a..b", "a b", "a\nb", "x.lock", "\x00"} {
		if _, err := r.Create(t.Context(), r.path("b"), storage.NewRepository{Branch: branch}); !fault.Is(err, fault.Invalid) {
			t.Errorf("branch %q: %v", branch, err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(r.dir, ".packhorse/new")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside the root: %v, %v", entries, err)
	}
}

// Of many that make the same repository, or one below another, exactly one does.
func TestCreateAtTheSameTime(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	var made atomic.Int32
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			switch err := r.create([]string{"team", "team.git", "team/app"}[i%3]); {
			case err == nil:
				made.Add(1)
			case !fault.Is(err, fault.Exists):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	page, err := r.List(t.Context(), storage.ListQuery{})
	if made.Load() != 1 || err != nil || len(page.Paths) != 1 {
		t.Errorf("%d were made: %q, %v", made.Load(), page.Paths, err)
	}
}

// What is in the node's own directories is not there for anybody.
func TestOwnDirectoryIsHidden(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	r.repo(".packhorse/new/1/repo.git", "x")
	r.repo("a/.packhorse/trash/1/repo.git", "x")
	for _, path := range []string{".packhorse/new/1/repo", ".packhorse/new/1/repo.git", "a/.packhorse/trash/1/repo.git"} {
		r.refuses(path, fault.NotFound, "")
	}
	r.do(os.Symlink(".packhorse/new/1/repo.git", filepath.Join(r.dir, "link.git")))
	r.refuses("link", fault.NotFound, "")
	if page, err := r.List(t.Context(), storage.ListQuery{}); err != nil || len(page.Paths) > 0 {
		t.Errorf("%q, %v", page.Paths, err)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	made := r.repo("app.git", "one")
	made.Git("config", "transfer.hideRefs", "refs/hidden")
	made.Git("config", "--add", "transfer.hideRefs", "refs/secret")
	made.Git("config", "remote.origin.url", "https://user:secret@example.com")
	made.Git("config", "http.extraHeader", "secret")
	made.Git("config", "receive.certNonceSeed", "secret")
	made.Git("config", "uploadpackfilter.blob:none.allow", "true")
	for _, ref := range []string{"refs/heads/a", "refs/tags/b", "refs/hidden/x"} {
		made.Git("update-ref", ref, "main")
	}
	d, err := r.Describe(t.Context(), r.path("app"))
	r.do(err)
	if d.Path != "app.git" || d.Refs != 3 || d.Head.ID != made.ID("main") || d.Objects.Loose != 3 {
		t.Errorf("%+v", d)
	}
	want := map[string]string{
		"core.repositoryformatversion": "0", "transfer.hiderefs": "refs/hidden\nrefs/secret", "uploadpackfilter.blob:none.allow": "true",
	}
	if fmt.Sprint(d.Config) != fmt.Sprint(want) {
		t.Errorf("config %v, want %v", d.Config, want)
	}
	var size int64
	r.do(filepath.WalkDir(made.Dir, func(path string, e fs.DirEntry, err error) error {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return err
	}))
	if d.Size != size {
		t.Errorf("size %d, want %d", d.Size, size)
	}
	if again, err := r.Describe(t.Context(), r.path("app.git")); err != nil || again.Version != d.Version {
		t.Errorf("by its other name it has version %v, not %v (%v)", again.Version, d.Version, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Describe(ctx, r.path("app")); !errors.Is(err, context.Canceled) {
		t.Errorf("after its caller has gone: %v", err)
	}
}

// TestListPages makes trees at random. Pages of any size, one after the other, are the whole list, and that is what is served.
func TestListPages(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		r := newRoot(t, storage.Options{Root: dir, Hidden: []string{filepath.Join(dir, "state")}})
		component := rapid.SampledFrom([]string{"a", "a.git", "a-b", "b", "b.git", "c", ".git", "x\ny", "state", "-", ".packhorse", "é", "\xff"})
		for range rapid.IntRange(0, 12).Draw(rt, "repositories") {
			path := filepath.Join(dir, strings.Join(rapid.SliceOfN(component, 1, 3).Draw(rt, "path"), "/"))
			if os.MkdirAll(path, 0o700) != nil {
				continue
			}
			if rapid.Bool().Draw(rt, "repository") {
				_ = errors.Join(os.Mkdir(path+"/objects", 0o700), os.Mkdir(path+"/refs", 0o700), os.WriteFile(path+"/HEAD", []byte("ref: refs/heads/main\n"), 0o600))
			}
		}
		prefix := rapid.SampledFrom([]string{"", "", "a", "a/", "a.", "b/a", "a/b", "../", "a/../b", "/", ".pack"}).Draw(rt, "prefix")
		all, err := r.List(t.Context(), storage.ListQuery{Prefix: prefix})
		if err != nil {
			rt.Fatal(err)
		}
		if want := served(rt, r, prefix); !slices.Equal(all.Paths, want) || all.Next != "" {
			rt.Fatalf("%q, want %q", all.Paths, want)
		}
		var paged []string
		after := ""
		for {
			limit := rapid.IntRange(1, 3).Draw(rt, "limit")
			page, err := r.List(t.Context(), storage.ListQuery{Prefix: prefix, After: after, Limit: limit})
			if err != nil || len(page.Paths) > limit {
				rt.Fatalf("%q after %q: %v", page.Paths, after, err)
			}
			paged = append(paged, page.Paths...)
			if after = page.Next; after == "" {
				break
			}
		}
		if !slices.Equal(paged, all.Paths) {
			rt.Fatalf("pages give %q, the whole is %q", paged, all.Paths)
		}
	})
}

// served is what a walk over everything finds that is served by its own path and not within another repository or beside a ".git".
func served(rt *rapid.T, r *root, prefix string) (paths []string) {
	_ = filepath.WalkDir(r.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() || path == r.dir {
			return nil
		}
		below := strings.TrimPrefix(path, r.dir+"/")
		name, err := git.ParseRepoPath(below)
		if err != nil || strings.Contains(below, "\xff") {
			return filepath.SkipDir
		}
		for _, candidate := range []string{below + "/.git", below} {
			if _, err := os.Stat(filepath.Join(r.dir, candidate, "HEAD")); err != nil {
				continue
			}
			if candidate, err := git.ParseRepoPath(candidate); err == nil {
				name = candidate
			}
			if _, err := r.Resolve(context.Background(), name, "none"); fault.Message(err) == `no ref "none" in this repository` && strings.HasPrefix(name.String(), prefix) {
				paths = append(paths, name.String())
			}
			return filepath.SkipDir
		}
		return nil
	})
	slices.SortFunc(paths, func(a, b string) int { return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) })
	return paths
}

func TestListFollowsLinksToRepositoriesOnly(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	r.repo("real/one.git", "x")
	outside := gittest.Init(t)
	r.do(errors.Join(
		os.Symlink("real/one.git", filepath.Join(r.dir, "alias.git")), os.Symlink("real", filepath.Join(r.dir, "zdir")),
		os.Symlink(outside.Dir, filepath.Join(r.dir, "out.git")), os.Symlink("..", filepath.Join(r.dir, "real/up")), os.Symlink("loop", filepath.Join(r.dir, "loop")),
	))
	page, err := r.List(t.Context(), storage.ListQuery{})
	if want := []string{"alias.git", "real/one.git"}; err != nil || !slices.Equal(page.Paths, want) {
		t.Errorf("%q, %v; want %q", page.Paths, err, want)
	}
	for _, after := range []string{"..", "/", "a/../b", "a\x00", "a/"} {
		if _, err := r.List(t.Context(), storage.ListQuery{After: after}); !fault.Is(err, fault.Invalid) {
			t.Errorf("after %q: %v", after, err)
		}
	}
}

// emptied waits until the trash is empty.
func (r *root) emptied() {
	r.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		left, err := os.ReadDir(filepath.Join(r.dir, ".packhorse/trash"))
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("the trash still holds %v, %v", left, err)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	made := r.repo("app.git", "first")
	id := made.ID("main")
	r.serves("app", id)
	d, err := r.Describe(t.Context(), r.path("app"))
	r.do(err)
	if err := r.Delete(t.Context(), r.path("app"), "other"); !fault.Is(err, fault.NotFound) {
		t.Errorf("of another incarnation: %v", err)
	}
	r.serves("app", id)
	r.do(r.Delete(t.Context(), r.path("app"), d.Version.Incarnation))
	r.refuses("app", fault.NotFound, "")
	if err := r.Delete(t.Context(), r.path("app"), ""); !fault.Is(err, fault.NotFound) {
		t.Errorf("again: %v", err)
	}
	r.do(r.create("app"))
	again, err := r.Describe(t.Context(), r.path("app"))
	if err != nil || again.Version.Incarnation == d.Version.Incarnation || again.Refs != 0 {
		t.Errorf("made anew: %+v, %v", again, err)
	}
	r.emptied()

	work := r.repo("work/.git", "w")
	precious := r.repo("precious.git", "p")
	precious.Git("config", "core.repositoryFormatVersion", "1")
	precious.Git("config", "extensions.preciousObjects", "true")
	shared := r.repo("shared.git", "s")
	shared.Git("worktree", "add", "-q", filepath.Join(r.dir, "linked"), "main")
	r.do(os.Symlink("app.git", filepath.Join(r.dir, "alias.git")))
	for _, name := range []string{"work", "precious", "shared", "linked", "alias"} {
		if err := r.Delete(t.Context(), r.path(name), ""); !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.serves("work", work.ID("main"))
}

// What was left by a node that ended early goes when the next one starts. No link is followed.
func TestTrashIsEmptiedAtTheStart(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	kept := filepath.Join(outside, "kept")
	trash := filepath.Join(dir, ".packhorse/trash/1/repo.git/objects")
	if err := errors.Join(os.WriteFile(kept, nil, 0o600), os.MkdirAll(trash, 0o700), os.Symlink(outside, trash+"/link")); err != nil {
		t.Fatal(err)
	}
	r := newRoot(t, storage.Options{Root: dir})
	r.emptied()
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

// A fetch beside a deletion ends with the whole answer of one repository or with an error.
func TestDeleteBesideReaders(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	var texts []string
	template := map[string]string{}
	for i := range 2 {
		repo := gittest.Init(t)
		id, update := repo.Commit(fmt.Sprint(i)), ""
		for j := range 30 {
			update += fmt.Sprintf("create refs/heads/%d %s\n", j, id)
		}
		repo.GitIn(update, "update-ref", "--stdin")
		texts = append(texts, repo.Dir)
		template[repo.Dir] = repo.Git("for-each-ref", "--format=%(objectname) %(refname)")
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for !stop.Load() {
				var got strings.Builder
				err := r.ListRefs(context.Background(), r.path("app"), storage.RefQuery{}, func(b storage.RefBatch) error {
					for _, ref := range b.Refs {
						fmt.Fprintf(&got, "%s %s\n", ref.ID, ref.Name)
					}
					return nil
				})
				text := strings.TrimSuffix(got.String(), "\n")
				if err == nil && text != template[texts[0]] && text != template[texts[1]] {
					t.Errorf("a mix:\n%s", text)
					return
				}
			}
		})
	}
	for i := range 20 {
		staged := filepath.Join(r.dir, ".packhorse", strconv.Itoa(i))
		r.do(os.MkdirAll(filepath.Dir(staged), 0o700))
		r.do(os.CopyFS(staged, os.DirFS(texts[i%2])))
		r.do(os.Rename(staged, filepath.Join(r.dir, "app.git")))
		r.do(r.Delete(context.Background(), r.path("app"), ""))
	}
	stop.Store(true)
	wg.Wait()
	r.emptied()
}

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
		"core.fsmonitor", "core.alternateRefsCommand", "core.sshCommand", "core.pager", "core.editor", "core.askPass", "core.gitProxy", "gc.recentObjectsHook",
		"gpg.program", "gpg.ssh.program", "pager.repack", "pager.pack-refs", "alias.repack", "alias.pack-objects", "uploadpack.packObjectsHook",
		"filter.x.clean", "diff.external", "merge.x.driver", "credential.helper", "trailer.x.command", "remote.origin.uploadpack", "remote.origin.vcs",
	} {
		repo.Git("config", key, program)
	}
	repo.Git("config", "remote.origin.url", "ext::"+program)
	hooks := filepath.Join(repo.Dir, "hooks")
	r.do(os.MkdirAll(hooks, 0o700))
	for _, hook := range []string{"reference-transaction", "pre-auto-gc", "post-index-change", "post-rewrite", "fsmonitor-watchman", "update"} {
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
	if m.Before.Packs < 4 || m.After.Packs >= m.Before.Packs || m.After.Loose != 0 || !m.After.MultiPackIndex || !m.After.Bitmap || !m.After.CommitGraph || m.Took <= 0 {
		t.Errorf("%+v", m)
	}
	for _, hook := range []string{"core.fsmonitor", "core.hooksPath", "core.alternateRefsCommand", "core.pager", "alias.repack"} {
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
	repo.Git("config", "hook.x.command", program)
	if _, err := r.Maintain(t.Context(), r.path("app")); !fault.Is(err, fault.Denied) {
		t.Errorf("with hooks in its configuration: %v", err)
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
	r.do(r.Delete(t.Context(), r.path("app"), ""))
}

// TestClonesBesideMaintenance fetches while the repository grows and is maintained all the time. Every fetch gets a whole pack.
func TestClonesBesideMaintenance(t *testing.T) {
	t.Parallel()
	runner := newRunner(t)
	source, err := packsource.NewGit(runner, packsource.GitOptions{Scratch: filepath.Join(t.TempDir(), "scratch")})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	node, err := storage.New(uploadpack.New(source, uploadpack.Options{Agent: "test"}), storage.Options{Root: dir, Runner: runner})
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
