package storage_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/watch"
)

// newRunner is what a node makes and maintains repositories with.
func newRunner(t *testing.T) *process.Runner {
	t.Helper()
	limits := process.Limits{Slots: 2, Queue: 100}
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		places.ClassManage: limits, places.ClassMaintain: {Slots: 1, Queue: 100, Nice: 1}, packsource.ClassPack: limits,
		places.ClassUpstream: limits,
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
	_, err := r.Create(context.Background(), r.path(name), storage.CreateOptions{})
	return err
}

func TestCreate(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		name := "team/" + format.String()
		d, err := r.Create(t.Context(), r.path(name), storage.CreateOptions{Format: format, Branch: "trunk/one"})
		r.do(err)
		made := gittest.At(t, filepath.Join(r.dir, name+".git"))
		if d.Path != name+".git" || d.Format != format || d.Head.Target != "refs/heads/trunk/one" || d.Refs != 0 ||
			d.Size == 0 || d.Version.Incarnation == "" {
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
	r.do(errors.Join(os.Symlink(outside, filepath.Join(r.dir, "out")), os.Symlink("team", filepath.Join(r.dir, "in")),
		os.Symlink("plain.git", filepath.Join(r.dir, "alias.git"))))
	for name, kind := range map[string]fault.Kind{
		"plain": fault.Exists, "plain.git": fault.Exists, "team": fault.Exists, "team.git": fault.Exists,
		"team/sha1/x": fault.Exists, "work": fault.Exists,
		"work/sub": fault.Exists, "work/sub/sub": fault.Exists, "plain.git/sub": fault.Invalid, "file": fault.Exists,
		"file/x": fault.Exists, "taken": fault.Exists,
		"alias": fault.Exists, "in/sha1": fault.Exists, "out/x": fault.Denied, "out/x/y": fault.Denied,
		".hidden": fault.Invalid, "a/.git": fault.Invalid, "-x": fault.Invalid, "a/-x": fault.Invalid,
		"x.lock": fault.Invalid, "x.lock.git": fault.Invalid,
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
		if _, err := r.Create(t.Context(), r.path("b"), storage.CreateOptions{Branch: branch}); !fault.Is(err,
			fault.Invalid) {
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
	page, err := r.List(t.Context(), places.ListQuery{})
	if made.Load() != 1 || err != nil || len(page.Paths) != 1 {
		t.Errorf("%d were made: %q, %v", made.Load(), page.Paths, err)
	}
}

// No client can see the content of the node's private directories.
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
	if page, err := r.List(t.Context(), places.ListQuery{}); err != nil || len(page.Paths) > 0 {
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
		"core.repositoryformatversion": "0", "transfer.hiderefs": "refs/hidden\nrefs/secret",
		"uploadpackfilter.blob:none.allow": "true",
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

// emptied waits until the trash is empty.
func (r *root) emptied() {
	r.t.Helper()
	gittest.WaitFor(r.t, "the trash is empty", func() bool {
		left, err := os.ReadDir(filepath.Join(r.dir, ".packhorse/trash"))
		return errors.Is(err, fs.ErrNotExist) || err == nil && len(left) == 0
	})
}

func TestDelete(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	made := r.repo("app.git", "first")
	id := made.ID("main")
	r.serves("app", id)
	d, err := r.Describe(t.Context(), r.path("app"))
	r.do(err)
	if err := r.Delete(t.Context(), r.path("app"), places.DeleteOptions{Incarnation: "other"}); !fault.Is(err,
		fault.NotFound) {
		t.Errorf("of another incarnation: %v", err)
	}
	r.serves("app", id)
	r.do(r.Delete(t.Context(), r.path("app"), places.DeleteOptions{Incarnation: d.Version.Incarnation}))
	r.refuses("app", fault.NotFound, "")
	if err := r.Delete(t.Context(), r.path("app"), places.DeleteOptions{}); !fault.Is(err, fault.NotFound) {
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
		if err := r.Delete(t.Context(), r.path(name), places.DeleteOptions{}); !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.serves("work", work.ID("main"))
}

// A node removes at its start the trash of a node that ended early. It follows no link.
func TestTrashIsEmptiedAtTheStart(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	kept := filepath.Join(outside, "kept")
	trash := filepath.Join(dir, ".packhorse/trash/1/repo.git/objects")
	if err := errors.Join(os.WriteFile(kept, nil, 0o600), os.MkdirAll(trash, 0o700),
		os.Symlink(outside, trash+"/link")); err != nil {
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
		r.do(r.Delete(context.Background(), r.path("app"), places.DeleteOptions{}))
	}
	stop.Store(true)
	wg.Wait()
	r.emptied()
}

// A creation whose response was lost can be repeated with the same ID.
func TestCreateAgain(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{Root: t.TempDir(), Runner: newRunner(t)})
	o := storage.CreateOptions{RequestID: "a-1", Branch: "trunk"}
	first, err := r.Create(t.Context(), r.path("team/app"), o)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := r.Create(t.Context(), r.path("team/app.git"), o); err != nil || again.Head != first.Head {
		t.Errorf("repeated Create = %+v, %v, want the repository", again, err)
	}
	for _, id := range []string{"", "a-2"} {
		if _, err := r.Create(t.Context(), r.path("team/app"), storage.CreateOptions{RequestID: id}); !fault.Is(err,
			fault.Exists) {
			t.Errorf("Create with the ID %q = %v, want exists", id, err)
		}
	}
	if _, err := r.Create(t.Context(), r.path("team/app/below"), o); !fault.Is(err, fault.Exists) {
		t.Errorf("Create below the repository = %v, want exists", err)
	}
	if _, err := r.Create(t.Context(), r.path("x"), storage.CreateOptions{RequestID: "a b"}); !fault.Is(err,
		fault.Invalid) {
		t.Errorf("Create with an invalid ID = %v, want invalid", err)
	}
	if _, err := r.Create(t.Context(), r.path("none"), storage.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := r.Create(t.Context(), r.path("none"), o); !fault.Is(err, fault.Exists) {
		t.Errorf("Create of a repository without an ID = %v, want exists", err)
	}
}

// If it is not certain that the creation or removal of a repository is on disk, the call returns an error that names
// this. Watches still receive the event.
func TestChangesThatAreNotOnDisk(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{Runner: newRunner(t), CheckInterval: time.Hour})
	w := r.watch(watch.From{Path: r.path("app.git")})
	if e := w.next(); !e.Gone {
		t.Errorf("at first: %+v", e)
	}
	bad := errors.New("no disk")
	r.FailSync(bad)
	// The team's directory would have to be on disk first: there is nothing.
	if err := r.create("team/app"); !errors.Is(err, bad) {
		t.Errorf("create below a new directory: %v", err)
	}
	r.refuses("team/app", fault.NotFound, "")

	if err := r.create("app"); !errors.Is(err, bad) ||
		fault.Message(err) != "the repository was created, but can be lost in a power failure" {
		t.Errorf("create: %v", err)
	}
	if e := w.next(); e.Gone || !e.Reset {
		t.Errorf("made: %+v", e)
	}
	if err := r.Delete(t.Context(), r.path("app"), places.DeleteOptions{}); !errors.Is(err, bad) ||
		fault.Message(err) != "the repository was deleted, but can reappear after a power failure" {
		t.Errorf("delete: %v", err)
	}
	if e := w.next(); !e.Gone {
		t.Errorf("deleted: %+v", e)
	}
	r.emptied()
	w.end()
}
