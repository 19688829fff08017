package hydrate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// upload stores a repository as the objects of a record: a pack with all objects, and its refs.
func upload(t testing.TB, b *fakeBucket, from *gittest.Repo, id string, rec *replog.Record) {
	t.Helper()
	from.Git("repack", "-q", "-a", "-d")
	from.Git("pack-refs", "--all")
	read := func(path string) []byte {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	packs, err := filepath.Glob(from.Dir + "/objects/pack/pack-*.pack")
	if err != nil || len(packs) != 1 {
		t.Fatalf("packs %v (%v), want one", packs, err)
	}
	local := strings.TrimSuffix(packs[0], ".pack")
	p := replog.Pack{Key: replog.PackKey(filepath.Base(local), replog.NewID()), Objects: 1, Since: rec.Number}
	pack, idx, packed := read(packs[0]), read(local+".idx"), read(from.Dir+"/packed-refs")
	p.Bytes, p.IdxBytes = int64(len(pack)), int64(len(idx))
	p.SHA256, p.IdxSHA256 = b.put("repos/"+id+"/"+p.Key+".pack", pack), b.put("repos/"+id+"/"+p.Key+".idx", idx)
	rec.Packs = []replog.Pack{p}
	rec.Refs = replog.Refs{Checkpoint: "refs/1-" + replog.NewID(), Bytes: int64(len(packed)), Count: 1}
	rec.Refs.SHA256 = b.put("repos/"+id+"/"+rec.Refs.Checkpoint, packed)
}

// After Apply and Use, git reads the local copy.
func TestApply(t *testing.T) {
	t.Parallel()
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		t.Run(format.String(), func(t *testing.T) {
			t.Parallel()
			from := gittest.Init(t, "--object-format="+format.String())
			from.Git("update-ref", "refs/heads/topic", from.Commit("x").String())
			b := newFakeBucket()
			c := open(t, Options{Bucket: b})
			r, rec := c.Repository("a"), newRecord()
			rec.Head, rec.ObjectFormat = "refs/heads/topic", format
			rec.Config = []replog.Setting{{Key: "receive.hiderefs", Value: "x"},
				{Key: "receive.B]\t\"c\\.d.e", Value: "x\t\"\\\n[include]\n\tpath = /x # y "},
				{Key: "receive.hiderefs", Value: "!x/y"}}
			allowed := rec.Config
			rec.Config = append(rec.Config, replog.Setting{Key: "hook.x.command", Value: "x"},
				replog.Setting{Key: "core.hookspath", Value: "/x"}, replog.Setting{Key: "include.path", Value: "/x"},
				replog.Setting{Key: "receive.fsck.skiplist", Value: "/x"})
			upload(t, b, from, "a", rec)
			if err := os.MkdirAll(r.Dir(), 0o755); err != nil {
				t.Fatal(err)
			}
			apply(t, r, rec)
			local := gittest.At(t, r.Dir())
			if got, want := local.Git("for-each-ref", "--format=%(refname) %(objectname)"),
				from.Git("for-each-ref", "--format=%(refname) %(objectname)"); got != want {
				t.Errorf("refs before the packs:\n%s\nwant\n%s", got, want)
			}
			use(t, r, rec)()
			local.Git("fsck", "--full", "--strict")
			if got, want := local.Git("rev-parse", "HEAD"), from.Git("rev-parse", "refs/heads/topic"); got != want {
				t.Errorf("HEAD is %s, want %s", got, want)
			}
			want := ""
			for _, s := range allowed {
				want += s.Key + "\n" + s.Value + "\x00"
			}
			if got := local.Git("config", "--local", "--null", "--list"); !strings.HasSuffix(got, want) {
				t.Errorf("config is %q, want %q at its end", got, want)
			}
		})
	}
}

// Apply never goes back, and keeps the base of the record before.
func TestApplyInOrder(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b})
	r := c.Repository("a")
	recs := []*replog.Record{newRecord()}
	apply(t, r, recs[0])
	for i := range 3 {
		rec := recs[i].Next(replog.KindCheckpoint, "test", recs[0].At)
		rec.Refs.Checkpoint, rec.Refs.Bytes = "refs/"+rec.Txn, 5
		rec.Refs.SHA256 = b.put("repos/a/"+rec.Refs.Checkpoint, []byte("base"+string(rune('0'+i))))
		apply(t, r, rec)
		recs = append(recs, rec)
	}
	before := b.requests()
	apply(t, r, recs[1])
	if got, err := r.Applied(t.Context()); got != recs[3] || err != nil {
		t.Errorf("Applied() = %v, %v; want record 4", got, err)
	}
	for i, want := range []string{"", "", "base1", "base2"} {
		if got, _ := os.ReadFile(r.Base(recs[i])); string(got) != want {
			t.Errorf("the base of record %d is %q, want %q", i+1, got, want)
		}
	}
	if got, _ := os.ReadFile(r.Dir() + "/packed-refs"); string(got) != "base2" || b.requests() != before {
		t.Errorf("packed-refs is %q after %d more requests, want base2 and 0", got, b.requests()-before)
	}
	bad := recs[3].Next(replog.KindCheckpoint, "test", recs[0].At)
	bad.Refs.Checkpoint = "refs/" + bad.Txn
	b.put("repos/a/"+bad.Refs.Checkpoint, []byte("other"))
	err := r.Apply(t.Context(), bad)
	if !fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), bad.Refs.Checkpoint) {
		t.Errorf("Apply with a damaged checkpoint: %v, want Corrupt with its key", err)
	}
	if got, _ := r.Applied(t.Context()); got != recs[3] {
		t.Errorf("Applied() = %v after a failure, want record 4", got)
	}
	made := filepath.Join(t.TempDir(), "made")
	if err := os.WriteFile(made, []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	bad.Refs.Bytes, bad.Refs.SHA256 = 5, b.put("other", []byte("other"))
	before = b.requests()
	if err := r.InstallBase(bad, made); err != nil {
		t.Fatal(err)
	}
	apply(t, r, bad)
	if b.requests() != before {
		t.Errorf("%d requests for a base that was installed, want 0", b.requests()-before)
	}
	checkEmptyState(t, c)
}

// The pack of a push is moved into the local copy and not downloaded.
func TestInstall(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b})
	r, first := c.Repository("a"), newRecord()
	apply(t, r, first)
	rec := first.Next(replog.KindPush, "test", time.Now())
	b.addPack(rec, "a", "1", 1000)
	p := &rec.Packs[0]
	from := filepath.Join(t.TempDir(), "pack-1")
	for _, f := range p.Files() {
		if err := os.WriteFile(from+f.Ext, b.objects[r.key(p.Key)+f.Ext], 0o444); err != nil {
			t.Fatal(err)
		}
	}
	short := *p
	short.Bytes++
	if err := r.Install(rec, &short, from); err == nil {
		t.Error("Install of a file with another size: got no error, want one")
	}
	if err := r.Install(rec, p, from); err != nil {
		t.Fatal(err)
	}
	settle(t, r)
	apply(t, r, rec)
	use(t, r, rec)()
	checkFiles(t, b, r, rec)
	if b.requests() != 0 {
		t.Errorf("%d requests, want 0", b.requests())
	}
}

// A deleted repository leaves nothing, and the same cache can have one with the same ID later.
func TestRemove(t *testing.T) {
	t.Parallel()
	b := newFakeBucket()
	c := open(t, Options{Bucket: b})
	rs, recs := repositories(c, b, 1)
	apply(t, rs[0], recs[0])
	done := use(t, rs[0], recs[0])
	if err := rs[0].Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := rs[0].Use(t.Context(), recs[0], nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("Use after Remove: %v, want NotFound", err)
	}
	done()
	if err := rs[0].Apply(t.Context(), recs[0]); !fault.Is(err, fault.NotFound) {
		t.Errorf("Apply after Remove: %v, want NotFound", err)
	}
	if _, err := os.Stat(rs[0].Dir()); !os.IsNotExist(err) || c.bytes != 0 {
		t.Errorf("the directory exists (%v), or %d bytes are counted; want neither", err, c.bytes)
	}
	again := c.Repository("r0")
	apply(t, again, recs[0])
	use(t, again, recs[0])()
	checkFiles(t, b, again, recs[0])
	if err := c.Repository("none").Remove(); err != nil {
		t.Errorf("Remove without a local copy: %v", err)
	}
}
