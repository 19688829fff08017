package mirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

func TestLFSBatch(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a")
	var b lfs.Batch
	for i := range 250 {
		b.Objects = append(b.Objects, s.add("a", []byte(fmt.Sprint(i))))
	}
	missing := lfs.Object{OID: sha256.Sum256([]byte("missing")), Size: 7}
	large := lfs.Object{OID: sha256.Sum256([]byte("large")), Size: 1 << 60}
	b.Objects = append(b.Objects, missing, large)
	session := node.Session{Stateless: true}
	for _, batches := range []int32{3, 4} { // only the missing one is asked for again
		states, outcome, err := w.Node().LFSBatch(t.Context(), w.path("host/a"), session, b)
		if err != nil || outcome.Mirror != node.MirrorRelay || outcome.LFS.Objects != 252 || outcome.LFS.Refused != 1 ||
			outcome.Reason != "too_large" {
			t.Fatalf("batch: outcome %v, error %v, want 252 objects of the origin, one of them too large", outcome, err)
		}
		for i, state := range states {
			want := lfs.Present
			switch b.Objects[i] {
			case missing:
				want = lfs.Missing
			case large:
				want = lfs.Refused
			}
			if state.State != want {
				t.Errorf("object %d: %v, want %v", i, state, want)
			}
		}
		if got := s.batches.Load(); got != batches {
			t.Errorf("%d batches at the origin, want %d", got, batches)
		}
	}
	w.later(actionTime)
	if _, _, err := w.Node().LFSBatch(t.Context(), w.path("host/a"), session, b); err != nil || s.batches.Load() != 7 {
		t.Errorf("%d batches at the origin after the actions expired, error %v, want 7", s.batches.Load(), err)
	}
}

// Objects that are here are served without a question to the origin, also when it is down, while the rule allows it.
func TestLFSWithoutOrigin(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a")
	content := []byte("content")
	o := s.add("a", content)
	other := s.add("a", []byte("other"))
	w.gets("host/a", o, content, "miss")
	w.host.set(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true })
	w.gets("host/a", o, content, "hit")

	session := node.Session{Stateless: true}
	states, outcome, err := w.Node().LFSBatch(t.Context(), w.path("host/a"), session,
		lfs.Batch{Objects: []lfs.Object{o, other}})
	if err != nil || states[0].State != lfs.Present || states[1].State != lfs.Refused || outcome.Stale == 0 {
		t.Errorf("batch: %v, stale %v, error %v, want the object that is here, with an age", states, outcome.Stale, err)
	}
	if _, _, err = w.download(t.Context(), "host/a", whole(other)); !fault.Is(err, fault.Unavailable) {
		t.Errorf("download of an unknown object: %v, want Unavailable", err)
	}
	r := w.lookUp(w.path("host/a"))
	_, _ = r.check(t.Context(), node.Secret{}, true) // finds the outage
	got, outcome, err := w.download(t.Context(), "host/a", whole(o))
	if err != nil || got.age == 0 || outcome.Stale == 0 {
		t.Errorf("download during an outage: age %v, %v, error %v, want an age", got.age, outcome.Stale, err)
	}
	w.later(2 * time.Hour) // longer than StaleFor
	_, _ = r.check(t.Context(), node.Secret{}, true)
	if _, _, err = w.download(t.Context(), "host/a", whole(o)); !fault.Is(err, fault.Unavailable) {
		t.Errorf("download during a long outage: %v, want Unavailable", err)
	}
}

// A batch promises no object while the origin gets no requests, and a download does not wait for it.
func TestLFSWhileOriginIsStopped(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a")
	b := lfs.Batch{Objects: []lfs.Object{s.add("a", []byte("content"))}}
	session := node.Session{Stateless: true}
	if states, _, err := w.Node().LFSBatch(t.Context(), w.path("host/a"), session, b); err != nil ||
		states[0].State != lfs.Present {
		t.Fatalf("batch: %v, %v, want Present", states, err)
	}
	w.host.set(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "20")
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	start := time.Now()
	for _, kind := range []fault.Kind{fault.Unavailable, fault.Exhausted} {
		_, _, err := w.download(t.Context(), "host/a", whole(b.Objects[0]))
		if !fault.Is(err, kind) || fault.RetryAfter(err) < 15*time.Second {
			t.Errorf("download during a pause: %v, want %v with the rest of the pause", err, kind)
		}
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("downloads during a pause ended after %v, want at once", took)
	}
	_, _, err := w.Node().LFSBatch(t.Context(), w.path("host/a"), session, b)
	if !fault.Is(err, fault.Exhausted) || strings.Count(err.Error(), "limits requests at present") > 1 {
		t.Errorf("batch during a pause: %v, want Exhausted and one message", err)
	}
}

// An object of another mirror is only used if the origin says that this repository has it.
func TestLFSObjectsOfOtherMirrors(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a", "b", "c")
	content := randomBytes(2, 100_000)
	o := s.add("a", content)
	s.add("b", content)
	w.gets("host/a", o, content, "miss")
	w.gets("host/b", o, content, "hit")
	if n := s.gets.Load(); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
	if _, _, err := w.download(t.Context(), "host/c", whole(o)); !fault.Is(err, fault.NotFound) {
		t.Errorf("download from a repository without the object: %v, want NotFound", err)
	}
	bad := lfs.Object{OID: o.OID, Size: o.Size + 1}
	if _, _, err := w.download(t.Context(), "host/c", whole(bad)); err == nil {
		t.Error("download with another size: no error")
	}
}

// The word of an origin does not open an object that only an own repository has.
func TestLFSObjectsOfOwnRepositories(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a", "b", "c")
	content := randomBytes(7, 100_000)
	o := s.add("a", content)
	s.add("b", content)
	s.add("c", content)
	w.addOwn(o, content)
	s.set(func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		_, _ = w.Write(randomBytes(8, 100_000))
		return true
	})
	for range 2 {
		got, _, err := w.download(t.Context(), "host/a", whole(o))
		if !errors.Is(err, origin.ErrWrongObject) || bytes.Contains(got.Bytes(), content[:100]) {
			t.Errorf("download from an origin that does not have the object: %d bytes, %v, want ErrWrong", got.Len(), err)
		}
	}
	s.set(nil)
	w.later(wrongTime)
	w.gets("host/a", o, content, "miss")
	w.gets("host/b", o, content, "hit") // as the origin has sent it
	w.lfs = newLFSObjects(w.Mirrors, w.node.LFSObjects(), 0)
	w.gets("host/c", o, content, "hit") // also after a start
	if n := s.gets.Load(); n != 2 {
		t.Errorf("%d downloads, want 2: the wrong one, and one for all mirrors", n)
	}
	_ = w.node.LFSObjects().WalkPool(func(o lfs.Object, links uint64) error {
		if links != 5 {
			t.Errorf("the pool's object has %d links, want 5: of the pool, the own repository and three mirrors", links)
		}
		return nil
	})
}

func TestLFSEviction(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a", "b")
	w.limitLFS(250_000)
	var all []lfs.Object
	var contents [][]byte
	for i := range 5 {
		contents = append(contents, randomBytes(byte(10+i), 60_000))
		all = append(all, s.add("a", contents[i]))
		s.add("b", contents[i])
	}
	for i := range 4 {
		w.gets("host/a", all[i], contents[i], "miss")
		w.later(2 * time.Minute)
	}
	w.gets("host/b", all[1], contents[1], "hit")
	w.later(2 * time.Minute)
	w.gets("host/a", all[0], contents[0], "hit")
	w.later(2 * time.Minute)
	release := w.lfs.budget.use(all[2].OID) // the oldest one
	w.gets("host/a", all[4], contents[4], "miss")
	release()
	var here []int
	for i, o := range all {
		states, _, err := w.node.LFSBatch(t.Context(), w.path("host/a"), node.Session{}, lfs.Batch{Objects: []lfs.Object{o}})
		if err != nil {
			t.Fatal(err)
		}
		if states[0].State == lfs.Present {
			here = append(here, i)
		}
	}
	if want := []int{0, 2, 4}; !slices.Equal(here, want) && !slices.Equal(here, []int{0, 1, 2, 4}) {
		t.Errorf("objects %v are left, want %v: the others were not used for longer", here, want)
	}
	if got := w.lfs.budget.bytes(); got > 250_000 {
		t.Errorf("%d bytes in the cache, want at most 250,000", got)
	}
	pool := 0
	_ = w.node.LFSObjects().WalkPool(func(lfs.Object, uint64) error { pool++; return nil })
	if pool != len(here) {
		t.Errorf("%d objects in the pool, want %d", pool, len(here))
	}
	large := s.add("a", randomBytes(20, 250_001))
	if _, _, err := w.download(t.Context(), "host/a", whole(large)); !fault.Is(err, fault.Invalid) {
		t.Errorf("download of an object larger than the cache: %v, want Invalid", err)
	}
}

// An object that the origin promises and does not send costs no other object.
func TestLFSEvictionNeedsContent(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a")
	w.limitLFS(200_000)
	small := [][]byte{randomBytes(1, 60_000), randomBytes(2, 60_000), randomBytes(3, 60_000)}
	large := s.add("a", randomBytes(4, 200_000))
	w.gets("host/a", s.add("a", small[0]), small[0], "miss")
	w.gets("host/a", s.add("a", small[1]), small[1], "miss")
	started, goOn := make(chan struct{}), make(chan struct{})
	s.set(func(w http.ResponseWriter, _ *http.Request, content []byte) bool {
		if len(content) != int(large.Size) {
			return false
		}
		select {
		case <-goOn: // it begins again without clients
			w.WriteHeader(http.StatusNotFound)
			return true
		default:
		}
		w.Header().Set("Content-Length", fmt.Sprint(large.Size))
		w.(http.Flusher).Flush()
		close(started)
		<-goOn
		panic(http.ErrAbortHandler)
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _, _ = w.download(ctx, "host/a", whole(large))
	}()
	<-started
	w.gets("host/a", s.add("a", small[2]), small[2], "miss")
	cancel()
	<-ended
	close(goOn)
	w.running.Wait()
	for _, content := range small {
		w.gets("host/a", s.add("a", content), content, "hit")
	}
	if b := w.lfs.budget; b.bytes() != 180_000 || b.running != 0 {
		t.Errorf("%d bytes in the cache, %d reserved, want 180000, 0", b.bytes(), b.running)
	}
}

// Uploads and locks go to the origin with the credential of the caller.
func TestLFSUploadAndLocks(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.repo(t, "a.git")
	s := addLFS(t, h)
	w := newWorld(t, h, t.TempDir(), func(r *Rule) { r.OriginDecides, r.PushToOrigin = true, true })
	n, path := w.Node(), w.path("host/a")
	content := []byte("new content")
	o := lfs.Object{OID: sha256.Sum256(content), Size: int64(len(content))}
	session := node.Session{Stateless: true, Authorization: node.NewSecret("Basic bob")}
	for _, want := range []lfs.State{lfs.Missing, lfs.Present} {
		states, _, err := n.LFSBatch(t.Context(), path, session, lfs.Batch{Upload: true, Ref: "refs/heads/x",
			Objects: []lfs.Object{o}})
		if err != nil || states[0].State != want {
			t.Errorf("batch: %v, %v, want %v", states, err, want)
		}
		size, _, err := n.LFSUpload(t.Context(), path, session, lfs.Upload{Object: o, Ref: "refs/heads/y"},
			bytes.NewReader(content))
		if err != nil || size != o.Size {
			t.Errorf("LFSUpload = %d, %v, want %d", size, err, o.Size)
		}
	}
	if _, _, err := n.LFSLocks(t.Context(), path, session, lfs.LockRequest{Path: "a"}); err != nil {
		t.Errorf("LFSLocks: %v", err)
	}
	want := []string{"PUT get/" + o.OID.String()[:1] + " Basic bob", "POST verif Basic bob", "POST locks Basic bob"}
	for i := range want {
		want[i] = strings.Join(strings.Fields(want[i]), " ")
	}
	s.mu.Lock()
	if fmt.Sprint(s.seen) != fmt.Sprint(want) {
		t.Errorf("requests %q, want %q", s.seen, want)
	}
	if s.refs["refs/heads/x"] != 2 || s.refs["refs/heads/y"] != 2 {
		t.Errorf("batches by ref = %v, want two of each", s.refs)
	}
	s.mu.Unlock()

	session.Authorization = node.Secret{} // as over SSH
	_, _, err := n.LFSBatch(t.Context(), path, session, lfs.Batch{Upload: true, Objects: []lfs.Object{o}})
	_, _, uploadErr := n.LFSUpload(t.Context(), path, session, lfs.Upload{Object: o}, bytes.NewReader(content))
	_, _, lockErr := n.LFSLocks(t.Context(), path, session, lfs.LockRequest{Path: "a"})
	for _, err := range []error{err, uploadErr, lockErr} {
		if !fault.Is(err, fault.Denied) || !strings.Contains(fault.Message(err), "push to http://") {
			t.Errorf("without a credential: %v, want Denied with the URL of the origin", err)
		}
	}
}
