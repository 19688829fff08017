package storage_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/gc"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// lfsRoot is a root with LFS objects.
type lfsRoot struct{ *root }

func newLFSRoot(t *testing.T) lfsRoot {
	t.Helper()
	return lfsRoot{newRoot(t, storage.Options{LFS: &objects.Options{MinFree: -1}, Pushes: newPushServer(t),
		LFSSchedule: gc.Schedule{Grace: time.Hour}})}
}

func lfsObject(content string) lfs.Object {
	return lfs.Object{OID: sha256.Sum256([]byte(content)), Size: int64(len(content))}
}

// upload uploads an object that is as old as the tests need it.
func (r lfsRoot) upload(repository, content string) {
	r.t.Helper()
	o := lfsObject(content)
	_, _, err := r.LFSUpload(r.t.Context(), r.path(repository), node.Session{}, lfs.Upload{Object: o},
		bytes.NewReader([]byte(content)))
	r.do(err)
	old := time.Now().Add(-2 * time.Hour)
	r.do(os.Chtimes(r.file(repository, o), old, old))
}

func (r lfsRoot) file(repository string, o lfs.Object) string {
	s := o.OID.String()
	return filepath.Join(r.dir, repository, "lfs", "objects", s[:2], s[2:4], s)
}

// present returns the contents whose objects a repository has.
func (r lfsRoot) present(repository string, contents ...string) (found []string) {
	r.t.Helper()
	b := lfs.Batch{}
	for _, content := range contents {
		b.Objects = append(b.Objects, lfsObject(content))
	}
	states, _, err := r.LFSBatch(r.t.Context(), r.path(repository), node.Session{}, b)
	r.do(err)
	for i, s := range states {
		if s.State == lfs.Present {
			found = append(found, contents[i])
		}
	}
	return found
}

// point adds a blob with a pointer file.
func point(r *gittest.Repo, content string) git.ObjectID {
	o := lfsObject(content)
	return r.Blob(fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", o.OID, o.Size))
}

// TestLFSCollect keeps the objects that any commit names: of a branch, a hidden ref, a reflog's or a deleted branch's
// commit, and of a repository from which another borrows.
func TestLFSCollect(t *testing.T) {
	t.Parallel()
	r := newLFSRoot(t)
	one, fork := gittest.InitAt(t, r.dir+"/one.git"), gittest.InitAt(t, r.dir+"/fork.git")
	for i, content := range []string{"branch", "hidden", "unreachable"} {
		id := one.CommitTree(content, fmt.Sprintf("100644 blob %v\tfile\n", point(one, content)))
		if i < 2 {
			one.Git("update-ref", []string{"refs/heads/main", "refs/hidden/x"}[i], id.String())
		}
	}
	one.Git("repack", "-adkq")
	r.do(os.WriteFile(fork.Dir+"/objects/info/alternates", []byte(one.Dir+"/objects\n"), 0o600))
	all := []string{"branch", "hidden", "unreachable", "garbage"}
	for _, content := range all {
		r.upload("one.git", content)
		r.upload("fork.git", content)
	}
	garbage, size := lfsObject("garbage").OID.String(), lfsObject("garbage").Size
	inFork, inOne := gc.Removed{Repository: "fork.git", OID: garbage, Size: size}, gc.Removed{Repository: "one.git",
		OID: garbage, Size: size}
	var removed []gc.Removed
	list := func(o gc.Removed) { removed = append(removed, o) }
	if dry, err := r.LFSKeeper().Collect(t.Context(), gc.CollectOptions{DryRun: true, Removed: list}); err != nil ||
		dry.Removed.Objects != 2 || len(r.present("one.git", "garbage")) != 1 ||
		!slices.Equal(removed, []gc.Removed{inFork, inOne}) {
		t.Errorf("LFSCollect with DryRun = %+v of %+v, %v, want 2 objects that stay", dry, removed, err)
	}
	removed = nil
	var steps int
	result, err := r.LFSKeeper().Collect(t.Context(), gc.CollectOptions{Removed: list,
		Progress: func(int64, int64, string) { steps++ }})
	r.do(err)
	if !slices.Equal(removed, []gc.Removed{inFork, inOne}) {
		t.Errorf("LFSCollect removed %+v, want the garbage of both repositories", removed)
	}
	if result.Repositories != 2 || result.Removed != (objects.Usage{Objects: 2, Bytes: 2 * size}) ||
		result.Freed != (objects.Usage{Objects: 1, Bytes: size}) || len(result.Failed) != 0 || steps != 2 {
		t.Errorf("LFSCollect = %+v after %d steps, want 2 removed of 2 repositories, one freed", result, steps)
	}
	for _, repository := range []string{"one.git", "fork.git"} {
		if got := r.present(repository, all...); fmt.Sprint(got) != "[branch hidden unreachable]" {
			t.Errorf("%s has %v, want all but the garbage", repository, got)
		}
	}
	r.do(os.WriteFile(one.Dir+"/objects/pack/pack-1.pack", nil, 0o600)) // damage: no pointer may be missed
	r.do(os.WriteFile(one.Dir+"/objects/pack/pack-1.idx", []byte("x"), 0o600))
	r.upload("one.git", "garbage")
	if result, err = r.LFSKeeper().Collect(t.Context(), gc.CollectOptions{}); err != nil || len(result.Failed) == 0 ||
		len(r.present("one.git", "garbage")) != 1 {
		t.Errorf("LFSCollect of a damaged repository = %+v, %v, want all objects kept", result, err)
	}
}

// TestLFSCollectOne collects from one repository, and returns the reasons why it keeps all objects.
func TestLFSCollectOne(t *testing.T) {
	t.Parallel()
	r := newLFSRoot(t)
	for _, repository := range []string{"one", "two", "empty"} {
		if one := gittest.InitAt(t, r.dir+"/"+repository+".git"); repository != "empty" {
			point(one, "needed")
		}
		r.upload(repository+".git", "garbage")
	}
	collect := func(path git.RepoPath) (result gc.Garbage, removed []string, err error) {
		result, err = r.LFSKeeper().Collect(t.Context(), gc.CollectOptions{Path: &path,
			Removed: func(o gc.Removed) { removed = append(removed, o.Repository) }})
		return result, removed, err
	}
	result, removed, err := collect(r.path("one"))
	r.do(err)
	if result.Repositories != 1 || result.Removed.Objects != 1 || result.Freed.Objects != 0 ||
		fmt.Sprint(removed) != "[one.git]" || len(r.present("two.git", "garbage")) != 1 {
		t.Errorf("LFSCollect of one.git = %+v of %v, want one object of it", result, removed)
	}
	if _, _, err := collect(r.path("empty")); !fault.Is(err, fault.Denied) {
		t.Errorf("LFSCollect of a repository without pointer files: %v, want Denied", err)
	}
	if _, _, err := collect(r.path("none")); !fault.Is(err, fault.NotFound) {
		t.Errorf("LFSCollect of no repository: %v, want NotFound", err)
	}
}

// TestLFSWorkingTree leaves the objects of a clone with a working tree alone.
func TestLFSWorkingTree(t *testing.T) {
	t.Parallel()
	r := newLFSRoot(t)
	gittest.InitAt(t, r.dir+"/clone/.git").Git("config", "core.bare", "false")
	gittest.InitAt(t, r.dir+"/named/.git").Git("config", "--unset", "core.bare")
	for _, repository := range []string{"clone/.git", "named/.git"} {
		r.upload(repository, "garbage")
		file := r.file(repository, lfsObject("damaged"))
		r.do(os.MkdirAll(filepath.Dir(file), 0o700))
		r.do(os.WriteFile(file, []byte("other"), 0o600))
		old := time.Now().Add(-2 * time.Hour)
		r.do(os.Chtimes(file, old, old))
	}
	garbage, err := r.LFSKeeper().Collect(t.Context(), gc.CollectOptions{})
	r.do(err)
	if garbage.Removed.Objects != 0 || garbage.Freed.Objects != 0 || len(garbage.Failed) != 0 ||
		len(garbage.Skipped) != 2 {
		t.Errorf("LFSCollect = %+v, want two repositories skipped", garbage)
	}
	v, err := r.LFSKeeper().Verify(t.Context(), nil, nil)
	r.do(err)
	if v.Verified.Objects != 1 || len(v.Damaged) != 0 || len(v.Failed) != 0 || len(v.Skipped) != 2 {
		t.Errorf("LFSVerify = %+v, want one object of the pool, and two repositories skipped", v)
	}
	path := r.path("clone/.git")
	if _, err := r.LFSKeeper().Verify(t.Context(), &path, nil); !fault.Is(err, fault.Denied) {
		t.Errorf("LFSVerify of a repository with a working tree: %v, want Denied", err)
	}
	for _, repository := range []string{"clone", "named"} {
		entries, err := os.ReadDir(r.dir + "/" + repository + "/.git/lfs")
		r.do(err)
		if len(entries) != 1 || entries[0].Name() != "objects" {
			t.Errorf("%s has %v, want only objects", repository, entries)
		}
	}
}

// TestLFSGrace keeps the objects of a repository without pointer files, and those that the grace of the repository or
// of the request protects.
func TestLFSGrace(t *testing.T) {
	t.Parallel()
	r := newLFSRoot(t)
	for repository, grace := range map[string]string{"default": "", "never": "never", "longer": "3h", "shorter": "1h",
		"invalid": "14d", "empty": ""} {
		one := gittest.InitAt(t, r.dir+"/"+repository+".git")
		if grace != "" {
			one.Git("config", "lfs.grace", grace)
		}
		if repository != "empty" {
			point(one, "needed")
		}
		r.upload(repository+".git", "garbage")
	}
	for _, c := range []struct {
		options gc.CollectOptions
		want    string
	}{
		{gc.CollectOptions{DryRun: true, Grace: 3 * time.Hour}, "1 [] [invalid.git]"},
		{gc.CollectOptions{}, "2 [empty.git] [invalid.git]"},
		{gc.CollectOptions{}, "0 [empty.git] [invalid.git]"},
	} {
		result, err := r.LFSKeeper().Collect(t.Context(), c.options)
		r.do(err)
		skipped, failed := []string{}, []string{}
		for _, p := range result.Skipped {
			skipped = append(skipped, p.Repository)
		}
		for _, p := range result.Failed {
			failed = append(failed, p.Repository)
		}
		if got := fmt.Sprint(result.Removed.Objects, skipped, failed); got != c.want {
			t.Errorf("LFSCollect(%+v) = %s, want %s", c.options, got, c.want)
		}
	}
	for repository, want := range map[string]int{"default": 0, "never": 1, "longer": 1, "shorter": 0, "invalid": 1,
		"empty": 1} {
		if got := r.present(repository+".git", "garbage"); len(got) != want {
			t.Errorf("%s.git has %v, want %d objects", repository, got, want)
		}
	}
}

// TestLFSKeepAll collects nothing from repositories with a negative Grace.
func TestLFSKeepAll(t *testing.T) {
	t.Parallel()
	r := lfsRoot{newRoot(t, storage.Options{LFS: &objects.Options{MinFree: -1}, Pushes: newPushServer(t),
		LFSSchedule: gc.Schedule{Grace: -1}})}
	gittest.InitAt(t, r.dir+"/one.git")
	r.upload("one.git", "garbage")
	result, err := r.LFSKeeper().Collect(t.Context(), gc.CollectOptions{})
	r.do(err)
	if result.Removed.Objects != 0 || len(r.present("one.git", "garbage")) != 1 {
		t.Errorf("LFSCollect = %+v, want nothing removed", result)
	}
}

func TestLFSVerify(t *testing.T) {
	t.Parallel()
	r := newLFSRoot(t)
	one := gittest.InitAt(t, r.dir+"/one.git")
	gittest.InitAt(t, r.dir+"/two.git")
	for _, content := range []string{"good", "bad"} {
		r.upload("one.git", content)
		r.upload("two.git", content)
	}
	point(one, "missing")
	file := r.file("two.git", lfsObject("bad"))
	r.do(os.Chmod(file, 0o600))
	r.do(os.WriteFile(file, []byte("dab"), 0o600))
	alone := r.file("two.git", lfsObject("alone")) // not in the pool, as after a copy from elsewhere
	r.do(os.MkdirAll(filepath.Dir(alone), 0o700))
	r.do(os.WriteFile(alone, []byte("other"), 0o600))
	path := r.path("one")
	for i, want := range []string{"2 [one.git two.git] [one.git]", "2 [two.git] [one.git]",
		"1 [] [one.git one.git]"} {
		only := &path
		if i > 0 {
			only = nil
		}
		if i == 2 { // another object is missing since
			point(one, "bad")
		}
		v, err := r.LFSKeeper().Verify(t.Context(), only, nil)
		r.do(err)
		var damaged, missing []string
		for _, p := range v.Damaged {
			damaged = append(damaged, p.Repository)
		}
		for _, p := range v.Missing {
			missing = append(missing, p.Repository)
		}
		if got := fmt.Sprint(v.Verified.Objects, " ", damaged, " ", missing); got != want || len(v.Failed) != 0 {
			t.Errorf("verification %d: %s, %v, want %s", i, got, v.Failed, want)
		}
	}
	if got := r.present("two.git", "good", "bad", "alone"); fmt.Sprint(got) != "[good]" {
		t.Errorf("the repository has %v, want only the good object", got)
	}
}

// TestLFSVerifyElsewhere misses no objects of mirrors and of repositories with another server.
func TestLFSVerifyElsewhere(t *testing.T) {
	t.Parallel()
	r := newLFSRoot(t)
	mirror, other := gittest.InitAt(t, r.dir+"/mirror.git"), gittest.InitAt(t, r.dir+"/other.git")
	r.do(os.WriteFile(filepath.Join(mirror.Dir, places.MirrorFile), []byte("{}"), 0o600))
	config := other.Blob("[lfs]\n\turl = https://lfs.example.com/other\n")
	commit := other.CommitTree("other server", fmt.Sprintf("100644 blob %v\t.lfsconfig\n", config))
	other.Git("update-ref", "refs/heads/main", commit.String())
	for _, repository := range []*gittest.Repo{mirror, other} {
		point(repository, "elsewhere")
	}
	v, err := r.LFSKeeper().Verify(t.Context(), nil, nil)
	r.do(err)
	if len(v.Missing) != 0 || len(v.Failed) != 0 {
		t.Errorf("LFSVerify = %+v, want no missing objects", v)
	}
	other.Git("symbolic-ref", "HEAD", "refs/heads/unborn")
	v, err = r.LFSKeeper().Verify(t.Context(), nil, nil)
	r.do(err)
	if len(v.Missing) != 1 {
		t.Errorf("LFSVerify without HEAD = %+v, want one missing object", v)
	}
}

// TestLFSImport imports from the layouts of other servers.
func TestLFSImport(t *testing.T) {
	t.Parallel()
	r := newLFSRoot(t)
	one := gittest.InitAt(t, r.dir+"/one.git")
	from := t.TempDir()
	put := func(layout, content, stored string) {
		s := lfsObject(content).OID.String()
		point(one, content)
		file := filepath.Join(from, fmt.Sprintf(layout, s[:2], s[2:4], s[4:], s))
		r.do(os.MkdirAll(filepath.Dir(file), 0o700))
		r.do(os.WriteFile(file, []byte(stored), 0o600))
	}
	put("%s/%s/%.0[3]s%[4]s", "git-lfs", "git-lfs")
	put("%s/%s/%s%.0[4]s", "gitea", "gitea")
	put("objects/%s/%s/%.0[3]s%[4]s", "clone", "clone")
	put("%s/%s/%s%.0[4]s", "damaged", "DAMAGED")
	put("%s/%s/%s%.0[4]s", "short", "s")
	point(one, "missing")
	r.upload("one.git", "present")
	point(one, "present")
	result, err := r.LFSKeeper().Import(t.Context(), r.path("one"), from, nil)
	r.do(err)
	if result.Imported.Objects != 3 || result.Present.Objects != 1 || len(result.Missing) != 1 ||
		result.Missing[0].OID != lfsObject("missing").OID.String() {
		t.Errorf("LFSImport = %+v, want 3 imported, 1 present, 1 missing", result)
	}
	damaged := map[string]string{}
	for _, p := range result.Damaged {
		damaged[p.OID] = p.Repository + ": " + p.Problem
	}
	if want := map[string]string{
		lfsObject("damaged").OID.String(): "one.git: the directory's file of the object has other content: " +
			"its SHA-256 is not the ID",
		lfsObject("short").OID.String(): "one.git: the directory's file of the object has the size 1, not 5",
	}; !maps.Equal(damaged, want) {
		t.Errorf("LFSImport finds damage %v, want %v", damaged, want)
	}
	if got := r.present("one.git", "git-lfs", "gitea", "clone", "damaged", "short"); len(got) != 3 {
		t.Errorf("the repository has %v, want the three good objects", got)
	}
	if _, err := r.LFSKeeper().Import(t.Context(), r.path("one"), from+"/none", nil); !fault.Is(err, fault.Invalid) {
		t.Errorf("LFSImport from a missing directory: %v, want Invalid", err)
	}
}

func TestLFSList(t *testing.T) {
	t.Parallel()
	r := newLFSRoot(t)
	gittest.InitAt(t, r.dir+"/one.git").Git("config", "lfs.quota", "1k")
	gittest.InitAt(t, r.dir+"/two.git")
	gittest.InitAt(t, r.dir+"/none.git")
	r.upload("one.git", "shared")
	r.upload("one.git", "own")
	r.upload("two.git", "shared")
	_, _, err := r.LFSLocks(t.Context(), r.path("two"), node.Session{}, lfs.LockRequest{Caller: "ann", Path: "a"})
	r.do(err)
	var list []gc.Repository
	r.do(r.LFSKeeper().List(t.Context(), func(d gc.Repository) error {
		list = append(list, d)
		return nil
	}))
	shared := objects.Usage{Objects: 1, Bytes: 6}
	want := []gc.Repository{
		{Repository: "one.git", Usage: objects.Usage{Objects: 2, Bytes: 9}, Shared: shared, Quota: 1024},
		{Repository: "two.git", Usage: shared, Shared: shared, Locks: 1},
	}
	if fmt.Sprint(list) != fmt.Sprint(want) {
		t.Errorf("LFSList = %+v, want %+v", list, want)
	}
	var ids []string
	r.do(r.LFSKeeper().ListObjects(t.Context(), r.path("one"), func(o gc.Object) error {
		ids = append(ids, o.OID)
		return nil
	}))
	if len(ids) != 2 || ids[0] >= ids[1] {
		t.Errorf("LFSListObjects = %v, want 2 objects in order", ids)
	}
	b := lfs.Batch{Upload: true, Objects: []lfs.Object{{OID: lfs.OID{1}, Size: 1020}}}
	states, _, err := r.LFSBatch(t.Context(), r.path("one"), node.Session{}, b)
	if err != nil || !fault.Is(states[0].Err, fault.Full) {
		t.Errorf("batch above the repository's own quota: %v, %v, want Full", states, err)
	}
}
