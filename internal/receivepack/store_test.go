package receivepack_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/hydrate"
	"github.com/packhorse-git/packhorse/internal/receivepack"
	"github.com/packhorse-git/packhorse/internal/store"
)

func init() { receivepack.NewStore = newTestStore }

// testStore is a node of a store whose bucket is in memory.
type testStore struct {
	*store.Store
	imports atomic.Int64
}

func newTestStore(t *testing.T) receivepack.Store {
	t.Helper()
	b := buckettest.NewMemory(1)
	if _, err := store.Init(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), store.Options{Bucket: b, URL: "s3://test/store", Node: "n",
		Cache: hydrate.Options{Root: t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &testStore{Store: s}
}

func (s *testStore) Import(t *testing.T, dir string) receivepack.Stored {
	t.Helper()
	path, err := git.ParseRepoPath(fmt.Sprintf("app-%d", s.imports.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Store.Import(t.Context(), path, dir); err != nil {
		t.Fatal(err)
	}
	place, err := s.Acquire(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(place.Release)
	return place
}
