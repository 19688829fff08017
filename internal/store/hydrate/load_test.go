package hydrate

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// crash makes the cache of a root look as after a crash of the machine.
func crash(t testing.TB, root string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(root, stateDir, markFile), []byte("another boot"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// reopen opens the cache below a root again.
func reopen(t testing.TB, b *fakeBucket, root string) (*Cache, *Repository) {
	c := open(t, Options{Bucket: b, Root: root})
	return c, c.Repository("r0")
}

// A restarted cache uses what an earlier process downloaded, and removes what it did not finish.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, clean := range []bool{true, false} {
		b, root := newFakeBucket(), t.TempDir()
		c, err := Open(Options{Bucket: b, Root: root, MinFree: 1})
		if err != nil {
			t.Fatal(err)
		}
		rs, recs := repositories(c, b, 2)
		for i := range rs {
			apply(t, rs[i], recs[i])
			use(t, rs[i], recs[i])()
		}
		if clean {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		before := b.requests()
		for _, path := range []string{root + "/" + stateDir + "/new-x-1/pack-1.pack", rs[0].packDir() + "/pack-3-txn.pack",
			root + "/" + stateDir + "/removed-x/HEAD", root + "/other.git/objects/pack/pack-4.pack"} {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("x"), 0o444); err != nil {
				t.Fatal(err)
			}
		}
		again, r := reopen(t, b, root)
		checkEmptyState(t, again)
		if got, err := r.Applied(t.Context()); err != nil || got == nil || got.Txn != recs[0].Txn {
			t.Errorf("Applied() = %v, %v; want the record of the earlier process", got, err)
		}
		use(t, r, recs[0])()
		checkFiles(t, b, r, recs[0])
		checkGone(t, r, &replog.Pack{Key: "packs/pack-3-txn"})
		if b.requests() != before || again.bytes != 4400 {
			t.Errorf("%d requests and %d bytes, want 0 and 4400", b.requests()-before, again.bytes)
		}
	}
}

// newCopy makes the local copy of one repository in a cache, which a test then opens again.
func newCopy(t *testing.T) (b *fakeBucket, root string, r *Repository, rec *replog.Record) {
	t.Helper()
	b, root = newFakeBucket(), t.TempDir()
	rs, recs := repositories(open(t, Options{Bucket: b, Root: root}), b, 1)
	apply(t, rs[0], recs[0])
	use(t, rs[0], recs[0])()
	return b, root, rs[0], recs[0]
}

// After Unload, the record comes from the disk, and files that were compared after a crash are not compared again.
func TestUnload(t *testing.T) {
	t.Parallel()
	b, root, _, rec := newCopy(t)
	crash(t, root)
	_, r := reopen(t, b, root)
	r.Unload()
	if !r.unchecked {
		t.Error("unchecked = false after Unload before the comparison, want true")
	}
	for range 2 {
		if got, err := r.Applied(t.Context()); err != nil || got == nil || got.Txn != rec.Txn {
			t.Errorf("Applied() = %v, %v; want the record that was applied", got, err)
		}
		if r.unchecked {
			t.Error("unchecked = true after the comparison, want false")
		}
		r.Unload()
	}
	use(t, r, rec)()
	if _, err := os.Stat(filepath.Join(r.Dir(), uncheckedFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("mark of a copy that was compared: %v, want none", err)
	}
}

// A start removes the small files of a repository that was evicted and then not used for long.
func TestIdleCopies(t *testing.T) {
	t.Parallel()
	b, root := newFakeBucket(), t.TempDir()
	c := open(t, Options{Bucket: b, Root: root})
	rs, recs := repositories(c, b, 3)
	for i := range rs {
		apply(t, rs[i], recs[i])
		use(t, rs[i], recs[i])()
	}
	for _, i := range []int{0, 1} { // evicted
		if !c.evictOne() {
			t.Fatalf("repository %d was not evicted", i)
		}
	}
	rs[0].SetChecked(time.Now().Add(-maxIdle - time.Hour)) // not used
	rs[1].SetChecked(time.Now())
	again, r := reopen(t, b, root)
	for i, want := range []bool{false, true, true} {
		if _, err := os.Stat(rs[i].Dir()); want != (err == nil) {
			t.Errorf("copy of repository %d: %v, want it to be kept: %t", i, err, want)
		}
	}
	checkEmptyState(t, again)
	apply(t, r, recs[0])
	use(t, r, recs[0])()
	checkFiles(t, b, r, recs[0])
}

// After a crash of the machine damaged files are downloaded again, and the others are used.
func TestCrash(t *testing.T) {
	t.Parallel()
	b, root := newFakeBucket(), t.TempDir()
	c, err := Open(Options{Bucket: b, Root: root, MinFree: 1})
	if err != nil {
		t.Fatal(err)
	}
	rs, recs := repositories(c, b, 1)
	recs[0].Refs = replog.Refs{Checkpoint: "refs/1-x", Bytes: 4, SHA256: b.put("repos/r0/refs/1-x", []byte("base"))}
	apply(t, rs[0], recs[0])
	use(t, rs[0], recs[0])()
	before := b.requests()

	config := filepath.Join(rs[0].Dir(), "config")
	want, err := os.ReadFile(config)
	packed := filepath.Join(rs[0].Dir(), "packed-refs")
	if err == nil {
		err = cmp.Or(os.WriteFile(config, make([]byte, len(want)), 0o600), os.Remove(packed),
			os.WriteFile(packed, nil, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	crash(t, root)
	_, r := reopen(t, b, root)
	rec, _ := r.Applied(t.Context())
	use(t, r, recs[0])()
	if b.requests() != before || rec == nil {
		t.Errorf("%d requests for intact files and record %v, want 0 and the record", b.requests()-before, rec)
	}
	if got, err := os.ReadFile(config); err != nil || string(got) != string(want) {
		t.Errorf("the configuration is %q, %v after a crash, want %q", got, err, want)
	}
	if got, err := os.ReadFile(packed); err != nil || string(got) != "base" {
		t.Errorf("packed-refs is %q, %v after a crash, want base", got, err)
	}

	pack := r.path(&recs[0].Packs[0], replog.File{Ext: ".pack"})
	for _, path := range []string{pack, r.Base(recs[0])} {
		info, err := os.Stat(path)
		if err == nil {
			err = os.Remove(path)
		}
		if err == nil {
			err = os.WriteFile(path, make([]byte, info.Size()), 0o444) // as file systems do after a crash
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	crash(t, root)
	reopen(t, b, root) // this process ends before it has checked the repository
	_, r = reopen(t, b, root)
	if rec, err := r.Applied(t.Context()); rec != nil || err != nil {
		t.Errorf("Applied() = %v, %v with damaged refs, want nil", rec, err)
	}
	apply(t, r, recs[0])
	use(t, r, recs[0])()
	checkFiles(t, b, r, recs[0])
	if got, _ := os.ReadFile(r.Base(recs[0])); string(got) != "base" || b.requests() != before+3 {
		t.Errorf("refs are %q after %d requests, want base after 3", got, b.requests()-before)
	}

	if err := os.Truncate(pack, 10); err != nil {
		t.Fatal(err)
	}
	r.Check()
	use(t, r, recs[0])()
	checkFiles(t, b, r, recs[0])
}

// After a crash, extra files are compared with their checksums, too.
func TestCrashDamagesExtraFiles(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		damaged string // extension; may be empty
		named   bool   // the record has the commit-graph
		kept    []string
	}{
		"none":               {"", true, []string{".graph", ".bitmap"}},
		"commit-graph":       {".graph", true, []string{".bitmap"}},
		"bitmap":             {".bitmap", true, []string{".graph"}},
		"other commit-graph": {"", false, []string{".bitmap"}},
	} {
		b, root := newFakeBucket(), t.TempDir()
		c := open(t, Options{Bucket: b, Root: root})
		rs, recs := repositories(c, b, 1)
		p := &recs[0].Packs[0]
		for _, ext := range []string{".bitmap", ".graph"} {
			p.Extra = append(p.Extra, replog.File{Ext: ext, Bytes: 5, SHA256: b.put("repos/r0/"+p.Key+ext, []byte("extra"))})
		}
		apply(t, rs[0], recs[0])
		use(t, rs[0], recs[0])()
		if test.damaged != "" {
			path := rs[0].path(p, replog.File{Ext: test.damaged})
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, make([]byte, 5), 0o444); err != nil {
				t.Fatal(err)
			}
		}
		if !test.named {
			p.Extra = p.Extra[:1]
		}
		crash(t, root)
		_, r := reopen(t, b, root)
		use(t, r, recs[0])()
		var kept []string
		for _, ext := range []string{".graph", ".bitmap"} {
			if _, err := os.Stat(r.path(p, replog.File{Ext: ext})); err == nil {
				kept = append(kept, ext)
			}
		}
		if !slices.Equal(kept, test.kept) {
			t.Errorf("damage of %s: kept %v, want %v", name, kept, test.kept)
		}
	}
}

// After a crash, a pack that the first record does not name is compared when a later one names it.
func TestCrashBetweenRecords(t *testing.T) {
	t.Parallel()
	b, root := newFakeBucket(), t.TempDir()
	c := open(t, Options{Bucket: b, Root: root})
	rs, recs := repositories(c, b, 1)
	apply(t, rs[0], recs[0])
	next := recs[0].Next(replog.KindPush, "test", recs[0].At)
	b.addPack(next, "r0", "3", 1000)
	use(t, rs[0], next)()
	pack := rs[0].path(&next.Packs[2], replog.File{Ext: ".pack"})
	if err := errors.Join(os.Chmod(pack, 0o644), os.Truncate(pack, 0), os.Truncate(pack, 1000)); err != nil {
		t.Fatal(err)
	}
	crash(t, root)
	_, r := reopen(t, b, root)
	use(t, r, recs[0])()
	use(t, r, next)()
	checkFiles(t, b, r, next)
}

// After a crash few repositories are compared at the same time. Clients of the others see the progress.
func TestChecksAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, root, _, rec := newCopy(t)
		crash(t, root)
		again, r := reopen(t, b, root)
		for range maxChecks {
			again.checks <- struct{}{}
		}
		total := int64(0)
		if _, err := r.Use(t.Context(), rec, func(_, of int64) { total = of }); !fault.Is(err, fault.Unavailable) ||
			fault.RetryAfter(err) == 0 || total != 2200 {
			t.Errorf("Use while %d repositories are compared: %v with progress of %d bytes, want Unavailable and 2200",
				maxChecks, err, total)
		}
		<-again.checks
		use(t, r, rec)()
	})
}

// A damaged pack that could not be downloaded again is still damaged for a later process.
func TestDamageWithoutStore(t *testing.T) {
	t.Parallel()
	b, root, old, rec := newCopy(t)
	pack := old.path(&rec.Packs[0], replog.File{Ext: ".pack"})
	if err := os.Remove(pack); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pack, make([]byte, rec.Packs[0].Bytes), 0o444); err != nil {
		t.Fatal(err)
	}
	crash(t, root)
	_, r := reopen(t, b, root)
	b.setHook(func(context.Context, string, []byte) ([]byte, error) { return nil, bucket.ErrDenied })
	if _, err := r.Use(t.Context(), rec, nil); err == nil {
		t.Error("Use() = nil with a damaged pack and without the store, want an error")
	}
	b.setHook(nil)
	_, r = reopen(t, b, root)
	use(t, r, rec)()
	checkFiles(t, b, r, rec)
}
