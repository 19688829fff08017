package lfs_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
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
)

// repository is a repository with locks.
type repository struct {
	t      *testing.T
	server lfs.LockServer
	dir    lfs.LockDir
}

func newRepository(t *testing.T) *repository {
	return &repository{t: t, dir: lfs.LockDir(filepath.Join(t.TempDir(), "lfs", "locks"))}
}

func (r *repository) do(q lfs.LockRequest) (lfs.LockAnswer, error) {
	return r.server.Do(r.t.Context(), r.dir, q)
}

func (r *repository) create(caller, path string) lfs.Lock {
	r.t.Helper()
	answer, err := r.do(lfs.LockRequest{Action: lfs.CreateLock, Caller: caller, Path: path})
	if err != nil || len(answer.Locks) != 1 {
		r.t.Fatalf("create(%q) = %v, %v, want one lock", path, answer, err)
	}
	return answer.Locks[0]
}

func (r *repository) unlock(caller, id string, force bool) error {
	_, err := r.do(lfs.LockRequest{Action: lfs.Unlock, Caller: caller, ID: id, Force: force})
	return err
}

func (r *repository) list(q lfs.LockRequest) lfs.LockAnswer {
	r.t.Helper()
	q.Action = lfs.ListLocks
	answer, err := r.do(q)
	if err != nil {
		r.t.Fatalf("list(%+v) error = %v, want none", q, err)
	}
	return answer
}

func TestLocks(t *testing.T) {
	r := newRepository(t)
	if got := r.list(lfs.LockRequest{}); len(got.Locks) != 0 {
		t.Errorf("list without locks = %v, want none", got)
	}
	art := r.create("ann", "art/horse.psd")
	if !art.Ours || art.Owner != "ann" || art.Time.IsZero() || len(art.ID) > 128 {
		t.Errorf("lock = %+v, want ann's", art)
	}
	answer, err := r.do(lfs.LockRequest{Action: lfs.CreateLock, Caller: "bob", Path: "art/horse.psd"})
	if !fault.Is(err, fault.Exists) || len(answer.Locks) != 1 || answer.Locks[0].ID != art.ID || answer.Locks[0].Ours {
		t.Errorf("second lock of a path = %v, %v, want ann's lock and Exists", answer, err)
	}
	if err := r.unlock("bob", art.ID, false); !fault.Is(err, fault.Denied) {
		t.Errorf("unlock by another caller: %v, want Denied", err)
	}
	if err := r.unlock("bob", art.ID, true); err != nil {
		t.Errorf("unlock with force: %v, want no error", err)
	}
	again := r.create("bob", "art/horse.psd")
	if err := r.unlock("ann", art.ID, true); !fault.Is(err, fault.NotFound) {
		t.Errorf("unlock with the ID of an earlier lock: %v, want NotFound", err)
	}
	got := r.list(lfs.LockRequest{Caller: "bob"}).Locks
	if len(got) != 1 || got[0].ID != again.ID || !got[0].Ours {
		t.Errorf("list = %+v, want bob's lock", got)
	}
}

func TestListPages(t *testing.T) {
	r := newRepository(t)
	for i := range 5 {
		r.create("ann", fmt.Sprintf("file %d\u00e9", i))
	}
	var paths []string
	for cursor := ""; ; {
		page := r.list(lfs.LockRequest{Cursor: cursor, Limit: 2})
		for _, l := range page.Locks {
			paths = append(paths, l.Path)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
		if len(page.Locks) == 2 && len(paths) == 2 { // removal of a listed lock loses no other
			if err := r.unlock("ann", page.Locks[1].ID, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	slices.Sort(paths) // only each page is sorted
	want := []string{"file 0é", "file 1é", "file 2é", "file 3é", "file 4é"}
	if fmt.Sprint(paths) != fmt.Sprint(want) {
		t.Errorf("pages have %q, want %q", paths, want)
	}
	first := r.list(lfs.LockRequest{Limit: 1}).Locks[0]
	for _, q := range []lfs.LockRequest{{Path: first.Path}, {ID: first.ID}, {Path: first.Path, ID: first.ID}} {
		if got := r.list(q); len(got.Locks) != 1 || got.Locks[0].ID != first.ID {
			t.Errorf("list(%+v) = %v, want the lock %s", q, got.Locks, first.ID)
		}
	}
	for _, q := range []lfs.LockRequest{{Path: "other"}, {ID: "x"}, {Path: "other", ID: first.ID}} {
		if got := r.list(q); len(got.Locks) != 0 {
			t.Errorf("list(%+v) = %v, want none", q, got.Locks)
		}
	}
}

// slowFiles needs a second for each request about one file.
type slowFiles struct {
	mu    sync.Mutex
	files map[string][]byte
	reads int
}

func (s *slowFiles) Create(_ context.Context, name string, content []byte) error {
	time.Sleep(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name] = content
	return nil
}

func (s *slowFiles) Read(_ context.Context, name string) ([]byte, error) {
	time.Sleep(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if content, ok := s.files[name]; ok {
		return content, nil
	}
	return nil, fault.New(fault.NotFound, "no file %s", name)
}

func (s *slowFiles) Remove(context.Context, string) error { panic("not used") }

func (s *slowFiles) Names(context.Context) ([]string, error) {
	return slices.Collect(maps.Keys(s.files)), nil
}

// A page reads its own locks only, at the same time. A request that waits for another one ends with its context.
func TestSlowFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var server lfs.LockServer
		files := &slowFiles{files: make(map[string][]byte)}
		create := func(ctx context.Context, path string) error {
			_, err := server.Do(ctx, files, lfs.LockRequest{Action: lfs.CreateLock, Caller: "ann", Path: path})
			return err
		}
		for i := range 40 {
			if err := create(t.Context(), fmt.Sprint("file ", i)); err != nil {
				t.Fatal(err)
			}
		}
		files.reads = 0
		begin := time.Now()
		page, err := server.Do(t.Context(), files, lfs.LockRequest{Action: lfs.ListLocks, Limit: 20})
		if took := time.Since(begin); err != nil || len(page.Locks) != 20 || files.reads != 20 || took != time.Second {
			t.Errorf("a page has %d locks (%v) after %d reads in %v, want 20 of each in 1s", len(page.Locks), err,
				files.reads, took)
		}
		first := make(chan error)
		go func() { first <- create(t.Context(), "file") }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if err := create(ctx, "file"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request that waits for another one: %v, want the error of its context", err)
		}
		if err := <-first; err != nil {
			t.Errorf("create = %v, want a lock", err)
		}
	})
}

func TestInvalidLockRequests(t *testing.T) {
	r := newRepository(t)
	for want, q := range map[fault.Kind]lfs.LockRequest{
		fault.Invalid:  {Action: lfs.CreateLock, Caller: "ann", Path: "a\x00b"},
		fault.Denied:   {Action: lfs.CreateLock, Path: "file"},
		fault.NotFound: {Action: lfs.Unlock, Caller: "ann", ID: "../../../config"},
	} {
		if _, err := r.do(q); !fault.Is(err, want) {
			t.Errorf("Do(%+v) error = %v, want %v", q, err, want)
		}
	}
	if _, err := r.do(lfs.LockRequest{Action: lfs.ListLocks, Cursor: "!"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("list with a wrong cursor: %v, want Invalid", err)
	}
}

func TestDamagedLockIsNotReplaced(t *testing.T) {
	r := newRepository(t)
	r.create("ann", "file")
	files, err := filepath.Glob(filepath.Join(string(r.dir), "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files = %v, %v, want one", files, err)
	}
	if err := os.WriteFile(files[0], []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = r.do(lfs.LockRequest{Action: lfs.CreateLock, Caller: "bob", Path: "file"})
	if !fault.Is(err, fault.Corrupt) {
		t.Errorf("lock of a path with a damaged lock: %v, want Corrupt", err)
	}
}

// TestConcurrentLocks lets many callers lock, unlock and lock one path again: each lock has one owner.
func TestConcurrentLocks(t *testing.T) {
	r := newRepository(t)
	var owners atomic.Int32
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			me := fmt.Sprint("caller ", i)
			for range 20 {
				answer, err := r.do(lfs.LockRequest{Action: lfs.CreateLock, Caller: me, Path: "file"})
				if fault.Is(err, fault.Exists) {
					continue
				}
				if err != nil {
					t.Errorf("create: %v, want no error or Exists", err)
					return
				}
				if n := owners.Add(1); n != 1 {
					t.Errorf("%d owners of one lock, want 1", n)
				}
				owners.Add(-1)
				if err := r.unlock(me, answer.Locks[0].ID, false); err != nil {
					t.Errorf("unlock: %v, want no error", err)
				}
			}
		})
	}
	callers.Wait()
}

// Long paths make shorter pages, so that an answer fits into a message between nodes.
func TestListPagesOfLongPaths(t *testing.T) {
	t.Parallel()
	files, server := memory{}, lfs.LockServer{}
	const all = 600
	for i := range all {
		q := lfs.LockRequest{Action: lfs.CreateLock, Caller: "ann", Path: fmt.Sprintf("%04d", i) + strings.Repeat("x", 4000)}
		if _, err := server.Do(t.Context(), files, q); err != nil {
			t.Fatal(err)
		}
	}
	found, pages, cursor := 0, 0, ""
	for ok := true; ok; ok = cursor != "" {
		page, err := server.Do(t.Context(), files, lfs.LockRequest{Action: lfs.ListLocks, Cursor: cursor})
		if err != nil || len(page.Locks) == 0 {
			t.Fatalf("page after %.20q = %d locks, %v, want some", cursor, len(page.Locks), err)
		}
		found, pages, cursor = found+len(page.Locks), pages+1, page.Next
	}
	if found != all || pages != 3 {
		t.Errorf("list = %d locks on %d pages, want %d on 3", found, pages, all)
	}
}

// fill adds n locks of ann, without a list of all for each.
func fill(t testing.TB, files lfs.LockFiles, n int) {
	t.Helper()
	for i := range n {
		path := fmt.Sprintf("art/%05d.psd", i)
		sum := sha256.Sum256([]byte(path))
		name := hex.EncodeToString(sum[:16])
		content := fmt.Sprintf(`{"id":"%s%016x","path":%q,"owner":"ann","time":"2026-01-02T03:04:05Z"}`, name, i, path)
		if err := files.Create(t.Context(), name, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestManyLocks lists as many locks as a repository can have, in pages of several sizes, while others are made and
// removed. Each lock that is there all the time is listed once.
func TestManyLocks(t *testing.T) {
	t.Parallel()
	files, server := memory{}, lfs.LockServer{}
	fill(t, files, lfs.MaxLocks)
	do := func(q lfs.LockRequest) lfs.LockAnswer {
		t.Helper()
		answer, err := server.Do(t.Context(), files, q)
		if err != nil {
			t.Fatalf("%+v: %v", q, err)
		}
		return answer
	}
	for _, limit := range []int{0, 100, 999, 1 << 30} {
		found := make(map[string]int)
		removed := make(map[string]bool)
		for i, cursor := 0, ""; i == 0 || cursor != ""; i++ {
			page := do(lfs.LockRequest{Action: lfs.ListLocks, Cursor: cursor, Limit: limit})
			if n := len(page.Locks); n > lfs.MaxLockPage || limit > 0 && n > limit {
				t.Fatalf("limit %d: a page of %d locks", limit, n)
			}
			for _, l := range page.Locks {
				found[l.Path]++
			}
			last := page.Locks[len(page.Locks)-1]
			do(lfs.LockRequest{Action: lfs.Unlock, ID: last.ID, Caller: "ann"})
			do(lfs.LockRequest{Action: lfs.CreateLock, Path: fmt.Sprint("new/", limit, "/", i), Caller: "ann"})
			removed[last.Path] = true
			cursor = page.Next
		}
		for name := range files {
			path := strings.Split(string(files[name]), `"`)[7]
			if n := found[path]; n > 1 || n == 0 && !strings.HasPrefix(path, fmt.Sprint("new/", limit, "/")) {
				t.Errorf("limit %d: %s was listed %d times, want once", limit, path, n)
			}
		}
		if want := lfs.MaxLocks - len(removed); len(found) < want {
			t.Errorf("limit %d: listed %d locks, want at least %d", limit, len(found), want)
		}
	}
	_, err := server.Do(t.Context(), files, lfs.LockRequest{Action: lfs.CreateLock, Path: "more", Caller: "ann"})
	if !fault.Is(err, fault.Full) || !strings.Contains(fault.Message(err), "10000 locks") {
		t.Errorf("one lock too many: %v, want an error of kind Full with the number", err)
	}
}

// A page of 1,000 locks of 10,000 on disk.
func BenchmarkList(b *testing.B) {
	dir, server := lfs.LockDir(filepath.Join(b.TempDir(), "locks")), lfs.LockServer{}
	if err := os.Mkdir(string(dir), 0o755); err != nil {
		b.Fatal(err)
	}
	files := memory{}
	fill(b, files, lfs.MaxLocks)
	for name, content := range files { // without a sync of each
		if err := os.WriteFile(filepath.Join(string(dir), name+".json"), content, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		answer, err := server.Do(b.Context(), dir, lfs.LockRequest{Action: lfs.ListLocks})
		if err != nil || len(answer.Locks) != lfs.MaxLockPage {
			b.Fatal(len(answer.Locks), err)
		}
	}
}

// memory has lock files in memory.
type memory map[string][]byte

func (m memory) Create(_ context.Context, name string, content []byte) error {
	m[name] = content
	return nil
}

func (m memory) Read(_ context.Context, name string) ([]byte, error) {
	content, ok := m[name]
	if !ok {
		return nil, fault.New(fault.NotFound, "no lock")
	}
	return content, nil
}

func (m memory) Remove(_ context.Context, name string) error {
	delete(m, name)
	return nil
}

func (m memory) Names(context.Context) ([]string, error) { return slices.Collect(maps.Keys(m)), nil }

func TestPathsOfFiles(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	for path, want := range map[string]bool{"a": true, "a b/.gitignore": true, "...": true, "": false, "/a": false,
		"a/": false, "a//b": false, ".": false, "./a": false, "../../x": false, "a/..": false, ".git/config": false,
		"a/.GIT": false, "a\x00b": false, "a\nb": false, "\xff": false, strings.Repeat("a", 4097): false} {
		_, err := r.do(lfs.LockRequest{Action: lfs.CreateLock, Caller: "ann", Path: path})
		if want && err != nil || !want && !fault.Is(err, fault.Invalid) {
			t.Errorf("lock of %.40q = %v, want ok = %t or Invalid", path, err, want)
		}
	}
}
