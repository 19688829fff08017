package store

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// restart opens a store on the local cache of an earlier process, and closes it at the end of the test.
func restart(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A node that starts while the store is down serves what it had, as far as StaleIfError permits. It writes nothing
// before the store has passed the probe.
func TestStartDuringOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		o := Options{Bucket: b, URL: "s3://test/store", Node: "n", StaleIfError: 5 * time.Minute,
			Cache: hydrate.Options{Root: t.TempDir()}}
		before, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		create(t, before, "x")
		setRef(t, before, "x", "refs/heads/main", id1)
		time.Sleep(3 * time.Minute)
		refOf(t, before, "x", "refs/heads/main") // a check: the refs are not older than this
		create(t, before, "renamed")
		if err := before.Rename(t.Context(), repoPath("renamed"), repoPath("new")); err != nil {
			t.Fatal(err)
		}
		epoch := acquire(t, before, "new").Version(0, 0).Epoch
		if err := before.Close(); err != nil {
			t.Fatal(err)
		}

		b.SetFaults(buckettest.Faults{Down: true})
		s := restart(t, o)
		if s.Ready() == nil {
			t.Error("Ready = nil after a start without the store, want the reason")
		}
		time.Sleep(4 * time.Minute)
		if got := refOf(t, s, "x", "refs/heads/main"); got != id1 {
			t.Errorf("ref during the outage = %v, want %v", got, id1)
		}
		if got := acquire(t, s, "new").Version(0, 0).Epoch; got != epoch {
			t.Errorf("epoch during the outage = %d, want %d", got, epoch)
		}
		for _, path := range []string{"renamed", "other"} {
			if _, err := s.Acquire(t.Context(), repoPath(path)); !fault.Is(err, fault.Unavailable) {
				t.Errorf("Acquire(%s) during the outage = %v, want unavailable", path, err)
			}
		}
		time.Sleep(2 * time.Minute)
		p := acquire(t, s, "x")
		if _, err := p.Layers(t.Context()); !fault.Is(err, fault.Unavailable) {
			t.Errorf("Layers after StaleIfError = %v, want unavailable", err)
		}
		if p.Known() == nil {
			t.Error("Known = nil, want the refs of the earlier process: fetches of known tips continue")
		}

		b.SetFaults(buckettest.Faults{IgnoredCondition: true}) // another storage
		time.Sleep(2 * downInterval)
		if err := s.Ready(); !fault.Is(err, fault.Invalid) {
			t.Errorf("Ready with a storage that ignores conditions = %v, want invalid", err)
		}
		keys := len(repositoryKeys(b))
		_, headErr := p.SetHead(t.Context(), "refs/heads/y", nil)
		for name, err := range map[string]error{
			"Create":  s.Create(t.Context(), repoPath("y"), git.SHA1, "refs/heads/main", "", nil),
			"SetHead": headErr,
			"Delete":  s.Delete(t.Context(), repoPath("x"), places.DeleteOptions{}),
			"Rename":  s.Rename(t.Context(), repoPath("x"), repoPath("y")),
		} {
			if !fault.Is(err, fault.Invalid) {
				t.Errorf("%s before the storage has passed its tests = %v, want the reason", name, err)
			}
		}
		if _, err := p.Push(t.Context()); !fault.Is(err, fault.Invalid) {
			t.Errorf("Push before the storage has passed its tests = %v, want the reason", err)
		}
		if n := len(repositoryKeys(b)); n != keys {
			t.Errorf("%d objects in the bucket, want the %d from before", n, keys)
		}
		b.SetFaults(buckettest.Faults{})
		time.Sleep(2 * probePause)
		if err := s.Ready(); err != nil {
			t.Errorf("Ready after the tests = %v, want nil", err)
		}
		create(t, s, "y")
		setRef(t, s, "x", "refs/heads/main", id2)
	})
}

// Without a local cache of this store, or without access to it, a start fails.
func TestStartNeedsStore(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	o := Options{Bucket: b, URL: "s3://test/store", Cache: hydrate.Options{Root: t.TempDir()}}
	b.SetFaults(buckettest.Faults{Down: true})
	if _, err := Open(t.Context(), o); !fault.Is(err, fault.Unavailable) {
		t.Errorf("first start without the store = %v, want unavailable", err)
	}
	b.SetFaults(buckettest.Faults{})
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.SetFaults(buckettest.Faults{Down: true})
	o.URL = "s3://test/other"
	if _, err := Open(t.Context(), o); !fault.Is(err, fault.Unavailable) {
		t.Errorf("start with the cache of another store = %v, want unavailable", err)
	}
	o.URL = "s3://test/store"
	b.SetHook(func(string, string) error {
		return fault.Retry(fault.Unavailable, fault.RetryMuchLater, "access denied") // as of package bucket
	})
	if _, err := Open(t.Context(), o); !mentions(err, "access denied") {
		t.Errorf("start without access = %v, want the reason", err)
	}
}
