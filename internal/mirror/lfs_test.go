package mirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/client"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/origin"
	"github.com/packhorse-git/packhorse/internal/storage"
)

// lfsServer is the LFS server of a host.
type lfsServer struct {
	t       *testing.T
	content http.Handler // sends objects
	batches atomic.Int32
	gets    atomic.Int32

	mu      sync.Mutex
	objects map[string]map[lfs.OID][]byte // by repository
	href    func(repo string, id lfs.OID) string
	expires int64
	before  func(w http.ResponseWriter, r *http.Request, content []byte) (done bool) // a download
	seen    []string                                                                 // other requests
}

// addLFS adds an LFS server to a host.
func addLFS(t *testing.T, h *host) *lfsServer {
	s := &lfsServer{t: t, objects: map[string]map[lfs.OID][]byte{}}
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		repo, path, ok := strings.Cut(r.URL.Path, ".git/info/lfs")
		if ok {
			s.serve(w, r, strings.Trim(repo, "/"), path)
		}
		return ok
	})
	return s
}

// add adds an object to a repository.
func (s *lfsServer) add(repo string, content []byte) lfs.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[repo] == nil {
		s.objects[repo] = map[lfs.OID][]byte{}
	}
	o := lfs.Object{OID: sha256.Sum256(content), Size: int64(len(content))}
	s.objects[repo][o.OID] = content
	return o
}

// set sets how objects are sent.
func (s *lfsServer) set(before func(w http.ResponseWriter, r *http.Request, content []byte) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

func (s *lfsServer) find(repo string, id lfs.OID) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	content, ok := s.objects[repo][id]
	return content, ok
}

func (s *lfsServer) serve(w http.ResponseWriter, r *http.Request, repo, path string) {
	if name, ok := strings.CutPrefix(path, "/get/"); ok {
		s.get(w, r, repo, name)
		return
	}
	if path != "/objects/batch" {
		s.other(w, r, path)
		return
	}
	var q wire.BatchRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		s.t.Errorf("batch: %v", err)
	}
	s.batches.Add(1)
	answer := wire.BatchResponse{}
	for _, o := range q.Objects {
		id, err := lfs.ParseOID(o.OID)
		if err != nil {
			s.t.Errorf("batch: %v", err)
		}
		a := wire.ObjectAnswer{Object: o}
		_, found := s.find(repo, id)
		href := "http://" + r.Host + "/" + repo + ".git/info/lfs/get/" + o.OID
		s.mu.Lock()
		if s.href != nil {
			href = s.href(repo, id)
		}
		action := &wire.Action{Href: href, ExpiresIn: s.expires, Header: map[string]string{"X-Signed": "yes"}}
		s.mu.Unlock()
		switch {
		case q.Operation == wire.Upload && !found:
			a.Actions = &wire.Actions{Upload: action, Verify: &wire.Action{Href: strings.Replace(href, "/get/", "/verify/", 1)}}
		case q.Operation == wire.Download && found:
			a.Actions = &wire.Actions{Download: action}
		case q.Operation == wire.Download:
			a.Error = &wire.ObjectError{Code: 404, Message: "not here"}
		}
		answer.Objects = append(answer.Objects, a)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// get sends or takes an object.
func (s *lfsServer) get(w http.ResponseWriter, r *http.Request, repo, name string) {
	if r.Method == http.MethodPut {
		content, err := io.ReadAll(r.Body)
		if err == nil {
			s.add(repo, content)
			s.note(r)
		}
		return
	}
	s.gets.Add(1)
	id, _ := lfs.ParseOID(name)
	content, found := s.find(repo, id)
	if !found {
		http.NotFound(w, r)
		return
	}
	s.mu.Lock()
	before := s.before
	s.mu.Unlock()
	if before == nil || !before(w, r, content) {
		w.Header().Set("ETag", `"`+name+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
}

func (s *lfsServer) note(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, r.Method+" "+r.URL.Path[strings.Index(r.URL.Path, "/lfs/")+5:][:5]+" "+
		r.Header.Get("Authorization"))
}

// other answers requests about locks, and verifications.
func (s *lfsServer) other(w http.ResponseWriter, r *http.Request, _ string) {
	s.note(r)
	_ = json.NewEncoder(w).Encode(wire.LockResponse{Lock: &wire.Lock{ID: "1", Path: "a"}})
}

// sink is a node.ResponseWriter.
type sink struct {
	bytes.Buffer
	length int64
	bulk   string // "", "cold" or "warm"
	age    time.Duration
	grow   func(n int) // called after a part
}

func (s *sink) SetLength(n int64)            { s.length = n }
func (s *sink) Flush() error                 { return nil }
func (s *sink) ReserveMemory(int64) error    { return nil }
func (s *sink) SetStaleness(d time.Duration) { s.age = d }

func (s *sink) ReadFrom(r io.Reader) (int64, error) {
	n, err := s.Buffer.ReadFrom(r)
	if s.grow != nil {
		s.grow(s.Len())
	}
	return n, err
}

func (s *sink) StartBulk(cold bool) error {
	if s.bulk != "" {
		return errors.New("StartBulk was called twice")
	}
	s.bulk = map[bool]string{true: "cold", false: "warm"}[cold]
	return nil
}

func randomBytes(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// download downloads an object through a mirror.
func (w *world) download(ctx context.Context, path string, d lfs.Download) (*sink, node.Outcome, error) {
	s := &sink{length: -1}
	outcome, err := w.Node().LFSDownload(ctx, w.path(path), node.Session{Stateless: true}, d, s)
	return s, outcome, err
}

func whole(o lfs.Object) lfs.Download { return lfs.Download{Object: o, Length: -1} }

// gets downloads an object and compares it.
func (w *world) gets(path string, o lfs.Object, content []byte, cache string) {
	w.t.Helper()
	got, outcome, err := w.download(w.t.Context(), path, whole(o))
	if err != nil || !bytes.Equal(got.Bytes(), content) || got.length != o.Size || outcome.Pack != cache ||
		outcome.Bytes != o.Size {
		w.t.Fatalf("download of %s: %d bytes, length %d, outcome %q of %d bytes, error %v, want %d bytes and %q", path,
			got.Len(), got.length, outcome.Pack, outcome.Bytes, err, len(content), cache)
	}
}

// newLFSWorld returns mirrors of a host with repositories that have an LFS server.
func newLFSWorld(t *testing.T, repos ...string) (*world, *lfsServer) {
	t.Helper()
	h := newHost(t)
	for _, repo := range repos {
		h.repo(t, repo+".git")
	}
	s := addLFS(t, h)
	w := newWorld(t, h, t.TempDir())
	for _, repo := range repos {
		w.use("host/" + repo)
	}
	return w, s
}

func TestLFSDownloadIsShared(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a")
	content := randomBytes(1, 3<<20)
	o := s.add("a", content)
	started := make(chan struct{})
	s.set(func(http.ResponseWriter, *http.Request, []byte) bool { <-started; return false })

	const clients = 30
	var group sync.WaitGroup
	var misses, follows atomic.Int32
	for i := range clients {
		group.Go(func() {
			d := lfs.Download{Object: o, Offset: int64(i * 100_000), Length: -1}
			want := content[d.Offset:]
			if i%3 == 1 {
				d.Length = 1 << 20
				want = content[d.Offset:min(d.Offset+d.Length, o.Size)]
			}
			got, outcome, err := w.download(t.Context(), "host/a", d)
			if err != nil || !bytes.Equal(got.Bytes(), want) || got.length != int64(len(want)) || got.bulk != "cold" {
				t.Errorf("client %d: %d bytes, length %d, %s, error %v, want %d bytes", i, got.Len(), got.length, got.bulk, err,
					len(want))
			}
			switch outcome.Pack {
			case "miss":
				misses.Add(1)
			case "follow":
				follows.Add(1)
			}
		})
	}
	for w.lfs.followers() < clients {
		time.Sleep(time.Millisecond)
	}
	close(started)
	group.Wait()
	if s.gets.Load() != 1 || misses.Load() != 1 || follows.Load() != clients-1 {
		t.Errorf("%d downloads, %d misses, %d follows, want 1, 1, %d", s.gets.Load(), misses.Load(), follows.Load(),
			clients-1)
	}
	w.gets("host/a", o, content, "hit")
	w.gets("host/a.git", o, content, "hit")
	if s.gets.Load() != 1 {
		t.Errorf("%d downloads after a hit, want 1", s.gets.Load())
	}
	if _, err := os.Stat(filepath.Join(w.root, "host/a.git/lfs/objects", o.OID.String()[:2], o.OID.String()[2:4],
		o.OID.String())); err != nil {
		t.Error(err)
	}
}

// followers returns the number of followers of all downloads.
func (l *lfsObjects) followers() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, y := range l.downloads {
		n += y.followers
	}
	return n
}

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
		if err != nil || outcome.Mirror != node.MirrorRelay || outcome.Objects != 252 {
			t.Fatalf("batch: outcome %v, error %v, want 252 objects of the origin", outcome, err)
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
	for range 2 {
		if _, _, err := w.download(t.Context(), "host/a", whole(b.Objects[0])); !fault.Is(err, fault.Unavailable) {
			t.Errorf("download during a pause: %v, want Unavailable", err)
		}
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("downloads during a pause ended after %v, want at once", took)
	}
	_, _, err := w.Node().LFSBatch(t.Context(), w.path("host/a"), session, b)
	if !fault.Is(err, fault.Unavailable) || strings.Count(err.Error(), "is not asked at present") > 1 {
		t.Errorf("batch during a pause: %v, want Unavailable and one message", err)
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

// addOwn adds an object to a new repository that is not a mirror.
func (w *world) addOwn(o lfs.Object, content []byte) {
	w.t.Helper()
	path := w.path("own")
	_, err := w.node.Create(w.t.Context(), path, storage.CreateOptions{})
	w.do(err)
	r, release, err := w.node.LFSRepository(w.t.Context(), path)
	w.do(err)
	defer release()
	_, err = w.node.LFSObjects().Upload(w.t.Context(), r, lfs.Upload{Object: o}, bytes.NewReader(content))
	w.do(err)
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
		if !errors.Is(err, client.ErrWrong) || bytes.Contains(got.Bytes(), content[:100]) {
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

// A file that lost its end is replaced by another download.
func TestLFSDamagedFile(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a")
	content := randomBytes(9, 100_000)
	o := s.add("a", content)
	w.gets("host/a", o, content, "miss")
	id := o.OID.String()
	path := filepath.Join(w.root, "host/a.git/lfs/objects", id[:2], id[2:4], id)
	w.do(os.Chmod(path, 0o600))
	w.do(os.Truncate(path, 50_000)) // also that of the pool
	states, _, err := w.Node().LFSBatch(t.Context(), w.path("host/a"), node.Session{Stateless: true},
		lfs.Batch{Objects: []lfs.Object{o}})
	if err != nil || states[0].State != lfs.Present {
		t.Errorf("batch: %v, %v, want Present", states, err)
	}
	w.gets("host/a", o, content, "miss")
	w.gets("host/a", o, content, "hit")
	if n := s.gets.Load(); n != 2 {
		t.Errorf("%d downloads, want 2", n)
	}
	bad := whole(lfs.Object{OID: o.OID, Size: o.Size + 1})
	if _, _, err := w.download(t.Context(), "host/a", bad); err == nil {
		t.Error("download with a wrong size: no error")
	}
	w.gets("host/a", o, content, "hit")
}

// A wrong object ends as a cut response, is not stored, and is not asked for again at once.
func TestLFSWrongObject(t *testing.T) {
	t.Parallel()
	content := randomBytes(3, 300_000)
	wrong := bytes.Clone(content)
	wrong[len(wrong)-1]++
	for name, c := range map[string]struct {
		sent   []byte
		length bool
		begun  bool // clients get a part
	}{
		"wrong hash":          {wrong, true, true},
		"longer":              {append(bytes.Clone(wrong), 'x'), false, true},
		"wrong length header": {append(bytes.Clone(content), 'x'), true, false},
	} {
		w, s := newLFSWorld(t, "a")
		o := s.add("a", content)
		s.set(func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			if c.length {
				w.Header().Set("Content-Length", fmt.Sprint(len(c.sent)))
			}
			_, _ = w.Write(c.sent[:100_000])
			w.(http.Flusher).Flush()
			_, _ = w.Write(c.sent[100_000:])
			return true
		})
		for range 3 {
			got, _, err := w.download(t.Context(), "host/a", whole(o))
			if !errors.Is(err, client.ErrWrong) || int64(got.Len()) >= o.Size-heldBack+1 || !c.begun && got.length >= 0 {
				t.Errorf("%s: %d bytes, length %d, error %v, want ErrWrong and a part only", name, got.Len(), got.length, err)
			}
		}
		if n := s.gets.Load(); n != 1 {
			t.Errorf("%s: %d downloads, want 1", name, n)
		}
		s.set(nil)
		w.later(wrongTime)
		w.gets("host/a", o, content, "miss")
		if b := w.lfs.budget; b.bytes() != o.Size || b.running != 0 {
			t.Errorf("%s: %d bytes in the cache, %d reserved, want %d, 0", name, b.bytes(), b.running, o.Size)
		}
	}
}

// A wrong object of one repository does not keep another one from its object, also if both wait for it.
func TestLFSWrongObjectOfOtherRepository(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a", "b")
	content := randomBytes(3, 1000)
	o := s.add("a", content)
	s.add("b", content)
	goOn := make(chan struct{})
	s.set(func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		if !strings.HasPrefix(r.URL.Path, "/a.git") {
			return false
		}
		<-goOn
		_, _ = w.Write(make([]byte, 1000))
		return true
	})
	var group sync.WaitGroup
	group.Go(func() {
		if _, _, err := w.download(t.Context(), "host/a", whole(o)); !errors.Is(err, client.ErrWrong) {
			t.Errorf("download of a wrong object: %v, want ErrWrong", err)
		}
	})
	for w.lfs.followers() < 1 {
		time.Sleep(time.Millisecond)
	}
	group.Go(func() { w.gets("host/b", o, content, "miss") })
	for w.lfs.followers() < 2 {
		time.Sleep(time.Millisecond)
	}
	close(goOn)
	group.Wait()
	if _, _, err := w.download(t.Context(), "host/a", whole(o)); err != nil {
		t.Errorf("download of an object that another repository of the origin got: %v", err)
	}
}

// An object is complete after its last byte, although the response does not end. A short one is an error without a
// part.
func TestLFSEndOfResponse(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a")
	content := randomBytes(3, 300_000)
	s.set(func(w http.ResponseWriter, r *http.Request, content []byte) bool {
		_, _ = w.Write(content)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	})
	w.gets("host/a", s.add("a", content), content, "miss")

	short := s.add("a", randomBytes(4, 300_000))
	ctx, cancel := context.WithCancel(t.Context())
	s.set(func(w http.ResponseWriter, r *http.Request, content []byte) bool {
		if r.Header.Get("Range") != "" { // the part has what was sent
			cancel()
		}
		_, _ = w.Write(content[:1000])
		return true
	})
	if got, _, err := w.download(ctx, "host/a", whole(short)); err == nil || got.Len() > 0 || got.length >= 0 {
		t.Errorf("download of a short object: %d bytes, length %d, error %v, want only an error", got.Len(), got.length, err)
	}
}

// A download that breaks off continues where it ended.
func TestLFSResume(t *testing.T) {
	t.Parallel()
	content := randomBytes(4, 500_000)
	cut := func(n int) func(w http.ResponseWriter, r *http.Request, content []byte) bool {
		return func(w http.ResponseWriter, r *http.Request, content []byte) bool {
			if r.Header.Get("Range") != "" {
				return false
			}
			w.Header().Set("ETag", `"x"`)
			w.Header().Set("Content-Length", fmt.Sprint(len(content)))
			_, _ = w.Write(content[:n])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}
	first := func(then func(w http.ResponseWriter, r *http.Request, content []byte) bool) func(w http.ResponseWriter,
		r *http.Request, content []byte) bool {
		var calls atomic.Int32
		return func(w http.ResponseWriter, r *http.Request, content []byte) bool {
			if calls.Add(1) == 1 {
				return cut(200_000)(w, r, content)
			}
			return then(w, r, content)
		}
	}
	var pause atomic.Bool
	pause.Store(true)
	for name, c := range map[string]struct {
		before func(w http.ResponseWriter, r *http.Request, content []byte) bool
		gets   int32
		wrong  bool
	}{
		"range": {first(func(_ http.ResponseWriter, r *http.Request, _ []byte) bool {
			if got := r.Header.Get("Range") + r.Header.Get("If-Range"); got != `bytes=200000-"x"` {
				t.Errorf("Range and If-Range %q, want the rest of the same object", got)
			}
			r.Header.Del("If-Range")
			return false
		}), 2, false},
		"no ranges": {first(func(w http.ResponseWriter, _ *http.Request, content []byte) bool {
			_, _ = w.Write(content)
			return true
		}), 2, false},
		"another beginning": {first(func(w http.ResponseWriter, _ *http.Request, content []byte) bool {
			_, _ = w.Write(append([]byte("x"), content[1:]...))
			return true
		}), 2, true},
		"unavailable": {first(func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
			r.Header.Del("If-Range")
			if pause.Swap(false) {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			return false
		}), 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s := newLFSWorld(t, "a")
			o := s.add("a", content)
			s.set(c.before)
			got, _, err := w.download(t.Context(), "host/a", whole(o))
			if errors.Is(err, client.ErrWrong) != c.wrong || !c.wrong && !bytes.Equal(got.Bytes(), content) {
				t.Errorf("%d bytes, error %v, want the object: %v", got.Len(), err, !c.wrong)
			}
			if n := s.gets.Load(); n != c.gets {
				t.Errorf("%d requests, want %d", n, c.gets)
			}
		})
	}
}

// An action that does not work any more is asked for again.
func TestLFSExpiredAction(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a")
	content := []byte("content")
	o := s.add("a", content)
	refusals := int32(1)
	s.set(func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		if s.gets.Load() > refusals {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	w.gets("host/a", o, content, "miss")
	if n := s.batches.Load(); n != 2 {
		t.Errorf("%d batches, want 2", n)
	}
	refusals = 100
	o = s.add("a", []byte("refused"))
	if _, _, err := w.download(t.Context(), "host/a", whole(o)); !fault.Is(err, fault.Denied) || s.gets.Load() != 4 {
		t.Errorf("download with two refused actions: %v after %d requests in all, want Denied, 4", err, s.gets.Load())
	}
}

// An origin may send its objects from an allowed host, which gets no credential.
func TestLFSSignedURL(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.repo(t, "a.git")
	s := addLFS(t, h)
	content := randomBytes(5, 100_000)
	o := s.add("a", content)
	var header http.Header
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header
		_, _ = w.Write(content)
	}))
	t.Cleanup(store.Close)
	s.href = func(string, lfs.OID) string { return store.URL + "/bucket/object?signature=x" }
	for _, hosts := range [][]string{nil, {strings.TrimPrefix(store.URL, "http://")}} {
		w := newWorld(t, h, t.TempDir(), func(r *Rule) {
			r.OriginDecides = true
			var err error
			if r.Origin, err = origin.New(origin.Options{URL: r.URL, Hosts: hosts}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = r.Origin.Close() })
		})
		got := &sink{}
		_, err := w.Node().LFSDownload(t.Context(), w.path("host/a"), node.Session{Stateless: true,
			Authorization: node.NewSecret("Basic c2VjcmV0")}, whole(o), got)
		if hosts == nil {
			entry := fmt.Sprintf("add %q to lfs_hosts", strings.TrimPrefix(store.URL, "http://"))
			if !fault.Is(err, fault.Denied) || !strings.Contains(fault.Message(err), entry) || header != nil {
				t.Errorf("a host that is not allowed: error %v, request %v, want an error that names lfs_hosts", err, header)
			}
			continue
		}
		if err != nil || !bytes.Equal(got.Bytes(), content) {
			t.Errorf("an allowed host: %d bytes, error %v, want the object", got.Len(), err)
		}
		if header.Get("Authorization") != "" || header.Get("X-Signed") != "yes" {
			t.Errorf("the allowed host got %v, want the headers of the action only", header)
		}
	}
}

func TestLFSEviction(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a", "b")
	w.lfs.budget.limit = 250_000
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
	w.lfs.budget.limit = 200_000
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

// A download goes on without clients only if it is nearly done.
func TestLFSClientLeaves(t *testing.T) {
	t.Parallel()
	for _, nearlyDone := range []bool{true, false} {
		w, s := newLFSWorld(t, "a")
		size := 2*finishBytes + 1000
		content := randomBytes(6, size)
		o := s.add("a", content)
		sent := 1 << 20
		if nearlyDone {
			sent = size - 1<<20
		}
		goOn, ended := make(chan struct{}), make(chan struct{})
		s.set(func(w http.ResponseWriter, r *http.Request, content []byte) bool {
			defer close(ended)
			w.Header().Set("Content-Length", fmt.Sprint(len(content)))
			_, _ = w.Write(content[:sent])
			w.(http.Flusher).Flush()
			select {
			case <-goOn:
			case <-r.Context().Done():
				return true
			}
			_, _ = w.Write(content[sent:])
			return true
		})
		ctx, cancel := context.WithCancel(t.Context())
		got := &sink{grow: func(n int) {
			if n >= sent {
				cancel()
			}
		}}
		_, err := w.Node().LFSDownload(ctx, w.path("host/a"), node.Session{Stateless: true}, whole(o), got)
		if !fault.Is(err, fault.Cancelled) {
			t.Fatalf("download of a client that left: %v, want Cancelled", err)
		}
		if !nearlyDone {
			<-ended // the origin sees the end
			continue
		}
		close(goOn)
		<-ended
		w.running.Wait()
		w.gets("host/a", o, content, "hit")
	}
}

// Slow downloads of one repository do not stop those of others. A download that gets no slot ends in time.
func TestLFSSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lfsObjects{slots: map[string]chan struct{}{}}
		var leave []func()
		for i := range hostDownloads + 1 {
			url := "slow"
			if i > repoDownloads {
				url = "other"
			}
			start := time.Now()
			f, err := l.enter(t.Context(), "host", url)
			if i != repoDownloads {
				if err != nil || time.Since(start) > 0 {
					t.Fatalf("download %d, of %s: %v after %v, want a slot at once", i, url, err, time.Since(start))
				}
				leave = append(leave, f)
			} else if !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) == 0 || time.Since(start) != slotTime {
				t.Errorf("download %d: %v after %v, want Exhausted after %v", i, err, time.Since(start), slotTime)
			}
		}
		if _, err := l.enter(t.Context(), "host", "third"); !fault.Is(err, fault.Exhausted) {
			t.Errorf("download without a slot of the host: %v, want Exhausted", err)
		}
		for _, f := range leave {
			f()
		}
		if _, err := l.enter(t.Context(), "host", "slow"); err != nil {
			t.Errorf("download after the end of the others: %v", err)
		}
	})
}

// A download that waits for others ends with its last client.
func TestLFSClientLeavesBeforeDownload(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a")
	content := randomBytes(6, 1000)
	o := s.add("a", content)
	var leave [hostDownloads]func()
	for i := range leave {
		var err error
		leave[i], err = w.lfs.enter(t.Context(), w.rule.Origin.Host(), fmt.Sprint(i))
		w.do(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, _, err := w.download(ctx, "host/a", whole(o))
		ended <- err
	}()
	for w.lfs.followers() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; !fault.Is(err, fault.Cancelled) {
		t.Errorf("download of a client that left: %v, want Cancelled", err)
	}
	w.running.Wait()
	for _, f := range leave {
		f()
	}
	if n := s.gets.Load(); n != 0 {
		t.Errorf("%d downloads, want 0", n)
	}
	w.gets("host/a", o, content, "miss")
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
		states, _, err := n.LFSBatch(t.Context(), path, session, lfs.Batch{Upload: true, Objects: []lfs.Object{o}})
		if err != nil || states[0].State != want {
			t.Errorf("batch: %v, %v, want %v", states, err, want)
		}
		size, _, err := n.LFSUpload(t.Context(), path, session, lfs.Upload{Object: o}, bytes.NewReader(content))
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
