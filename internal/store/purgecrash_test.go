package store

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// crashing is a bucket in which a process makes some more changes before it crashes.
type crashing struct {
	*bucket.S3
	left *atomic.Int64
}

func (c crashing) step() error {
	if c.left.Add(-1) < 0 {
		return errCrash
	}
	return nil
}

func (c crashing) Create(ctx context.Context, key string, body []byte) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.S3.Create(ctx, key, body)
}

func (c crashing) Put(ctx context.Context, key string, body io.ReaderAt, size int64, sum [32]byte) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.S3.Put(ctx, key, body, size, sum)
}

func (c crashing) Delete(ctx context.Context, keys ...string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.S3.Delete(ctx, keys...)
}

func (c crashing) DeleteVersion(ctx context.Context, v bucket.Version) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.S3.DeleteVersion(ctx, v)
}

// TestPurgeCrashes crashes before changes of the bucket by a purge: every third one. When another node repeats it, the
// receipt is complete, and no copy is left.
func TestPurgeCrashes(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes minutes")
	}
	t.Parallel()
	server := buckettest.Versioned(t)
	b := server.Bucket("store")
	if _, err := Init(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	const enough = 1 << 40
	var left atomic.Int64
	left.Store(enough)
	n := newGitNode(t, crashing{b, &left}, receivepack.Options{})
	other, clone := newGitNode(t, b, receivepack.Options{}, named("other")), newClone(t)
	if err := n.ImportDir(t.Context(), repoPath("app"), clone.Dir); err != nil {
		t.Fatal(err)
	}
	crashes := 0
	for changes := int64(0); ; changes += 3 {
		secret := clone.Commit(fmt.Sprint("secret ", changes), clone.ID("main"))
		for _, node := range []*gitNode{n, other} { // both have a copy
			node.mustPush(clone, "app", secret.String()+":refs/heads/leak")
			node.mustPush(clone, "app", ":leak")
		}
		o := places.PurgeOptions{IDs: []git.ObjectID{secret}}
		left.Store(changes)
		receipt, err := n.node.Purge(t.Context(), repoPath("app"), o)
		isWhole := left.Swap(enough) >= 0
		if isWhole {
			if err != nil || len(receipt.Problems) > 0 {
				t.Errorf("without a crash: %+v, %v", receipt, err)
			}
		} else {
			crashes++
		}
		receipt, err = other.node.Purge(t.Context(), repoPath("app"), o)
		if err != nil || len(receipt.Problems)+len(receipt.Outstanding) > 0 {
			t.Errorf("after a crash before change %d: %+v, %v", changes, receipt, err)
		}
		for _, node := range []*gitNode{n, other} {
			if _, err := node.confirmPurges(t.Context()); err != nil {
				t.Error(err)
			}
		}
		dirs := []string{server.Dir, server.Versions, n.options.Cache.Root, other.options.Cache.Root}
		if copies := scanFiles(t, secret, dirs...); len(copies) > 0 {
			t.Fatalf("after a crash before change %d: copies are left: %q", changes, copies)
		}
		if isWhole {
			break
		}
	}
	if crashes < 2 {
		t.Errorf("%d crashes, want some", crashes)
	}
	n.copied("app").Git("fsck", "--full", "--strict")
	checkStore(t, b)
}
