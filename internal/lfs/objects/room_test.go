package objects_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// slowRemote is an empty object storage whose list of objects does not end before the test lets it.
type slowRemote struct {
	objects.Remote // nil: other methods are not used
	lists          atomic.Int32
	started, ended chan struct{}
}

func (*slowRemote) IsStored(lfs.OID) bool                 { return false }
func (*slowRemote) MaxObject() int64                      { return 1 << 30 }
func (*slowRemote) Put(context.Context, lfs.Object) error { return nil }
func (*slowRemote) Sizes(_ context.Context, o []lfs.Object) ([]int64, error) {
	return make([]int64, len(o)), nil
}

func (*slowRemote) Begin(context.Context, lfs.Object) (grow func(int64) error, end func(), err error) {
	return func(int64) error { return nil }, func() {}, nil
}

func (r *slowRemote) Usage() (int64, error) {
	if r.lists.Add(1) == 1 {
		close(r.started)
	}
	<-r.ended
	return 100, nil
}

// Callers share one list of all objects, wait for it no longer than their requests, and miss no upload meanwhile.
func TestUsageIsShared(t *testing.T) {
	t.Parallel()
	s := objects.New(objects.Options{Dir: t.TempDir()})
	defer s.Close()
	remote := &slowRemote{started: make(chan struct{}), ended: make(chan struct{})}
	r := objects.Repository{Dir: t.TempDir(), ID: "app", Remote: remote}
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			if used, err := s.Usage(t.Context(), r); used != 107 || err != nil {
				t.Errorf("Usage = %d, %v, want 107", used, err)
			}
		})
	}
	<-remote.started
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Usage(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("Usage of a request that ended = %v, want its error", err)
	}
	u := lfs.Upload{Object: lfs.Object{OID: sha256.Sum256([]byte("content")), Size: 7}}
	if _, err := s.Upload(t.Context(), r, u, strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	close(remote.ended)
	callers.Wait()
	if n := remote.lists.Load(); n != 1 {
		t.Errorf("the objects were listed %d times, want once", n)
	}
}

func TestQuota(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{Quota: 1000})
	r := w.repository("app")
	if err := w.upload(r, random(600)); err != nil {
		t.Fatal(err)
	}
	if err := w.upload(r, random(500)); !fault.Is(err, fault.Full) || objects.Reason(err) != "quota" {
		t.Errorf("an upload above the quota: %v, want Full", err)
	}
	states, err := w.Check(t.Context(), r, lfs.Batch{Upload: true, Objects: []lfs.Object{objectOf(random(600)),
		objectOf(random(300)), objectOf(random(301)), objectOf(random(100))}})
	if err != nil || states[0].State != lfs.Present || states[1].State != lfs.Missing ||
		states[2].State != lfs.Refused || !fault.Is(states[2].Err, fault.Full) || states[3].State != lfs.Missing {
		t.Errorf("Check = %v, %v, want present, missing, refused, missing", states, err)
	}
	if n, reason := objects.Refusals(states); n != 1 || reason != "quota" {
		t.Errorf("Refusals = %d, %q, want 1, quota", n, reason)
	}
	if err := errors.Join(w.upload(r, random(600)), w.upload(r, random(400))); err != nil {
		t.Errorf("uploads within the quota: %v", err)
	}
	if err := w.upload(w.repository("other"), random(500)); err != nil {
		t.Errorf("upload to another repository: %v", err)
	}
	if used, err := w.Usage(t.Context(), r); used != 1000 || err != nil {
		t.Errorf("Usage = %d, %v, want 1000", used, err)
	}
}

// Uploads leave space free.
func TestFloor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, objects.Options{MinFree: 1 << 60})
	r := w.repository("app")
	content := random(10)
	if err := w.upload(r, content); !fault.Is(err, fault.Full) || objects.Reason(err) != "disk_full" {
		t.Errorf("upload: %v, want Full", err)
	}
	states, err := w.Check(t.Context(), r, lfs.Batch{Upload: true, Objects: []lfs.Object{objectOf(content)}})
	if err != nil || states[0].State != lfs.Refused || !fault.Is(states[0].Err, fault.Full) {
		t.Errorf("Check = %v, %v, want refused", states, err)
	}
	w.expectFiles(0, 0)
}
