package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// mentions reports whether the text of an error, with its causes, has all parts.
func mentions(err error, parts ...string) bool {
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			return false
		}
	}
	return true
}

func TestInitRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		key, body string
		kind      fault.Kind
		says      []string
	}{
		"another program": {"backups/1", "x", fault.Invalid, []string{"backups/1", "another prefix"}},
		"a store":         {IdentityKey, `{"format":1,"id":"abc","needs":[]}`, fault.Exists, []string{IdentityKey, "abc"}},
		"a newer format": {IdentityKey, `{"format":2,"id":"abc"}`, fault.Invalid,
			[]string{IdentityKey, "format 2", "newer version"}},
		"an unknown need": {IdentityKey, `{"format":1,"id":"abc","needs":["x"]}`, fault.Invalid,
			[]string{IdentityKey, `"x"`, "newer version"}},
		"a damaged object": {IdentityKey, `{"for`, fault.Corrupt, []string{IdentityKey, "restore"}},
		"another JSON":     {IdentityKey, `{"name":"app"}`, fault.Corrupt, []string{IdentityKey, "restore"}},
		"a lost identity":  {"repos/x/log/1", "x", fault.Invalid, []string{"repos/x/log/1", IdentityKey, "restore"}},
		"a lost identity of an old store": {"gc/2026-w01/0", "n", fault.Invalid,
			[]string{"gc/2026-w01/0", IdentityKey, "restore"}},
		"after other names": {"zzz", "x", fault.Invalid, []string{"zzz", "another prefix"}},
	} {
		b := buckettest.NewMemory(1)
		b.Set("probe/left", []byte("x"))
		b.Set(test.key, []byte(test.body))
		if _, err := Init(t.Context(), b); !fault.Is(err, test.kind) || !mentions(err, test.says...) {
			t.Errorf("%s: Init = %v, want %v with %q", name, err, test.kind, test.says)
		}
	}
	if _, err := Open(t.Context(), Options{Bucket: buckettest.NewMemory(1)}); !mentions(err, IdentityKey, "store init") {
		t.Errorf("Open of an empty bucket = %v", err)
	}
}

func TestInitAfterAnUnclearAnswer(t *testing.T) {
	t.Parallel()
	b := buckettest.NewMemory(1)
	b.SetFaults(buckettest.Faults{LostAnswers: 1})
	id, err := Init(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	if stored, err := ReadIdentity(t.Context(), b); err != nil || stored.ID != id.ID {
		t.Errorf("stored identity = %v, %v, want %v", stored, err, id)
	}
}

func TestCacheBelongsToOneStore(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	one, two := Identity{Format: 1, ID: "one"}, Identity{Format: 1, ID: "two"}
	for range 2 {
		if err := claimCache(root, "s3://a/x", one); err != nil {
			t.Fatal(err)
		}
	}
	if is, err := IsCache(root); err != nil || !is {
		t.Errorf("IsCache = %v, %v, want true", is, err)
	}
	if err := claimCache(root, "s3://b/x", one); !mentions(err, "s3://a/x", "s3://b/x", "store promote") {
		t.Errorf("two stores with one ID: %v", err)
	}
	if err := claimCache(root, "s3://a/x", two); !mentions(err, root, "another store", "another root") {
		t.Errorf("another store's cache: %v", err)
	}
	plain := t.TempDir()
	if err := os.MkdirAll(filepath.Join(plain, "team", "app.git"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := claimCache(plain, "s3://a/x", one); !mentions(err, plain, "contains team", "store import") {
		t.Errorf("a root with repositories: %v", err)
	}
	if is, err := IsCache(plain); err != nil || is {
		t.Errorf("IsCache of a root with repositories = %v, %v, want false", is, err)
	}
}

func TestOneProcessPerCache(t *testing.T) {
	t.Parallel()
	b, root := newBucket(t), t.TempDir()
	id, err := ReadIdentity(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Bucket: b, URL: "s3://test/store", Cache: hydrate.Options{Root: root}}
	first, err := open(o, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	shadow := filepath.Join(root, shadowsDir, "push-1")
	if err := os.Mkdir(shadow, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := open(o, id, nil); !mentions(err, root, "another process", "another root") {
		t.Errorf("open of a root in use = %v, want an error that names the root and the remedy", err)
	}
	if _, err := os.Stat(shadow); err != nil {
		t.Errorf("a push of the process that uses the root: %v, want it to be untouched", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := open(o, id, nil)
	if err != nil {
		t.Fatalf("open after Close of the other process = %v, want nil", err)
	}
	if _, err := os.Stat(shadow); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a push of an earlier process: %v, want it to be gone", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

func TestNodesRefuseAfterPromotion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, s, p := newPlace(t)
		b.Set(IdentityKey, Identity{Format: 1, ID: "promoted"}.encode())
		time.Sleep(2 * monitorInterval)
		if err := s.Ready(); !mentions(err, "promoted", "restart") {
			t.Errorf("Ready = %v", err)
		}
		for name, f := range map[string]func() error{
			"Layers":  func() error { _, err := p.Layers(t.Context()); return err },
			"Acquire": func() error { _, err := s.Acquire(t.Context(), repoPath("x")); return err },
			"Create":  func() error { return s.Create(t.Context(), repoPath("y"), git.SHA1, "refs/heads/main", "", nil) },
			"Delete":  func() error { return s.Delete(t.Context(), repoPath("x"), places.DeleteOptions{}) },
			"Rename":  func() error { return s.Rename(t.Context(), repoPath("x"), repoPath("y")) },
			"SetHead": func() error { _, err := p.SetHead(t.Context(), "refs/heads/y", nil); return err },
			"List":    func() error { _, err := s.List(t.Context(), places.ListQuery{Limit: 10}); return err },
		} {
			if err := f(); !fault.Is(err, fault.Unavailable) || !mentions(err, "promoted") {
				t.Errorf("%s = %v, want unavailable", name, err)
			}
		}
		if p.Known() != nil {
			t.Error("Known has refs of the earlier store")
		}
		b.Set(IdentityKey, s.identity.encode())
		time.Sleep(2 * downInterval)
		if err := s.Ready(); !mentions(err, "promoted", "restart") {
			t.Errorf("Ready with the first ID again = %v, want the reason why all requests fail", err)
		}
	})
}

func TestBucketWithoutTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		s := newNode(t, b)
		create(t, s, "x")
		if err := b.Delete(t.Context(), IdentityKey); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * monitorInterval)
		if err := s.Ready(); !fault.Is(err, fault.Unavailable) || !mentions(err, IdentityKey, "restore it") {
			t.Errorf("Ready = %v, want unavailable with the key and the remedy", err)
		}
		if _, err := acquire(t, s, "x").Push(t.Context()); !fault.Is(err, fault.Unavailable) {
			t.Errorf("Push = %v, want unavailable", err)
		}
		b.Set(IdentityKey, s.identity.encode())
		time.Sleep(2 * downInterval)
		if err := s.Ready(); err != nil {
			t.Errorf("Ready = %v, want nil after the object was restored", err)
		}
	})
}

func TestOpenProbes(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	o := Options{Bucket: b, URL: "s3://test/store", Cache: hydrate.Options{Root: t.TempDir()}}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	b.SetFaults(buckettest.Faults{IgnoredCondition: true})
	if _, err := Open(t.Context(), o); !fault.Is(err, fault.Invalid) {
		t.Errorf("Open with a store that ignores conditions = %v, want invalid", err)
	}
}
