package backup

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// TestMain runs a backup instead of the tests if a test asks for it, which kills it.
func TestMain(m *testing.M) {
	if dir := os.Getenv("BACKUP_TEST_DIR"); dir != "" {
		_, err := Run(context.Background(), optionsOf(os.Getenv("BACKUP_TEST_ROOT"), dir))
		fmt.Println(err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func quiet(int64, string) {}

func optionsOf(root, dir string) Options {
	return Options{Dir: dir, Root: root, State: filepath.Join(root, repo.PrivateDir), Durable: []string{"tokens", "ssh"},
		Progress: quiet,
		Repositories: func(skipped func(path, why string)) iter.Seq2[string, error] {
			o, err := repo.OptionsBelow(root)
			if err != nil {
				return func(yield func(string, error) bool) { yield("", err) }
			}
			return (&repo.Walk{Options: o, Skipped: skipped}).All(context.Background())
		}}
}

// world is a root with repositories, and the directory of a backup.
type world struct {
	t             *testing.T
	root, dir     string
	allowRemovals bool
}

func newWorld(t *testing.T, paths ...string) *world {
	w := &world{t: t, root: filepath.Join(t.TempDir(), "root"), dir: filepath.Join(t.TempDir(), "backup")}
	w.write(".packhorse/tokens", "hash\n")
	for _, path := range paths {
		r := gittest.InitAt(t, w.path(path), "--bare")
		r.Git("update-ref", "refs/heads/main", r.Commit("one").String())
	}
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.root, name) }

func (w *world) write(name, text string) {
	w.t.Helper()
	err := errors.Join(os.MkdirAll(filepath.Dir(w.path(name)), 0o755), os.WriteFile(w.path(name), []byte(text), 0o644))
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) repo(path string) *gittest.Repo { return gittest.At(w.t, w.path(path)) }

// commit adds a commit to a branch, in a pack if packed.
func (w *world) commit(path, branch string, packed bool) string {
	r := w.repo(path)
	id := r.Commit(fmt.Sprint(path, branch, time.Now()))
	r.Git("update-ref", "refs/heads/"+branch, id.String())
	if packed {
		r.Git("repack", "-adq")
	}
	return id.String()
}

// backup makes a backup, and checks the problems: each begins with a text.
func (w *world) backup(problems ...string) *Report {
	w.t.Helper()
	r, err := w.run()
	if err != nil {
		w.t.Fatal(err)
	}
	w.check(r, problems)
	return r
}

// run calls Run, until no child of another test has the lock.
func (w *world) run() (*Report, error) {
	o := optionsOf(w.root, w.dir)
	o.AllowRemovals = w.allowRemovals
	r, err := Run(w.t.Context(), o)
	for fault.Is(err, fault.Unavailable) {
		r, err = Run(w.t.Context(), o)
	}
	return r, err
}

func (w *world) check(r *Report, problems []string) {
	w.t.Helper()
	var got []string
	for _, p := range r.Problems {
		got = append(got, p.Path+": "+p.Text)
	}
	slices.Sort(got)
	if len(got) != len(problems) {
		w.t.Fatalf("problems %q, want %q", got, problems)
	}
	for i, want := range problems {
		if !strings.HasPrefix(got[i], want) {
			w.t.Errorf("problem %q, want %q", got[i], want)
		}
	}
}

// fork makes a fork, and a network of the objects in packs.
func (w *world) fork(source, target string) (network string) {
	w.t.Helper()
	network = ".packhorse/networks/" + strings.TrimSuffix(target, ".git")
	made := ".packhorse/new-" + target
	w.write(made+"/HEAD", "ref: refs/heads/main\n")
	w.write(made+"/config", "[core]\n\tbare = true\n\trepositoryformatversion = 0\n")
	w.write(made+"/refs/heads/main", w.repo(source).ID("main").String()+"\n")
	packs, _ := filepath.Glob(w.path(source + "/objects/pack/*"))
	for _, path := range packs {
		w.link(source+"/objects/pack/"+filepath.Base(path), network+"/objects/pack/"+filepath.Base(path))
	}
	for _, path := range []string{source, made} {
		w.write(path+"/objects/info/alternates", "../../"+network+"/objects\n")
	}
	if err := os.Rename(w.path(made), w.path(target)); err != nil {
		w.t.Fatal(err)
	}
	return network
}

// packOf returns the path of the pack of a repository or a network.
func (w *world) packOf(path string) string {
	packs, _ := filepath.Glob(w.path(path + "/objects/pack/*.pack"))
	if len(packs) != 1 {
		w.t.Fatalf("packs %q, want one", packs)
	}
	return strings.TrimPrefix(packs[0], w.root+"/")
}

// restore calls Restore, until no child of another test has the lock.
func restore(t *testing.T, o RestoreOptions) (*Report, error) {
	o.Progress = quiet
	r, err := Restore(t.Context(), o)
	for fault.Is(err, fault.Unavailable) {
		r, err = Restore(t.Context(), o)
	}
	return r, err
}

// restore restores the backup to a new root.
func (w *world) restore(problems ...string) *world {
	w.t.Helper()
	to := &world{t: w.t, root: filepath.Join(w.t.TempDir(), "restored"), dir: w.dir}
	r, err := restore(w.t, RestoreOptions{Dir: w.dir, Root: to.root, State: to.path(".packhorse")})
	if err != nil {
		w.t.Fatal(err)
	}
	w.check(r, problems)
	return to
}

// files returns the files below a root that a backup has: modes, times and content by name.
func files(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root+"/")
		if ext := filepath.Ext(name); ext == ".bitmap" || ext == ".sample" {
			return err
		}
		_, below, ok := strings.Cut(name, ".git/")
		if err != nil || ok && !isFixedDir(filepath.Dir(below)) && isLeftOut(below) {
			return err
		}
		info, err := e.Info()
		switch {
		case err != nil || e.IsDir():
		case e.Type()&fs.ModeSymlink != 0:
			all[name], err = os.Readlink(path)
		default:
			var text []byte
			text, err = os.ReadFile(path)
			all[name] = fmt.Sprintf("%o %d %s", info.Mode(), info.ModTime().UnixNano(), text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s is %.100q, want %.100q", name, got[name], want[name])
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s exists, want no such file", name)
		}
	}
}

func linksOf(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Nlink)
}

func (w *world) link(from, to string) {
	w.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(w.path(to)), 0o755), os.Link(w.path(from), w.path(to))); err != nil {
		w.t.Fatal(err)
	}
}

// A restored server has all files of the former one, and shared files are links again. Stock git reads a backup.
func TestRestore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "team/app.git", "tool.git")
	w.commit("team/app.git", "main", true)
	w.commit("team/app.git", "loose", false)
	long := gittest.InitAt(t, w.path("sha256.git"), "--bare", "--object-format=sha256")
	long.Git("update-ref", "refs/heads/main", long.Commit("x").String())
	long.Git("repack", "-adq")
	w.write("team/app.git/refs/heads/objects/ab/c", w.repo("team/app.git").ID("main").String()+"\n")
	w.write("team/app.git/refs/heads/tmp_x", w.repo("team/app.git").ID("main").String()+"\n")
	w.write("team/app.git/hooks/update", "#!/bin/sh\n")
	sum := sha256.Sum256([]byte("large"))
	oid := hex.EncodeToString(sum[:])
	lfs := ".git/lfs/objects/" + oid[:2] + "/" + oid[2:4] + "/" + oid
	w.write("team/app"+lfs, "large")
	w.link("team/app"+lfs, "tool"+lfs)
	w.write("team/app.git/lfs/locks/1", "lock")
	w.write("team/app.git/"+listName, "a file with the name of one of the backup")
	w.write("team/app.git/"+badName, "")
	if err := os.Symlink("team/app.git", w.path("alias.git")); err != nil {
		t.Fatal(err)
	}
	network := ".packhorse/networks/abc"
	w.write("fork.git/objects/info/alternates", "../../"+network+"/objects\n")
	w.write("fork.git/HEAD", "ref: refs/heads/main\n")
	w.write("fork.git/config", "[core]\n\tbare = true\n\trepositoryformatversion = 0\n")
	w.write("fork.git/refs/heads/main", w.repo("team/app.git").ID("main").String()+"\n")
	packs, _ := filepath.Glob(w.path("team/app.git/objects/pack/*"))
	for _, path := range packs {
		w.link("team/app.git/objects/pack/"+filepath.Base(path), network+"/objects/pack/"+filepath.Base(path))
	}
	if r := w.backup(); r.Repositories != 4 || r.Changed != 4 {
		t.Errorf("backed up %d repositories, %d changed, want 4 and 4", r.Repositories, r.Changed)
	}
	gittest.At(t, filepath.Join(w.dir, "root/fork.git")).Git("fsck", "--full")
	to := w.restore()
	compare(t, files(t, to.root), files(t, w.root))
	for _, path := range []string{"team/app.git", "sha256.git", "fork.git"} {
		to.repo(path).Git("fsck", "--full", "--strict")
	}
	if n := linksOf(t, to.path("tool"+lfs)); n != 2 {
		t.Errorf("the LFS object has %d links, want 2", n)
	}
	packs, _ = filepath.Glob(to.path("team/app.git/objects/pack/*.pack"))
	if n := linksOf(t, packs[0]); n != 2 {
		t.Errorf("the pack of the network has %d links, want 2", n)
	}

	for _, dir := range []string{to.path(".packhorse"), w.dir} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v, want 0700", dir, info.Mode())
		}
	}

	// One repository of a network, below a root that has others.
	if err := os.RemoveAll(to.path("fork.git")); err != nil {
		t.Fatal(err)
	}
	one := RestoreOptions{Dir: w.dir, Root: to.root, Repository: "fork"}
	if r, err := restore(t, one); err != nil || r.Repositories != 1 {
		t.Errorf("restore of one repository: %v", err)
	}
	to.repo("fork.git").Git("fsck", "--full", "--strict")
	for want, o := range map[string]RestoreOptions{
		"exists, and nothing is replaced: rename": one,
		"is not empty":                              {Dir: w.dir, Root: to.root, State: t.TempDir()},
		"tokens exists, and nothing is replaced":    {Dir: w.dir, Root: t.TempDir(), State: to.path(".packhorse")},
		"has no repository other":                   {Dir: w.dir, Root: to.root, Repository: "other"},
		"has no repository .packhorse/networks/abc": {Dir: w.dir, Root: to.root, Repository: ".packhorse/networks/abc"},
		"has no repository ../root":                 {Dir: w.dir, Root: to.root, Repository: "../root"},
		"is not a backup":                           {Dir: t.TempDir(), Root: t.TempDir()},
	} {
		if _, err := restore(t, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("restore: %v, want an error with %q", err, want)
		}
	}
}

// A collection that runs before a restored repository is a member of its network keeps the objects: they are new ones.
func TestRestoredNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "app.git")
	w.commit("app.git", "main", true)
	network := w.fork("app.git", "fork.git")
	cruft := strings.TrimSuffix(w.packOf(network), ".pack") + ".mtimes"
	sum := sha1.Sum([]byte("times of objects"))
	w.write(cruft, "times of objects"+string(sum[:]))
	old := time.Now().AddDate(0, 0, -30)
	if err := os.Chtimes(w.path(w.packOf(network)), old, old); err != nil {
		t.Fatal(err)
	}
	w.backup()
	for i, name := range []string{"fork", "fork", "app"} { // the last one has the objects, too
		isRemoved := i > 0
		err := errors.Join(os.RemoveAll(w.path(name+".git")), os.Chtimes(w.path(w.packOf(network)), old, old))
		if isRemoved {
			err = errors.Join(err, os.RemoveAll(w.path(network)))
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := restore(t, RestoreOptions{Dir: w.dir, Root: w.root, Repository: name}); err != nil {
			t.Fatal(err)
		}
		w.repo(name+".git").Git("fsck", "--full", "--strict")
		info, err := os.Stat(w.path(w.packOf(network)))
		if err != nil || time.Since(info.ModTime()) > time.Hour || exists(w.path(cruft)) {
			t.Errorf("%s, removed %v: the objects of the network are old, or have times of their own (%v)", name, isRemoved, err)
		}
	}
}

// A repository that becomes a member of a network while it is backed up is whole in the backup.
func TestFirstFork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "app.git")
	w.commit("app.git", "main", true)
	o := optionsOf(w.root, w.dir)
	o.Progress = func(_ int64, place string) {
		if place == "root/app.git" {
			w.fork("app.git", "fork.git")
			w.repo("app.git").Git("repack", "-adlq") // removes the objects that the network has
		}
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	w.check(r, nil)
	if packs, _ := filepath.Glob(w.path("app.git/objects/pack/*.pack")); len(packs) > 0 {
		t.Fatalf("the repository has objects of its own: %q", packs)
	}
	w.restore().repo("app.git").Git("fsck", "--full", "--strict")
}

// The first fork can be made at any time of a backup.
func TestForksMeanwhile(t *testing.T) {
	t.Parallel()
	for range 8 {
		w := newWorld(t, "app.git")
		for i := range 20 {
			w.write(fmt.Sprint("app.git/refs/tags/", i), w.repo("app.git").ID("main").String()+"\n")
		}
		w.commit("app.git", "main", true)
		begun, forked := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(forked)
			<-begun
			w.fork("app.git", "fork.git")
			w.repo("app.git").Git("repack", "-adlq")
		}()
		o := optionsOf(w.root, w.dir)
		o.Progress = func(_ int64, place string) {
			if place == "root/app.git" {
				close(begun)
			}
		}
		r, err := Run(t.Context(), o)
		<-forked
		if err != nil {
			t.Fatal(err)
		}
		w.check(r, nil)
		w.restore().repo("app.git").Git("fsck", "--full", "--strict")
	}
}

// Unchanged repositories cost nothing, packs are copied once, and what was removed is not in the next backup.
func TestIncremental(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a.git", "b.git", "c/d.git", "e.git/x.git")
	r := w.repo("a.git")
	r.Git("update-ref", "refs/tags/big", r.Blob(strings.Repeat("0123456789abcdef", 1<<16)).String())
	r.Git("repack", "-adq")
	w.write(".packhorse/ssh/key", strings.Repeat("key", 1<<16))
	w.backup()
	gittest.Eventually(func() bool { // also the key: the repositories can be settled before it
		r := w.backup()
		return r.Changed == 0 && r.Bytes < 10_000
	})
	w.write(".packhorse/tokens", "other hash\n")
	packs, _ := filepath.Glob(filepath.Join(w.dir, "root/a.git/objects/pack/*.pack"))
	before, err := os.Stat(packs[0])
	if err != nil {
		t.Fatal(err)
	}
	id := w.commit("a.git", "main", false)
	if err := errors.Join(os.RemoveAll(w.path("c")), os.RemoveAll(w.path("e.git")),
		os.Rename(w.path("b.git"), w.path("c"))); err != nil {
		t.Fatal(err)
	}
	gittest.InitAt(t, w.path("e.git"), "--bare")
	w.allowRemovals = true
	if r := w.backup(); r.Repositories != 3 || r.Changed != 3 || r.Bytes > 10_000 {
		t.Errorf("%d repositories, %d changed, %d bytes, want 3, 3 and few", r.Repositories, r.Changed, r.Bytes)
	}
	packs, _ = filepath.Glob(filepath.Join(w.dir, "root/a.git/objects/pack/*.pack"))
	if after, err := os.Stat(packs[0]); err != nil || !os.SameFile(before, after) {
		t.Errorf("the pack was copied again (%v)", err)
	}
	to := w.restore()
	compare(t, files(t, to.root), files(t, w.root))
	if got := to.repo("a.git").ID("main").String(); got != id {
		t.Errorf("main is %s, want %s", got, id)
	}
	if names, _ := os.ReadDir(filepath.Join(w.dir, "root")); len(names) != 3 {
		t.Errorf("the backup has %v, want three repositories", names)
	}
}

// A root that is not mounted, or another one, does not replace a backup.
func TestRemovals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a.git", "b.git", "c.git", "d.git", "e.git")
	w.write(".packhorse/ssh/key", "key")
	w.backup()
	was := files(t, w.restore().root)
	refused := func(want string) {
		t.Helper()
		if _, err := w.run(); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "--allow-removals") {
			t.Errorf("backup: %v, want an error with %q and --allow-removals", err, want)
		}
		compare(t, files(t, w.restore().root), was)
	}
	mounted, root := w.root+".mounted", w.root
	if err := errors.Join(os.Rename(root, mounted), os.Mkdir(root, 0o755)); err != nil {
		t.Fatal(err)
	}
	refused("5 of the 5 repositories of the backup of")
	gittest.InitAt(t, w.path("new.git"), "--bare")
	refused("(a.git, b.git, c.git, ...)")
	w.root = mounted
	refused("is of the root " + root)
	if err := errors.Join(os.RemoveAll(root), os.Rename(mounted, root), os.RemoveAll(filepath.Join(root, "a.git")),
		os.RemoveAll(filepath.Join(root, "b.git"))); err != nil {
		t.Fatal(err)
	}
	w.root = root
	if err := os.Rename(w.path(".packhorse"), root+".state"); err != nil {
		t.Fatal(err)
	}
	refused("2 of the 2 parts of the state of the backup of")
	state := w.path(".packhorse")
	if err := errors.Join(os.Rename(root+".state", state), os.RemoveAll(state+"/ssh")); err != nil {
		t.Fatal(err)
	}
	if r := w.backup(); !slices.Equal(r.Removed, []string{"a.git", "b.git", "state/ssh"}) {
		t.Errorf("removed %q, want a.git, b.git and state/ssh", r.Removed)
	}
	if err := os.RemoveAll(w.path("c.git")); err != nil {
		t.Fatal(err)
	}
	w.backup()
	was = files(t, w.restore().root)
	if err := errors.Join(os.RemoveAll(w.path("d.git")), os.RemoveAll(w.path("e.git"))); err != nil {
		t.Fatal(err)
	}
	refused("2 of the 2 repositories")
	w.allowRemovals = true
	if r := w.backup(); len(r.Removed) != 2 || r.Repositories != 0 {
		t.Errorf("removed %q, %d repositories are left", r.Removed, r.Repositories)
	}
}

// flip damages a byte of the first file of a pattern; a negative position is from the end.
func flip(t *testing.T, pattern string, at int) {
	t.Helper()
	found, _ := filepath.Glob(pattern)
	if len(found) == 0 {
		t.Fatalf("no file %s", pattern)
	}
	text, err := os.ReadFile(found[0])
	if err == nil {
		text[(at+len(text))%len(text)] ^= 0xff
		err = errors.Join(os.Remove(found[0]), os.WriteFile(found[0], text, 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Damaged repositories are named, and former copies of them are kept.
func TestDamagedRepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "good.git", "head.git", "lfs.git", "loose.git", "pack.git", "tip.git", "was-good.git")
	w.commit("pack.git", "main", true)
	was := w.commit("was-good.git", "main", true)
	w.backup()
	w.commit("was-good.git", "main", true)
	flip(t, w.path("was-good.git/objects/pack/*.pack"), 20)
	if err := os.Remove(w.path("head.git/HEAD")); err != nil {
		t.Fatal(err)
	}
	w.backup("head.git: it looks like a repository, and is not served", "was-good.git: objects/pack/pack-")
	if !exists(w.restore().path("head.git/HEAD")) {
		t.Error("the former copy of a repository without a HEAD was removed")
	}
	if got := w.restore().repo("was-good.git").ID("main").String(); got != was {
		t.Errorf("main is %s, want the former %s", got, was)
	}

	w.dir = filepath.Join(t.TempDir(), "new")
	flip(t, w.path("pack.git/objects/pack/*.idx"), -60)
	flip(t, w.path("loose.git/objects/??/*"), -1)
	w.write("tip.git/refs/heads/gone", strings.Repeat("1", 40)+"\n")
	w.write("lfs.git/lfs/objects/12/34/1234"+strings.Repeat("0", 60), "other")
	w.backup("head.git: ", "lfs.git: lfs/objects/12/34/1234", "loose.git: objects/", "pack.git: objects/pack/",
		"tip.git: the object 11111", "was-good.git: objects/pack/")
	w.restore("root/lfs.git", "root/loose.git", "root/pack.git", "root/tip.git", "root/was-good.git")
}

// Damage to a backup is found, and its other repositories are restored.
func TestDamagedBackup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "list.git", "good.git", "pack.git")
	w.commit("pack.git", "main", true)
	w.backup()
	flip(t, filepath.Join(w.dir, "root/pack.git/objects/pack/*.pack"), 20)
	flip(t, filepath.Join(w.dir, "root/list.git", listName), 5)
	problems := []string{"root/list.git: ", "root/pack.git: "}
	r, err := restore(t, RestoreOptions{Dir: w.dir})
	if err != nil {
		t.Fatal(err)
	}
	w.check(r, problems)
	to := w.restore(problems...)
	to.repo("good.git").Git("fsck", "--strict")
	if exists(to.path("pack.git")) || exists(to.path("list.git")) {
		t.Error("a damaged repository was restored")
	}
	flip(t, filepath.Join(w.dir, manifestName), 5)
	_, err = restore(t, RestoreOptions{Dir: w.dir})
	if err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("restore of a damaged manifest: %v", err)
	}
	if _, err := Run(t.Context(), optionsOf(w.root, w.dir)); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("backup with a damaged manifest: %v", err)
	}
}

// A backup replaces its copies that a verification has found to be damaged, and those that were removed.
func TestRepair(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "good.git", "hooks.git", "list.git", "nolist.git", "pack.git", "gone.git", "removed.git")
	w.commit("pack.git", "main", true)
	w.commit("good.git", "main", true)
	w.write("hooks.git/hooks/update", "#!/bin/sh\n")
	network := ".packhorse/networks/abc"
	w.write("fork.git/objects/info/alternates", "../../"+network+"/objects\n")
	w.write("fork.git/HEAD", "ref: refs/heads/main\n")
	w.write("fork.git/config", "[core]\n\tbare = true\n\trepositoryformatversion = 0\n")
	w.write("fork.git/refs/heads/main", w.repo("good.git").ID("main").String()+"\n")
	packs, _ := filepath.Glob(w.path("good.git/objects/pack/*"))
	for _, path := range packs {
		w.link("good.git/objects/pack/"+filepath.Base(path), network+"/objects/pack/"+filepath.Base(path))
	}
	gittest.Eventually(func() bool { return w.backup().Changed == 0 })
	backup := filepath.Join(w.dir, "root")
	damage := func() {
		t.Helper()
		flip(t, filepath.Join(backup, network, "objects/pack/*.pack"), 20)
		flip(t, filepath.Join(backup, "pack.git/objects/pack/*.pack"), 20)
		flip(t, filepath.Join(backup, "hooks.git/hooks/update"), 3)
		flip(t, filepath.Join(backup, "list.git", listName), 5)
		flip(t, filepath.Join(w.dir, "state/tokens/tokens"), 1)
		if err := errors.Join(os.Remove(filepath.Join(backup, "nolist.git", listName)),
			os.RemoveAll(filepath.Join(backup, "gone.git"))); err != nil {
			t.Fatal(err)
		}
	}
	verify := func(want ...string) {
		t.Helper()
		r, err := restore(t, RestoreOptions{Dir: w.dir})
		if err != nil {
			t.Fatal(err)
		}
		w.check(r, want)
		if len(want) > 0 && !strings.HasSuffix(r.Problems[0].Text, "these repositories need its objects: fork.git") {
			t.Errorf("problem %q does not name the repository of the network", r.Problems[0].Text)
		}
	}
	damage()
	problems := []string{"root/" + network, "root/gone.git", "root/hooks.git", "root/list.git", "root/nolist.git",
		"root/pack.git", "state/tokens"}
	verify(problems...)
	verify(problems...)
	if r := w.backup(); r.Changed != 5 {
		t.Errorf("%d repositories were repaired, want 5", r.Changed)
	}
	verify()
	compare(t, files(t, w.restore().root), files(t, w.root))
	if r := w.backup(); r.Changed != 0 {
		t.Errorf("%d repositories were copied again", r.Changed)
	}

	// The next backup copies removed units without a verification. It removes a removed repository with a damaged list.
	if err := errors.Join(os.RemoveAll(filepath.Join(backup, "pack.git")),
		os.RemoveAll(filepath.Join(backup, network)), os.RemoveAll(w.path("removed.git"))); err != nil {
		t.Fatal(err)
	}
	flip(t, filepath.Join(backup, "removed.git", listName), 0)
	if r := w.backup(); r.Changed != 1 {
		t.Errorf("%d repositories were repaired, want 1", r.Changed)
	}
	verify()
	compare(t, files(t, w.restore().root), files(t, w.root))
	if exists(filepath.Join(backup, "removed.git")) {
		t.Error("a removed repository with a damaged list is in the backup")
	}
}

// A backup that is killed is continued by the next one, and until then the one before can be restored.
func TestKill(t *testing.T) {
	t.Parallel()
	var paths []string
	for i := range 30 {
		paths = append(paths, fmt.Sprintf("r%02d.git", i))
	}
	w := newWorld(t, paths...)
	w.backup()
	was := files(t, w.restore().root)
	for _, path := range paths {
		r := w.repo(path)
		r.Git("update-ref", "refs/tags/big", r.Blob(strings.Repeat(path, 1<<16)).String())
		r.Git("repack", "-adq")
	}
	now := files(t, w.root)
	killed := 0
	for kill := true; kill && killed < 5; {
		staged, _ := os.ReadDir(filepath.Join(w.dir, newName))
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "BACKUP_TEST_DIR="+w.dir, "BACKUP_TEST_ROOT="+w.root)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		gittest.Eventually(func() bool {
			left, err := os.ReadDir(filepath.Join(w.dir, newName))
			return len(left) >= len(staged)+4+5*killed || err != nil && len(staged) > 0
		})
		_ = cmd.Process.Kill()
		kill = <-ended != nil
		got := files(t, w.restore().root)
		if got["r29.git/refs/tags/big"] == now["r29.git/refs/tags/big"] { // it was complete
			compare(t, got, now)
			break
		}
		killed++
		compare(t, got, was)
	}
	if killed == 0 {
		t.Error("no backup was killed before it was complete")
	}
	w.backup()
	compare(t, files(t, w.restore().root), now)
	if exists(filepath.Join(w.dir, newName)) || exists(filepath.Join(w.dir, oldName)) {
		t.Error("copies are left over")
	}
}

// Each step of the end of a backup can be the last before a crash.
func TestSwap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a/b.git", "c.git", "d.git")
	w.backup()
	if err := errors.Join(os.RemoveAll(w.path("a")), os.RemoveAll(w.path("d.git"))); err != nil {
		t.Fatal(err)
	}
	gittest.InitAt(t, w.path("a"), "--bare")
	w.commit("c.git", "main", true)
	b := newRun(optionsOf(w.root, w.dir))
	if err := errors.Join(b.open(), b.copyAll(t.Context())); err != nil {
		t.Fatal(err)
	}
	m := b.made
	b.Dir = filepath.Join(w.dir, "missing")
	if err := b.finish(); err == nil {
		t.Error("a backup without a directory was finished")
	}
	b.Dir = w.dir
	text := must(json.Marshal(m))
	if err := os.WriteFile(filepath.Join(w.dir, manifestName), text, 0o600); err != nil {
		t.Fatal(err)
	}
	compare(t, files(t, w.restore().root), files(t, w.root)) // all units are in new/
	if err := os.Rename(filepath.Join(w.dir, "root/a/b.git"), filepath.Join(w.dir, "x")); err != nil {
		t.Fatal(err)
	}
	compare(t, files(t, w.restore().root), files(t, w.root))
	if err := errors.Join(os.RemoveAll(filepath.Join(w.dir, "x")), swap(w.dir, m), swap(w.dir, m)); err != nil {
		t.Fatal(err)
	}
	compare(t, files(t, w.restore().root), files(t, w.root))
	w.backup()
	compare(t, files(t, w.restore().root), files(t, w.root))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Backups while a repository is pushed to, repacked and collected have a state that existed, with each push before.
func TestBusy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a.git")
	r := w.repo("a.git")
	var mu sync.Mutex
	last := r.ID("main").String() // that was reported
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			id := r.Commit(fmt.Sprint(i), r.ID("main"))
			r.Git("update-ref", "refs/heads/main", id.String())
			r.Git("update-ref", "refs/heads/short-lived", r.Commit(fmt.Sprint("other", i)).String())
			mu.Lock()
			last = id.String()
			mu.Unlock()
			switch i % 4 {
			case 1:
				r.Git("repack", "-adq")
			case 3:
				r.Git("update-ref", "-d", "refs/heads/short-lived")
				r.Git("gc", "-q", "--prune=now")
			}
		}
	}()
	defer func() {
		close(stop)
		<-ended
	}()
	for range 8 {
		mu.Lock()
		before := last
		mu.Unlock()
		w.backup()
		to := w.restore().repo("a.git")
		to.Git("fsck", "--full", "--strict")
		to.Git("merge-base", "--is-ancestor", before, "main")
	}
}

// The journal of events grows while it is copied. A second backup copies new events only.
func TestGrowingState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := time.Now().Add(-time.Hour)
	w.write(".packhorse/ssh/1", strings.Repeat("an old event\n", 1<<16))
	w.write(".packhorse/ssh/2", "0\n")
	if err := os.Chtimes(w.path(".packhorse/ssh/1"), old, old); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(w.path(".packhorse/ssh/2"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 1000; i++ { // the goroutine may begin late
		fmt.Fprintln(f, i)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer f.Close()
		for i := 1000; ; i++ {
			select {
			case <-stop:
				return
			default:
				fmt.Fprintln(f, i)
			}
		}
	}()
	w.backup()
	r := w.backup()
	close(stop)
	<-ended
	grown, err := os.Stat(w.path(".packhorse/ssh/2"))
	const others = 100 // bytes of other files that are copied each time
	if err != nil || r.Bytes > grown.Size()+others {
		t.Errorf("%d bytes were copied, want at most the %d that may be new (%v)", r.Bytes, grown.Size()+others, err)
	}
	text, err := os.ReadFile(w.restore().path(".packhorse/ssh/2"))
	if err != nil || !strings.HasPrefix(string(text), "0\n1\n2\n") {
		t.Errorf("the restored journal is %.20q, %v", text, err)
	}
}

// Wrong directories are refused.
func TestPlaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a.git")
	used := t.TempDir()
	if err := os.WriteFile(filepath.Join(used, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{w.path("backup"): "one below the other", used: "neither empty nor a backup"} {
		if _, err := Run(t.Context(), optionsOf(w.root, dir)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("backup to %s: %v, want an error with %q", dir, err, want)
		}
	}
	w.backup()
	unlock, err := lock(w.dir, syscall.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	_, err = Run(t.Context(), optionsOf(w.root, w.dir))
	if err == nil || !strings.Contains(err.Error(), "another command") {
		t.Errorf("two backups at once: %v", err)
	}
}
