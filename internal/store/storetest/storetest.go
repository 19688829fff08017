// Package storetest makes stores in memory, for tests of other packages.
package storetest

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// Node is one node of a store whose bucket is in memory.
type Node struct {
	*store.Store
	bucket  *buckettest.Memory
	imports atomic.Int64
}

// New makes a store with one node, whose local copies are in a directory. Both end with the test.
func New(t testing.TB, dir string) *Node {
	t.Helper()
	b := buckettest.NewMemory(1)
	if _, err := store.Init(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return open(t, b, "n", dir)
}

// Other returns another node of the store, which has the given name.
func (n *Node) Other(t testing.TB, name, dir string) *Node {
	t.Helper()
	return open(t, n.bucket, name, dir)
}

func open(t testing.TB, b *buckettest.Memory, name, dir string) *Node {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Bucket: b, URL: "s3://test/store", Node: name,
		Cache: hydrate.Options{Root: dir}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Node{Store: s, bucket: b}
}

// Place is a repository of the store.
type Place interface {
	places.Place
	repo.Place
	Dir() string // of the local copy
}

// Import copies a bare repository into the store, and returns it with current refs. It ends with the test.
func (n *Node) Import(t testing.TB, dir string) Place {
	t.Helper()
	path, err := git.ParseRepoPath(fmt.Sprintf("imported-%d", n.imports.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Store.ImportDir(t.Context(), path, dir); err != nil {
		t.Fatal(err)
	}
	place, err := n.Acquire(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(place.Release)
	return place.(Place)
}
