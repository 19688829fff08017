package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

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
			switch outcome.LFS.Cache {
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

// A client does not begin a download if another one has ended since it looked for the object.
func TestLFSDownloadEndsDuringStart(t *testing.T) {
	t.Parallel()
	w, s := newLFSWorld(t, "a")
	content := randomBytes(1, 1<<20)
	o := s.add("a", content)
	late := &sink{length: -1, start: func() { w.gets("host/a", o, content, "miss") }}
	session := node.Session{Stateless: true}
	outcome, err := w.Node().LFSDownload(t.Context(), w.path("host/a"), session, whole(o), late)
	if err != nil || !bytes.Equal(late.Bytes(), content) || late.length != o.Size || outcome.LFS.Cache != "hit" {
		t.Errorf("late client: %d bytes, length %d, %q, error %v, want %d bytes and a hit", late.Len(), late.length,
			outcome.LFS.Cache, err, o.Size)
	}
	x, err := w.Node().beginLFS(t.Context(), w.path("host/a"), session, late)
	w.do(err)
	if y, _, err := w.lfs.join(x, o, nil); y != nil || err != nil {
		t.Errorf("join after the end: %v, error %v, want no download", y, err)
	}
	if n := s.gets.Load(); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
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
			if !errors.Is(err, origin.ErrWrongObject) || int64(got.Len()) >= o.Size-heldBack+1 || !c.begun && got.length >= 0 {
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
		if _, _, err := w.download(t.Context(), "host/a", whole(o)); !errors.Is(err, origin.ErrWrongObject) {
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
		if r.Header.Get("Range") != "" { // the mirror has the first bytes
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
			if errors.Is(err, origin.ErrWrongObject) != c.wrong || !c.wrong && !bytes.Equal(got.Bytes(), content) {
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
