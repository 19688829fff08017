package mirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/wire"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/storage"
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
	refs    map[string]int                                                           // numbers of batches by ref
}

// addLFS adds an LFS server to a host.
func addLFS(t *testing.T, h *host) *lfsServer {
	s := &lfsServer{t: t, objects: map[string]map[lfs.OID][]byte{}, refs: map[string]int{}}
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
	if q.Ref != nil {
		s.mu.Lock()
		s.refs[q.Ref.Name]++
		s.mu.Unlock()
	}
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
	start  func()      // called by StartBulk
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
	if s.start != nil {
		s.start()
	}
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
	if err != nil || !bytes.Equal(got.Bytes(), content) || got.length != o.Size || outcome.LFS.Cache != cache ||
		outcome.LFS.Bytes != o.Size {
		w.t.Fatalf("download of %s: %d bytes, length %d, outcome %q of %d bytes, error %v, want %d bytes and %q", path,
			got.Len(), got.length, outcome.LFS.Cache, outcome.LFS.Bytes, err, len(content), cache)
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

// limitLFS changes the size of the cache. Its first walk reads the size, so it has to end before.
func (w *world) limitLFS(bytes int64) {
	w.t.Helper()
	w.do(w.lfs.budget.measure(w.t.Context()))
	w.lfs.budget.limit = bytes
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
