package storage_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/native"
	"github.com/packhorse-git/packhorse/internal/node/packsource/sourcetest"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// tips is a node whose maintenance makes tip packs, with one repository.
type tips struct {
	*root
	repo   *gittest.Repo
	source packsource.Source // makes packs in process
}

func newTips(t *testing.T, commits int, args ...string) *tips {
	t.Helper()
	git := sourcetest.FromGit(t, "", process.Limits{Slots: 2, Queue: 100})
	x := &tips{root: newRoot(t, storage.Options{Runner: newRunner(t), TipPack: true}),
		source: native.New(native.Options{Git: git, Always: true, Threads: 2})}
	x.repo = gittest.InitAt(t, filepath.Join(x.dir, "app.git"), args...)
	if commits > 0 {
		x.repo.Edit(commits)
	}
	return x
}

// maintain maintains the repository and returns the commit that has a tip pack, or zero. Git must not mind the files.
func (x *tips) maintain() (commit git.ObjectID) {
	x.t.Helper()
	_, err := x.Maintain(x.t.Context(), x.path("app"))
	x.do(err)
	if out := x.repo.Git("count-objects", "-v"); !strings.Contains(out, "garbage: 0") {
		x.t.Errorf("git count-objects says %s", out)
	}
	x.repo.Git("fsck", "--full", "--strict")
	path, _ := pack.FindTip(filepath.Join(x.repo.Dir, "objects"))
	if path == "" {
		if left, err := os.ReadDir(x.tipDir()); len(left) > 0 {
			x.t.Errorf("left are %v, %v", left, err)
		}
		return commit
	}
	x.repo.Git("verify-pack", path+".pack")
	files, err := filepath.Glob(filepath.Join(x.tipDir(), "*"))
	x.do(err)
	for _, f := range files {
		if !strings.HasPrefix(f, path+".") {
			x.t.Errorf("%s is left of an earlier tip pack", f)
		}
	}
	ids, err := pack.After(path+".idx", x.repo.Format(), 0)
	x.do(err)
	return ids[0]
}

func (x *tips) tipDir() string { return filepath.Join(x.repo.Dir, "objects", pack.TipDir) }

// age makes the tip pack older.
func (x *tips) age(by time.Duration) {
	x.t.Helper()
	path, made := pack.FindTip(filepath.Join(x.repo.Dir, "objects"))
	x.do(os.Chtimes(path+".idx", made, made.Add(-by)))
}

// shallow returns the Spec of a clone with a depth.
func (x *tips) shallow(depth string) *packsource.Spec {
	tip := x.repo.ID("main")
	boundary := x.repo.ID("main~" + depth)
	return &packsource.Spec{Repo: sourcetest.Repository(x.repo), Wants: []git.ObjectID{tip},
		Shallow: []git.ObjectID{boundary}, Offset: true}
}

// Shallow clones are copied from the tip pack, and others are not.
func TestTipPack(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		x := newTips(t, 410, "--object-format="+format)
		x.repo.Git("update-ref", "refs/heads/next", "main") // its objects are the bases of those of main
		x.repo.Git("update-ref", "refs/heads/main", "main~10")
		x.repo.Git("repack", "-adq", "--depth=50", "--window=50")
		before := [2]packsource.Info{sourcetest.FetchAndCheck(t, x.source, x.repo, x.shallow("0")),
			sourcetest.FetchAndCheck(t, x.source, x.repo, sourcetest.Full(x.repo))}
		if before[0].Made.Encoded.Objects == 0 {
			t.Errorf("without a tip pack: %+v, want objects that are encoded", before[0].Made)
		}
		if got, want := x.maintain(), x.repo.ID("main"); got != want {
			t.Fatalf("the tip pack is for %v, want %v", got, want)
		}
		info := sourcetest.FetchAndCheck(t, x.source, x.repo, x.shallow("0"))
		if made := info.Made; made.Encoded.Objects != 0 || made.ReusedDisk.Objects != 12 {
			t.Errorf("depth 1: %+v, want 12 copied objects", made)
		}
		if made := sourcetest.FetchAndCheck(t, x.source, x.repo, x.shallow("2")).Made; made.Encoded.Objects > 6 ||
			made.ReusedDisk.Objects < 12 {
			t.Errorf("depth 3: %+v, want at least 12 copied objects", made)
		}
		if full := sourcetest.FetchAndCheck(t, x.source, x.repo, sourcetest.Full(x.repo)); full.Bytes > before[1].Bytes {
			t.Errorf("the whole history has %d bytes, and %d without a tip pack", full.Bytes, before[1].Bytes)
		}
		x.repo.Edit(3)
		if made := sourcetest.FetchAndCheck(t, x.source, x.repo, x.shallow("0")).Made; made.ReusedDisk.Objects < 7 {
			t.Errorf("depth 1 after three commits: %+v, want at least 7 copied objects", made)
		}
	}
}

// The tip pack is made again after enough commits and time, and removed if it is not wanted.
func TestTipPackIsRenewed(t *testing.T) {
	t.Parallel()
	x := newTips(t, 400)
	first := x.maintain()
	x.repo.Edit(10)
	x.age(2 * time.Hour)
	if got := x.maintain(); got != first {
		t.Errorf("after 10 commits, the tip pack is for %v, want still %v", got, first)
	}
	x.repo.Edit(60)
	x.age(-time.Hour - 30*time.Minute)
	if got := x.maintain(); got != first {
		t.Errorf("after 30 minutes, the tip pack is for %v, want still %v", got, first)
	}
	x.age(time.Hour)
	second := x.repo.ID("main")
	if got := x.maintain(); got != second {
		t.Errorf("after 70 commits and an hour, the tip pack is for %v, want %v", got, second)
	}
	x.age(-3 * time.Hour) // a time in the future would never pass
	x.repo.Edit(1)
	if got, want := x.maintain(), x.repo.ID("main"); got != want {
		t.Errorf("with a wrong clock, the tip pack is for %v, want %v", got, want)
	}
	x.age(2 * time.Hour) // the history was replaced
	x.repo.Git("update-ref", "-d", "refs/heads/main")
	x.repo.Edit(399)
	x.repo.Git("repack", "-adq")
	x.repo.Git("prune", "--expire=now")
	x.do(os.RemoveAll(filepath.Join(x.repo.Dir, "objects/info/commit-graphs")))
	if got, want := x.maintain(), x.repo.ID("main"); got != want {
		t.Errorf("after the commit is gone, the tip pack is for %v, want %v", got, want)
	}
	off := newRoot(t, storage.Options{Runner: newRunner(t), Root: x.dir})
	_, err := off.Maintain(t.Context(), x.path("app"))
	x.do(err)
	if _, err := os.Lstat(x.tipDir()); !os.IsNotExist(err) {
		t.Errorf("without tip_pack, the directory of the tip pack is left: %v", err)
	}
}

// Some repositories have no tip pack.
func TestNoTipPack(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		commits int
		change  func(x *tips)
	}{
		"an empty repository": {0, func(*tips) {}},
		"an unborn HEAD":      {400, func(x *tips) { x.repo.Git("symbolic-ref", "HEAD", "refs/heads/none") }},
		"few objects":         {100, func(*tips) {}},
		"a partial clone":     {400, func(x *tips) { x.repo.Git("config", "extensions.partialClone", "origin") }},
		"a partial clone by git 2.39": {400, func(x *tips) {
			x.repo.Git("config", "remote.origin.promisor", "true")
			x.repo.Git("config", "remote.origin.partialCloneFilter", "blob:none")
			packs, _ := filepath.Glob(filepath.Join(x.repo.Dir, "objects/pack/*.pack"))
			for _, path := range packs {
				x.do(os.WriteFile(strings.TrimSuffix(path, "pack")+"promisor", nil, 0o666))
			}
		}},
		"few commits": {20, func(x *tips) {
			b := x.repo.Batch()
			var list strings.Builder
			for i := range 1000 {
				list.WriteString("100644 blob " + b.Object(git.Blob, []byte{byte(i), byte(i >> 8)}).String() + "\tfile" +
					string(rune('a'+i%26)) + strings.Repeat("x", i/26) + "\n")
			}
			id := b.CommitTree("wide", list.String(), x.repo.ID("main"))
			b.Store()
			x.repo.Git("update-ref", "refs/heads/main", id.String())
		}},
	} {
		x := newTips(t, test.commits)
		test.change(x)
		if got := x.maintain(); !got.IsZero() {
			t.Errorf("%s has a tip pack for %v", name, got)
		}
	}
}

// A tip pack that is large compared with the repository is not kept. Its index remains, so that it is not made each
// time.
func TestLargeTipPack(t *testing.T) {
	t.Parallel()
	x := newTips(t, 400)
	large := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(large)
	b := x.repo.Batch()
	id := b.CommitTree("large", "100644 blob "+b.Object(git.Blob, large).String()+"\tlarge\n", x.repo.ID("main"))
	b.Store()
	x.repo.Git("update-ref", "refs/heads/main", id.String())
	var before os.FileInfo
	for range 2 {
		_, err := x.Maintain(t.Context(), x.path("app"))
		x.do(err)
		files, err := filepath.Glob(filepath.Join(x.tipDir(), "*.*"))
		if err != nil || len(files) != 1 || filepath.Ext(files[0]) != ".idx" {
			t.Fatalf("of a large tip pack %v, %v are left, want an index", files, err)
		}
		info, err := os.Stat(files[0])
		x.do(err)
		if before != nil && !os.SameFile(before, info) {
			t.Error("the tip pack was made again")
		}
		before = info
	}
	sourcetest.FetchAndCheck(t, x.source, x.repo, x.shallow("0"))
}

// A damaged tip pack is made again, and other files are removed.
func TestDamagedTipPackIsRenewed(t *testing.T) {
	t.Parallel()
	x := newTips(t, 400)
	elsewhere := t.TempDir()
	want := x.maintain()
	for name, damage := range map[string]func(path string) error{
		"a truncated pack":  func(path string) error { return os.Truncate(path+".pack", 500) },
		"a truncated index": func(path string) error { return os.Truncate(path+".idx", 500) },
		"other bytes": func(path string) error {
			b, err := os.ReadFile(path + ".pack")
			x.do(err)
			b[len(b)/2] ^= 1
			x.do(os.Remove(path + ".pack"))
			return os.WriteFile(path+".pack", b, 0o444)
		},
		"a link to a pack": func(path string) error {
			x.do(os.Rename(path+".pack", filepath.Join(elsewhere, "pack")))
			return os.Symlink(filepath.Join(elsewhere, "pack"), path+".pack")
		},
		"a link to a directory": func(string) error {
			x.do(os.Rename(x.tipDir(), filepath.Join(elsewhere, "tip")))
			return os.Symlink(filepath.Join(elsewhere, "tip"), x.tipDir())
		},
		"other files": func(path string) error {
			x.do(os.Remove(path + ".idx"))
			return os.Mkdir(filepath.Join(x.tipDir(), "x.idx"), 0o700)
		},
	} {
		path, _ := pack.FindTip(filepath.Join(x.repo.Dir, "objects"))
		for _, ext := range []string{".pack", ".idx"} {
			x.do(os.Chmod(path+ext, 0o600))
		}
		x.do(damage(path))
		if got := x.maintain(); got != want {
			t.Errorf("after %s, the tip pack is for %v, want %v", name, got, want)
		}
		if made := sourcetest.FetchAndCheck(t, x.source, x.repo, x.shallow("0")).Made; made.Encoded.Objects > 0 {
			t.Errorf("after %s: %+v, want only copied objects", name, made)
		}
	}
	if _, err := os.Stat(filepath.Join(elsewhere, "tip")); err != nil {
		t.Errorf("the target of a link was changed: %v", err)
	}
}

// Shallow clones are whole while the tip pack is replaced.
func TestTipPackIsReplacedWhileUsed(t *testing.T) {
	t.Parallel()
	x := newTips(t, 400)
	x.maintain()
	ctx, end := context.WithCancel(t.Context())
	spec := x.shallow("0")
	var clones sync.WaitGroup
	for range 2 {
		clones.Go(func() {
			for ctx.Err() == nil && !t.Failed() {
				sourcetest.FetchAndCheck(t, x.source, x.repo, spec)
			}
		})
	}
	for range 4 {
		x.repo.Edit(60)
		x.age(2 * time.Hour)
		if got, want := x.maintain(), x.repo.ID("main"); got != want {
			t.Errorf("the tip pack is for %v, want %v", got, want)
		}
	}
	end()
	clones.Wait()
}
