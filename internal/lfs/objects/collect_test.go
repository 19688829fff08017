package objects_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
)

// careWorld is a Store with repositories, for tests of garbage, damage and quotas.
type careWorld struct {
	*objects.Store
	t   *testing.T
	dir string
}

func newCareWorld(t *testing.T, o objects.Options) *careWorld {
	t.Helper()
	w := &careWorld{t: t, dir: t.TempDir()}
	o.Dir, o.MinFree = filepath.Join(w.dir, "pool"), -1
	w.Store = objects.New(o)
	t.Cleanup(w.Close)
	return w
}

func (w *careWorld) repository(name string) objects.Repository {
	w.t.Helper()
	dir := filepath.Join(w.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	return objects.Repository{Dir: dir, ID: name}
}

func object(content string) lfs.Object {
	return lfs.Object{OID: sha256.Sum256([]byte(content)), Size: int64(len(content))}
}

func (w *careWorld) upload(r objects.Repository, content string) error {
	_, err := w.Upload(w.t.Context(), r, lfs.Upload{Object: object(content)}, bytes.NewReader([]byte(content)))
	return err
}

func (w *careWorld) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// state returns the state of an object before an upload or a download.
func (w *careWorld) state(r objects.Repository, o lfs.Object, upload bool) lfs.State {
	w.t.Helper()
	states, err := w.Check(w.t.Context(), r, lfs.Batch{Upload: upload, Objects: []lfs.Object{o}})
	w.do(err)
	return states[0].State
}

func (w *careWorld) file(r objects.Repository, o lfs.Object) string {
	s := o.OID.String()
	return filepath.Join(r.Dir, "lfs", "objects", s[:2], s[2:4], s)
}

func (w *careWorld) pooled(o lfs.Object) string {
	s := o.OID.String()
	return filepath.Join(w.dir, "pool", s[:2], s[2:4], s)
}

// age makes an object old.
func (w *careWorld) age(r objects.Repository, o lfs.Object) {
	w.t.Helper()
	old := time.Now().Add(-48 * time.Hour)
	w.do(os.Chtimes(w.file(r, o), old, old))
}

// collect removes all objects older than a day, as if no pointer file named one.
func (w *careWorld) collect(r objects.Repository) (removed int) {
	w.t.Helper()
	c, err := w.NewCollector(r, time.Now().Add(-24*time.Hour))
	w.do(err)
	defer c.Close()
	w.do(c.Recover())
	old, err := c.Candidates()
	w.do(err)
	for _, o := range old {
		gone, err := c.Remove(o)
		w.do(err)
		if gone {
			removed++
		}
	}
	return removed
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestCollect(t *testing.T) {
	w := newCareWorld(t, objects.Options{})
	one, two, o := w.repository("one"), w.repository("two"), object("content")
	w.do(w.upload(one, "content"))
	if n := w.collect(one); n != 0 {
		t.Errorf("collected %d new objects, want 0", n)
	}
	w.age(one, o)
	w.do(w.upload(two, "content")) // renews it: the repositories share the file
	if n := w.collect(one); n != 0 {
		t.Errorf("collected %d objects that another repository uploaded, want 0", n)
	}
	w.age(one, o)
	if w.state(one, o, false) != lfs.Present {
		t.Errorf("an object is not present before a download")
	}
	if n := w.collect(one); n != 1 || w.state(one, o, false) != lfs.Missing || w.state(two, o, false) != lfs.Present {
		t.Errorf("collected %d objects, want 1 that only the other repository still has", n)
	}
	w.age(two, o)
	if w.state(two, o, true) != lfs.Present || w.collect(two) != 0 {
		t.Errorf("an object was collected after it was present for an uploader")
	}
	none := func() error { return nil }
	if freed, err := w.CollectPool(none); err != nil || freed.Objects != 0 {
		t.Errorf("CollectPool = %+v, %v, want nothing while a repository has the object", freed, err)
	}
	w.age(two, o)
	w.collect(two)
	freed, err := w.CollectPool(none)
	if err != nil || freed != (objects.Usage{Objects: 1, Bytes: o.Size}) || exists(w.pooled(o)) {
		t.Errorf("CollectPool = %+v, %v, want the object", freed, err)
	}
}

// TestInterruptedCollection leaves an object as a Collector does that is killed between two steps: it comes back.
func TestInterruptedCollection(t *testing.T) {
	w := newCareWorld(t, objects.Options{})
	r, o := w.repository("one"), object("content")
	w.do(w.upload(r, "content"))
	aside := filepath.Join(r.Dir, "lfs", "removing")
	w.do(os.MkdirAll(aside, 0o700))
	w.do(os.Rename(w.file(r, o), filepath.Join(aside, o.OID.String())))
	if w.collect(r); w.state(r, o, false) != lfs.Present {
		t.Errorf("the object is missing, want it back")
	}
}

// TestCollectionRaces collects garbage while clients upload, ask about and push the same old objects. An object that an
// upload has finished, or that is present for an uploader, must stay.
func TestCollectionRaces(t *testing.T) {
	w := newCareWorld(t, objects.Options{})
	repositories := []objects.Repository{w.repository("one"), w.repository("two")}
	const rounds = 16
	var done atomic.Bool
	var collectors, clients sync.WaitGroup
	for _, r := range repositories {
		collectors.Go(func() {
			for !done.Load() {
				w.collect(r)
			}
		})
	}
	collectors.Go(func() {
		for !done.Load() {
			_, err := w.CollectPool(func() error { return nil })
			w.do(err)
		}
	})
	var aging [rounds]sync.RWMutex // held to make an object old
	var uploads, present atomic.Int32
	work := func(r objects.Repository, i int) {
		aging[i].RLock()
		defer aging[i].RUnlock()
		content := fmt.Sprint("object ", i)
		o := object(content)
		if w.state(r, o, true) == lfs.Present {
			present.Add(1)
		} else {
			uploads.Add(1)
			if err := w.upload(r, content); err != nil {
				t.Errorf("upload of object %d: %v", i, err)
			}
		}
		aside := filepath.Join(r.Dir, "lfs", "removing", o.OID.String()) // for a moment
		if !exists(w.file(r, o)) && !exists(aside) && !exists(w.file(r, o)) {
			t.Errorf("object %d is missing after its upload, want it", i)
		}
	}
	for client := range 4 {
		clients.Go(func() {
			r := repositories[client%2]
			for i := range rounds {
				work(r, i)
				aging[i].Lock()
				old := time.Now().Add(-48 * time.Hour) // the push did not come for two days
				_ = os.Chtimes(w.file(r, object(fmt.Sprint("object ", i))), old, old)
				aging[i].Unlock()
				if i > 0 {
					work(r, i-1)
				}
			}
		})
	}
	clients.Wait()
	done.Store(true)
	collectors.Wait()
	t.Logf("%d uploads, %d present", uploads.Load(), present.Load())
}

func TestDamage(t *testing.T) {
	w := newCareWorld(t, objects.Options{})
	one, two, o := w.repository("one"), w.repository("two"), object("content")
	w.do(w.upload(one, "content"))
	w.do(w.upload(two, "content"))
	if err := w.VerifyPooled(t.Context(), o, objects.NewLimiter(1<<20)); err != nil {
		t.Errorf("VerifyPooled: %v, want no error", err)
	}
	w.do(os.Chmod(w.pooled(o), 0o600))
	w.do(os.WriteFile(w.pooled(o), []byte("c0ntent"), 0o600))
	for _, err := range []error{w.VerifyPooled(t.Context(), o, nil), w.Verify(t.Context(), one, o, nil)} {
		damage, ok := err.(*objects.Damage)
		if !ok {
			t.Fatalf("error of the verification = %v, want Damage", err)
		}
		var had []string
		err = w.SetAside(damage, func(remove func(objects.Repository) (bool, error)) error {
			for _, r := range []objects.Repository{one, two} {
				removed, err := remove(r)
				if err != nil {
					return err
				}
				if removed {
					had = append(had, r.ID)
				}
			}
			return nil
		})
		w.do(err)
		if want := "[one two]"; had != nil && fmt.Sprint(had) != want {
			t.Errorf("repositories with the damaged object: %v, want %v", had, want)
		}
	}
	for _, r := range []objects.Repository{one, two} {
		if w.state(r, o, true) != lfs.Missing {
			t.Errorf("the damaged object of %s is not missing", r.ID)
		}
	}
	kept, err := os.ReadFile(filepath.Join(w.dir, "pool", "damaged", o.OID.String()))
	if string(kept) != "c0ntent" {
		t.Errorf("the damaged file has %q, %v, want it moved aside", kept, err)
	}
	w.do(w.upload(one, "content"))
	if err := w.Verify(t.Context(), one, o, nil); err != nil || w.state(one, o, false) != lfs.Present {
		t.Errorf("after another upload: %v, want no damage", err)
	}
	if w.state(two, o, false) != lfs.Missing {
		t.Errorf("the upload to a repository changed another one")
	}
}

func TestOwnQuota(t *testing.T) {
	w := newCareWorld(t, objects.Options{Quota: 10})
	r := w.repository("one")
	w.do(w.upload(r, "12345678"))
	if err := w.upload(r, "abc"); !fault.Is(err, fault.Full) {
		t.Errorf("upload above the quota: %v, want Full", err)
	}
	w.do(w.upload(r, "12345678")) // it is there
	states, err := w.Check(t.Context(), r, lfs.Batch{Upload: true, Objects: []lfs.Object{object("a"), object("b"),
		object("c")}})
	w.do(err)
	if states[0].State != lfs.Missing || states[1].State != lfs.Missing || !fault.Is(states[2].Err, fault.Full) {
		t.Errorf("Check = %v, want the third object above the quota", states)
	}
	w.do(w.upload(w.repository("two"), "12345678"))
	for quota, want := range map[int64]bool{-1: true, 100: true, 5: false} {
		r.Quota = quota
		if err := w.upload(r, fmt.Sprint("quota", quota)); (err == nil) != want {
			t.Errorf("upload with the repository's quota %d: %v, want success: %t", quota, err, want)
		}
	}
}

// blockedReader waits before its content.
type blockedReader struct {
	begin chan<- struct{}
	end   <-chan struct{}
	*bytes.Reader
}

func (r *blockedReader) Read(b []byte) (int, error) {
	if r.begin != nil {
		close(r.begin)
		<-r.end
		r.begin = nil
	}
	return r.Reader.Read(b)
}

// TestQuotaOfRunningUploads begins an upload: another one cannot use the same room, until the first has failed.
func TestQuotaOfRunningUploads(t *testing.T) {
	w := newCareWorld(t, objects.Options{Quota: 10})
	r := w.repository("one")
	begin, end, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		content := &blockedReader{begin, end, bytes.NewReader([]byte("not it"))}
		_, err := w.Upload(t.Context(), r, lfs.Upload{Object: object("123456")}, content)
		ended <- err
	}()
	<-begin
	if err := w.upload(r, "abcdef"); !fault.Is(err, fault.Full) {
		t.Errorf("upload beside another one: %v, want Full", err)
	}
	close(end)
	if err := <-ended; !fault.Is(err, fault.Invalid) {
		t.Errorf("upload of other bytes: %v, want Invalid", err)
	}
	w.do(w.upload(r, "abcdef"))
}

// TestRemovalAgainstRenewal removes an old object while an uploader asks about it, many times. The object
// must not be removed if it is present for the uploader.
func TestRemovalAgainstRenewal(t *testing.T) {
	w := newCareWorld(t, objects.Options{})
	r, o := w.repository("one"), object("content")
	w.do(w.upload(r, "content"))
	c, err := w.NewCollector(r, time.Now().Add(-24*time.Hour))
	w.do(err)
	defer c.Close()
	results := map[lfs.State]int{}
	for range 1000 {
		if !exists(w.file(r, o)) {
			w.do(os.Link(w.pooled(o), w.file(r, o)))
		}
		w.age(r, o)
		var state lfs.State
		var both sync.WaitGroup
		both.Go(func() { state = w.state(r, o, true) })
		both.Go(func() {
			_, err := c.Remove(o)
			w.do(err)
		})
		both.Wait()
		if results[state]++; state == lfs.Present && !exists(w.file(r, o)) {
			t.Fatalf("the object was removed after it was present for an uploader")
		}
	}
	t.Logf("missing %d times, present %d times", results[lfs.Missing], results[lfs.Present])
}

// Uses by a mirror do not keep the garbage of an own repository, and verification is not a use.
func TestTouch(t *testing.T) {
	t.Parallel()
	w := newCareWorld(t, objects.Options{})
	own, mirror, o := w.repository("own"), w.repository("mirror"), object("content")
	w.do(w.upload(own, "content"))
	w.do(w.upload(mirror, "content"))
	w.age(own, o)
	before, err := os.Stat(w.file(own, o))
	w.do(err)
	used := time.Now().Add(-30 * time.Hour).Truncate(time.Second)
	w.Touch(mirror, o, used)
	w.do(w.Verify(t.Context(), mirror, o, nil))
	after, err := os.Stat(w.file(own, o))
	w.do(err)
	if !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("time of modification after a use = %v, want %v", after.ModTime(), before.ModTime())
	}
	if got := objects.LastUse(after); runtime.GOOS == "linux" && !got.Equal(used) {
		t.Errorf("LastUse = %v, want %v", got, used)
	}
}
