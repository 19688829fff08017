package search_test

import (
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/ipc"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/worker"
)

// TestMain lets this program be a worker: the name of its process is that of packhorse-search then.
func TestMain(m *testing.M) {
	if os.Args[0] == ipc.Program {
		if err := worker.Main(ipc.Build{Version: "test"}, os.Args[1:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// a process that finds races waits for a second before it ends, and there is one for each job
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	os.Exit(m.Run())
}

type files map[string]string

// source is repositories in memory. Their commits are trees with a number.
type source struct {
	mu       sync.Mutex
	repos    map[git.RepoPath]*memoryRepo
	changed  chan struct{} // closed at each change
	given    int           // number of requested files
	hold     chan struct{} // Files waits for it after the first file; may be nil
	made     int
	broken   error
	unlisted error // not all repositories can be listed
	grepping int
	told     map[git.RepoPath]uint64 // the generation of the last event for watchers
	seen     func()                  // called by Heads before it returns; may be nil
	away     error                   // error of listing the repositories; may be nil
	room     int                     // maximum number of watched repositories; 0: all
	watched  int
}

type memoryRepo struct {
	incarnation string
	generation  uint64
	heads       map[string]git.ObjectID // by ref
	head        string
	commits     map[git.ObjectID]files
	order       []git.ObjectID
}

func newSource() *source {
	return &source{repos: map[git.RepoPath]*memoryRepo{}, told: map[git.RepoPath]uint64{}, changed: make(chan struct{})}
}

func repoPath(name string) git.RepoPath {
	p, err := git.ParseRepoPath(name)
	if err != nil {
		panic(err)
	}
	return p
}

func (s *source) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// push puts a commit on a branch, and makes the repository if there is none.
func (s *source) push(name, ref string, f files) git.ObjectID {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.repos[repoPath(name)]
	if r == nil {
		s.made++
		r = &memoryRepo{incarnation: fmt.Sprint("made ", s.made), heads: map[string]git.ObjectID{}, head: "refs/heads/main",
			commits: map[git.ObjectID]files{}}
		s.repos[repoPath(name)] = r
	}
	r.generation++
	if f != nil {
		sum := sha1.Sum(fmt.Append(nil, name, ref, r.incarnation, r.generation))
		id := git.RawObjectID(sum[:])
		r.commits[id], r.heads[ref] = maps.Clone(f), id
		r.order = append(r.order, id)
	}
	s.tell()
	return r.heads[ref]
}

// files counts those that were given.
func (s *source) files() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given
}

func (s *source) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.repos, repoPath(name))
	s.tell()
}

func (s *source) Repositories(_ context.Context, each func(git.RepoPath) error) error {
	s.mu.Lock()
	paths, unlisted, away := slices.Collect(maps.Keys(s.repos)), s.unlisted, s.away
	s.mu.Unlock()
	if away != nil {
		return away
	}
	for _, p := range paths {
		if err := each(p); err != nil {
			return err
		}
	}
	return unlisted
}

func (s *source) Heads(_ context.Context, path git.RepoPath, branches []string) ([]search.Head, git.Version, error) {
	heads, version, err := s.heads(path, branches)
	s.mu.Lock()
	seen := s.seen
	s.seen = nil
	s.mu.Unlock()
	if seen != nil {
		seen()
	}
	return heads, version, err
}

func (s *source) heads(path git.RepoPath, branches []string) ([]search.Head, git.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.repos[path]
	if r == nil {
		return nil, git.Version{}, fault.New(fault.NotFound, "no such repository")
	}
	var heads []search.Head
	for _, b := range branches {
		h := search.Head{Name: b}
		if b == "HEAD" {
			h.Name = r.head
		}
		if h.Commit = r.heads[h.Name]; h.Commit.IsZero() {
			h.Err = fault.New(fault.NotFound, "no such branch")
		}
		heads = append(heads, h)
	}
	return heads, git.Version{Incarnation: r.incarnation, Generation: r.generation}, nil
}

func (s *source) Watch(ctx context.Context, paths []git.RepoPath,
	send func(git.RepoPath, git.Version, bool) error) error {
	s.mu.Lock()
	full := s.room > 0 && s.watched+len(paths) > s.room
	if !full {
		s.watched += len(paths)
	}
	s.mu.Unlock()
	if full {
		return fault.Retry(fault.Exhausted, 10*time.Millisecond, "no room for %d more", len(paths))
	}
	defer func() {
		s.mu.Lock()
		s.watched -= len(paths)
		s.mu.Unlock()
	}()
	told := map[git.RepoPath]git.Version{}
	for {
		s.mu.Lock()
		changed := s.changed
		now := map[git.RepoPath]git.Version{}
		for _, p := range paths {
			if r := s.repos[p]; r != nil {
				now[p] = git.Version{Incarnation: r.incarnation, Generation: r.generation}
			}
		}
		s.mu.Unlock()
		for _, p := range paths {
			v, there := now[p]
			if old, known := told[p]; known && old == v {
				continue
			}
			told[p] = v
			if err := send(p, v, !there); err != nil {
				return err
			}
			s.mu.Lock()
			s.told[p] = v.Generation
			s.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func blobID(content string) git.ObjectID {
	sum := sha1.Sum([]byte(content))
	return git.RawObjectID(sum[:])
}

func (s *source) Files(ctx context.Context, path git.RepoPath, commit, base git.ObjectID, limit int64,
	send func(search.File) error) error {
	s.mu.Lock()
	r, hold := s.repos[path], s.hold
	broken := s.broken
	var now, before files
	var ok bool
	if r != nil {
		now, ok = r.commits[commit]
		before = r.commits[base]
	}
	s.mu.Unlock()
	if broken != nil {
		return broken
	}
	if !ok {
		return fault.New(fault.NotFound, "no such commit")
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		content := now[name]
		if old, there := before[name]; there && old == content {
			continue
		}
		f := search.File{Path: []byte(name), Mode: 0o100644, ID: blobID(content), Size: int64(len(content))}
		if f.Size <= limit {
			f.Content = []byte(content)
		}
		if err := send(f); err != nil {
			return err
		}
		s.mu.Lock()
		s.given++
		s.mu.Unlock()
		if hold != nil {
			select {
			case <-hold:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, there := now[name]; !there {
			if err := send(search.File{Path: []byte(name), Gone: true}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *source) Behind(_ context.Context, path git.RepoPath, old, new git.ObjectID, limit int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.repos[path]
	if r == nil {
		return 0, errors.New("no such repository")
	}
	return min(limit, slices.Index(r.order, new)-slices.Index(r.order, old)), nil
}

func (s *source) Grep(_ context.Context, path git.RepoPath, commit git.ObjectID, g search.Grep,
	send func(search.Hit) error) error {
	s.mu.Lock()
	s.grepping++
	var f files
	if r := s.repos[path]; r != nil {
		f = r.commits[commit]
	}
	s.mu.Unlock()
	if f == nil {
		return fault.New(fault.NotFound, "no such repository")
	}
	n := 0
	for _, name := range slices.Sorted(maps.Keys(f)) {
		for i, line := range strings.Split(f[name], "\n") {
			if at := strings.Index(line, g.Pattern); at >= 0 && n < g.Limit {
				n++
				if err := send(search.Hit{Path: []byte(name), Line: i + 1, Column: at, Text: []byte(line)}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// testLog writes to a test's log, while it runs.
type testLog struct {
	t    testing.TB
	mu   sync.Mutex
	over bool
}

func (l *testLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.t.Log(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

// options are what tests begin with.
func options(t testing.TB, s search.Source) search.Options {
	log := &testLog{t: t}
	t.Cleanup(func() {
		log.mu.Lock()
		log.over = true
		log.mu.Unlock()
	})
	return search.Options{
		Dir: filepath.Join(t.TempDir(), "search"), Source: s, Program: os.Executable, Build: ipc.Build{Version: "test"},
		MaxFile: 1 << 20, ShardSize: 16 << 20, SearchMemory: 1 << 30, IndexMemory: 1 << 30, IndexNice: 1,
		Debounce: 10 * time.Millisecond, Scan: 50 * time.Millisecond, Deltas: 10, Results: 100_000, Timeout: time.Minute,
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

func start(t testing.TB, o search.Options) *search.Engine {
	t.Helper()
	e := search.New(o)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// found is what a search gave.
type found struct {
	search.Summary
	json []byte
}

func (f *found) Matches(b search.Batch) error {
	if len(f.json) > 0 {
		f.json = append(f.json, ',')
	}
	f.json = append(f.json, b.JSON...)
	return nil
}

func (f *found) Progress(search.Summary) error { return nil }

func ask(t testing.TB, e *search.Engine, text string, change ...func(*search.Request)) (*found, error) {
	t.Helper()
	q, err := query.Parse(text)
	if err != nil {
		return nil, err
	}
	r := search.Request{Query: q}
	for _, c := range change {
		c(&r)
	}
	f := &found{}
	f.Summary, err = e.Search(context.Background(), r, f)
	return f, err
}

// await searches until the results are as wanted.
func await(t testing.TB, e *search.Engine, text string, ok func(*found) bool, change ...func(*search.Request)) *found {
	t.Helper()
	end := time.Now().Add(patience)
	for {
		began := time.Now()
		f, err := ask(t, e, text, change...)
		if err != nil && !fault.Is(err, fault.Unavailable) {
			t.Fatalf("search for %q: %v", text, err)
		}
		if err == nil && ok(f) {
			return f
		}
		if time.Now().After(end) {
			t.Fatalf("search for %q: got %+v, %.2000s, %v until the timeout; want other results", text, f.Summary, f.json, err)
		}
		time.Sleep(max(10*time.Millisecond, time.Since(began))) // indexing has the lower priority
	}
}

// has wants so many results, all of a commit, and all from the index.
func has(n int, commit ...git.ObjectID) func(*found) bool {
	is := finds(n, commit...)
	return func(f *found) bool { return is(f) && len(f.Unindexed) == 0 }
}

// finds wants so many results, all of a commit.
func finds(n int, commit ...git.ObjectID) func(*found) bool {
	return func(f *found) bool {
		if f.Results != n {
			return false
		}
		for _, id := range commit {
			if bytes.Count(f.json, []byte(`"commit":"`+id.String()+`"`)) != n {
				return false
			}
		}
		return true
	}
}
