package store

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

type countingReader struct{ calls int }

func (r *countingReader) Read([]byte) (int, error) { r.calls++; return 0, errors.New("no content") }

// A damaged object that an operator deletes from the bucket can be uploaded again, on a node that remembers it.
func TestLFSUploadOfDeletedObject(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{})
	create(t, a.Store, "app")
	o := a.mustUpload("app", "content")
	key := "repos/" + a.id("app") + "/lfs/" + o.OID.String()
	deleteObject := func() {
		if err := b.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	deleteObject()
	a.mustUpload("app", "content")
	if got, _, err := c.download("app", o); err != nil || got != "content" {
		t.Errorf("download after another upload = %q, %v", got, err)
	}
	deleteObject()
	c.lfsSizes.Add(lfsKey{c.id("app"), o.OID}, lfsSize{o.Size, time.Now().Add(-lfsSizeTime)})
	if err := os.Remove(filepath.Join(c.options.Cache.Root, c.id("app")+".git", lfsFile(o.OID))); err != nil {
		t.Fatal(err)
	}
	if states, err := c.states("app", true, o); err != nil || states[0] != lfs.Missing {
		t.Errorf("state of an object that was deleted = %v, %v, want missing", states, err)
	}
}

// An upload whose bytes are all here, and that could not store them or was killed before, fails. The next batch stores
// them, so that no client sends them again.
func TestLFSUploadInterrupted(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n := newGitNode(t, b, receivepack.Options{})
	create(t, n.Store, "app")
	b.SetHook(func(operation, key string) error {
		if operation == "put" {
			return fault.New(fault.Unavailable, "not now")
		}
		return nil
	})
	o, err := n.upload("app", "content")
	if !fault.Is(err, fault.Unavailable) {
		t.Fatalf("upload that cannot be stored: %v, want Unavailable", err)
	}
	if states, err := n.states("app", true, o); err != nil || states[0] != lfs.Refused {
		t.Errorf("state after a failed upload = %v, %v, want refused", states, err)
	}
	if states, err := n.states("app", false, o); err != nil || states[0] != lfs.Missing {
		t.Errorf("state after a failed upload = %v, %v, want missing", states, err)
	}
	if used := n.Usage().Bytes; used != o.Size {
		t.Errorf("the cache has %d bytes after a failed upload, want %d", used, o.Size)
	}
	b.SetHook(nil)
	if states, err := n.states("app", true, o); err != nil || states[0] != lfs.Present {
		t.Errorf("state after the next batch = %v, %v, want present", states, err)
	}
	next := newGitNode(t, b, receivepack.Options{})
	if got, pack, err := next.download("app", o); err != nil || got != "content" || pack != "miss" {
		t.Errorf("download from another node = %q, %q, %v, want the content as a miss", got, pack, err)
	}
}

// An upload replaces a damaged copy, whether or not the bucket has the object. A copy that was removed because it was
// damaged is downloaded again.
func TestLFSUploadReplacesDamagedCopy(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newGitNode(t, b, receivepack.Options{}), newGitNode(t, b, receivepack.Options{})
	create(t, a.Store, "app")
	o := a.mustUpload("app", "content")
	if got, _, err := c.download("app", o); err != nil || got != "content" {
		t.Fatalf("download = %q, %v", got, err)
	}
	file := filepath.Join(c.options.Cache.Root, c.id("app")+".git", lfsFile(o.OID))
	damage := func() {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		write(t, file, "damaged")
	}
	damage()
	c.mustUpload("app", "content")
	if got, pack, err := c.download("app", o); err != nil || got != "content" || pack != "hit" {
		t.Errorf("download after the upload = %q, %q, %v, want the content as a hit", got, pack, err)
	}
	damage()
	key := "repos/" + a.id("app") + "/lfs/" + o.OID.String()
	if err := b.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	c.mustUpload("app", "content")
	if got, _, err := newGitNode(t, b, receivepack.Options{}).download("app", o); err != nil || got != "content" {
		t.Errorf("download from another node = %q, %v, want the content", got, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got, pack, err := c.download("app", o); err != nil || got != "content" || pack != "miss" {
		t.Errorf("download of a removed copy = %q, %q, %v, want the content as a miss", got, pack, err)
	}
	if used := c.Usage().Bytes; used != o.Size {
		t.Errorf("the cache has %d bytes, want %d", used, o.Size)
	}
}

// While the store is down, a copy that could not be stored is not offered.
func TestLFSNotStoredWithoutTheStore(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	n := newGitNode(t, b, receivepack.Options{})
	create(t, n.Store, "app")
	stored := n.mustUpload("app", "stored")
	b.SetHook(func(operation, _ string) error {
		if operation == "put" {
			b.SetFaults(buckettest.Faults{Down: true})
			return fault.New(fault.Unavailable, "not now")
		}
		return nil
	})
	o, err := n.upload("app", "content")
	if !fault.Is(err, fault.Unavailable) {
		t.Fatalf("upload that cannot be stored: %v, want Unavailable", err)
	}
	n.checkIdentity()
	states, err := n.states("app", false, stored, o)
	if err != nil || !slices.Equal(states, []lfs.State{lfs.Present, lfs.Refused}) {
		t.Errorf("states = %v, %v, want present, refused", states, err)
	}
}

// The upload of an object is not found when its repository was removed meanwhile.
func TestLFSUploadToRemovedRepository(t *testing.T) {
	t.Parallel()
	n := newGitNode(t, newBucket(t), receivepack.Options{})
	create(t, n.Store, "app")
	p, err := n.Acquire(t.Context(), repoPath("app"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	if err := n.Delete(t.Context(), repoPath("app"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.LFS().Put(t.Context(), lfsObjectOf("content")); !fault.Is(err, fault.NotFound) {
		t.Errorf("Put = %v, want NotFound", err)
	}
}
