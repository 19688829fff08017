package search_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/search"
)

const main = "refs/heads/main"

func TestPushIsFound(t *testing.T) {
	t.Parallel()
	s := newSource()
	first := s.push("team/app.git", main, files{"main.go": "package main // needle\n", "other.go": "package main\n"})
	e := start(t, options(t, s))
	await(t, e, "needle", has(1, first))

	second := s.push("team/app.git", main, files{"main.go": "package main // nothing\n",
		"other.go": "package main // needle again\n", "new.go": "// needle\n"})
	// There may be no time but that of the process that searches, if taking what was found was interrupted meanwhile.
	f := await(t, e, "needle", func(f *found) bool { return has(2, second)(f) && f.Link > 0 })
	if fresh := f.Repositories; len(fresh) != 1 || fresh[0].Lag != 0 || fresh[0].Indexed != second.String() ||
		fresh[0].Repository != "team/app" || !bytes.Contains(f.json, []byte(`"repository":"team/app","path"`)) {
		t.Errorf("freshness is %+v", fresh)
	}
	await(t, e, "nothing", has(1, second))
	if f.Index <= 0 || f.Link <= 0 || f.Index+f.Link > f.Elapsed {
		t.Errorf("of %v the process that searches took %v, and the way there and back %v", f.Elapsed, f.Index, f.Link)
	}

	s.push("team/app.git", main, files{"main.go": "package main // nothing\n"})
	await(t, e, "needle", has(0))
	s.remove("team/app.git")
	await(t, e, "nothing", has(0))
	s.push("team/app.git", main, files{"main.go": "reborn"})
	await(t, e, "reborn", has(1))
	await(t, e, "nothing", has(0))
}

// TestProgramIsInstalledLater: the server begins before packhorse-search is there.
func TestProgramIsInstalledLater(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.push("app.git", main, files{"f": "needle"})
	o, program := options(t, s), filepath.Join(t.TempDir(), "program")
	o.Program = func() (string, error) { return exec.LookPath(program) }
	e := start(t, o)
	var err error
	if !gittest.Eventually(func() bool {
		_, err = ask(t, e, "needle")
		return err != nil && strings.Contains(err.Error(), "code search is not installed")
	}) {
		t.Fatalf("without the program a search ends with %v", err)
	}
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, program)
	}
	if err != nil {
		t.Fatal(err)
	}
	await(t, e, "needle", has(1))
}

// TestNeverCalledFresh: after the report of a change, no search reports the old state of the repository as current.
func TestNeverCalledFresh(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.push("app.git", main, files{"f": "needle"})
	e := start(t, options(t, s))
	await(t, e, "needle", has(1))
	for i := range 40 {
		id := s.push("app.git", main, files{"f": "needle", "g": strconv.Itoa(i)}).String()
		e.Touch(repoPath([]string{"app", "app.git"}[i%2]))
		for range 3 {
			f, err := ask(t, e, "needle")
			if err != nil || len(f.Repositories) != 1 {
				t.Fatalf("%+v, %v", f, err)
			}
			if r := f.Repositories[0]; r.Current != id || (r.Lag == 0) != (r.Indexed == id) {
				t.Fatalf("after push %d, %s, the index is said to be %+v", i, id, r)
			}
		}
	}
}

// TestNothingIsLostBetweenGitAndIndex: what was found without an index is found while its first index is made, loaded,
// and from then on.
func TestNothingIsLostBetweenGitAndIndex(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.push("first.git", main, files{"f": "begin"})
	e := start(t, options(t, s))
	await(t, e, "begin", has(1))
	for i := range 20 {
		word := "needle" + strconv.Itoa(i) + "x"
		s.push("app"+strconv.Itoa(i)+".git", main, files{"f": word})
		await(t, e, word, func(f *found) bool { return f.Results == 1 })
		for fresh := false; !fresh; {
			fresh = e.Status(nil).Waiting == 0
			if f, err := ask(t, e, word); err != nil || f.Results != 1 || fresh && len(f.Unindexed) > 0 {
				t.Fatalf("%q, which is in its index: %v, is found %d times, and without an index in %q: %v", word, fresh, f.Results,
					f.Unindexed, err)
			}
		}
	}
}

// TestPushDuringCheck pushes when a repository's branches have been read, and the engine has not taken that in.
func TestPushDuringCheck(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.push("app", main, files{"f": "one"})
	e := start(t, options(t, s))
	await(t, e, "one", has(1))
	var last git.ObjectID
	pushed, raced := make(chan struct{}), make(chan struct{})
	s.mu.Lock()
	s.seen = func() {
		defer close(raced)
		<-pushed
		last = s.push("app", main, files{"f": "three"})
		gittest.Eventually(func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.told[repoPath("app")] >= 3
		})
	}
	s.mu.Unlock()
	s.push("app", main, files{"f": "two"})
	close(pushed)
	<-raced
	await(t, e, "three", has(1, last))
}

// TestReturnDuringCheck creates a repository again after a check that did not find it, before the engine processes the
// check.
func TestReturnDuringCheck(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.push("app", main, files{"f": "one"})
	e := start(t, options(t, s))
	await(t, e, "one", has(1))
	var last git.ObjectID
	removed, raced := make(chan struct{}), make(chan struct{})
	s.mu.Lock()
	s.told[repoPath("app")] = 0
	s.seen = func() {
		defer close(raced)
		<-removed
		last = s.push("app", main, files{"f": "two"})
		gittest.Eventually(func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.told[repoPath("app")] == 1
		})
	}
	s.mu.Unlock()
	s.remove("app")
	close(removed)
	<-raced
	await(t, e, "two", has(1, last))
}

// TestNotAllListed has some repositories that cannot be listed: the others are indexed.
func TestNotAllListed(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.unlisted = fault.New(fault.Unavailable, "a node is away")
	id := s.push("a", main, files{"f": "needle"})
	e := start(t, options(t, s))
	await(t, e, "needle", has(1, id))
	eventually(t, "its index is loaded", func() bool { return e.Status(nil).Fresh == 1 })
	if status := e.Status(nil); status.Complete {
		t.Errorf("the status is %+v", status)
	}
	s.mu.Lock()
	s.unlisted = nil
	s.mu.Unlock()
	eventually(t, "the index is complete", func() bool { return e.Status(nil).Complete })
}

// TestBigOne has small repositories indexed while a big one is, and another one that is not small once that has ended.
func TestBigOne(t *testing.T) {
	t.Parallel()
	s := newSource()
	hold := make(chan struct{})
	s.hold = hold
	s.push("big", main, files{"f": "one", "g": "two"})
	e := start(t, options(t, s))
	eventually(t, "the big one is being indexed", func() bool {
		jobs := e.Status(nil).Jobs
		return len(jobs) == 1 && jobs[0].Files > 0
	})
	s.mu.Lock()
	s.hold = nil
	s.mu.Unlock()
	many := files{}
	for i := range 2001 {
		many[strconv.Itoa(i)] = "many"
	}
	s.push("medium", main, many)
	small := s.push("small", main, files{"f": "needle"})
	await(t, e, "needle repo:^small$", has(1, small))
	close(hold)
	await(t, e, "one repo:^big$", has(1))
	await(t, e, "many count:all", has(2001))
}

// TestCatalogueOnFullDisk starts an engine that cannot write. The existing catalogue is unchanged.
func TestCatalogueOnFullDisk(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full here")
	}
	s := newSource()
	s.push("a", main, files{"f": "needle"})
	o := options(t, s)
	e := search.New(o)
	await(t, e, "needle", has(1))
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	catalogue := filepath.Join(o.Dir, "catalogue")
	before, err := os.ReadFile(catalogue)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", catalogue+".new"); err != nil {
		t.Fatal(err)
	}
	e = start(t, o)
	eventually(t, "the status has an error", func() bool {
		return strings.Contains(e.Status(nil).Error, "cannot be opened")
	})
	if after, err := os.ReadFile(catalogue); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the catalogue is %q, %v; it was %q", after, err, before)
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	s := newSource()
	id := s.push("a", main, files{"f": "needle"})
	s.push("b", main, files{"f": "needle"})
	o := options(t, s)
	e := search.New(o)
	await(t, e, "needle", has(2))
	eventually(t, "the jobs are over", func() bool { return len(e.Status(nil).Jobs) == 0 && e.Status(nil).Fresh == 2 })
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	given := s.given
	s.mu.Unlock()
	s.remove("b")
	e = start(t, o)
	await(t, e, "needle", has(1, id))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given != given {
		t.Errorf("%d files were indexed again", s.given-given)
	}
}

// While the repositories are unknown, an empty result would be wrong.
func TestNothingIsKnownYet(t *testing.T) {
	t.Parallel()
	s := newSource()
	commit := s.push("app", main, files{"f": "needle"})
	s.away = fault.New(fault.Unavailable, "the node is away")
	e := start(t, options(t, s))
	for told := false; !told; time.Sleep(10 * time.Millisecond) { // before, the index may still be opened
		_, err := ask(t, e, "needle")
		if !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 {
			t.Fatalf("a search without a list of repositories: %v", err)
		}
		told = strings.Contains(err.Error(), "which repositories")
	}
	s.mu.Lock()
	s.away = nil
	s.mu.Unlock()
	await(t, e, "needle", has(1, commit))
}

func TestOnlyReadable(t *testing.T) {
	t.Parallel()
	s := newSource()
	open := s.push("open", main, files{"f": "needle"})
	s.push("secret", main, files{"f": "needle"})
	e := start(t, options(t, s))
	await(t, e, "needle", has(2))
	for query, want := range map[string]int{"repo:^open$ needle": 1, "-repo:open needle": 1, "repo:e needle": 2} {
		await(t, e, query, func(f *found) bool { return has(want)(f) && f.Searched == want })
	}
	f := await(t, e, "needle", has(1, open), func(r *search.Request) {
		r.May = search.Each(func(p git.RepoPath) bool { return p.String() == "open" })
	})
	none := await(t, e, "repo:secret needle", has(0), func(r *search.Request) {
		r.May = search.Each(func(p git.RepoPath) bool { return p.String() == "open" })
	})
	if f.Searched != 1 || none.Searched != 0 {
		t.Errorf("%d and %d repositories were searched, want 1 and 0", f.Searched, none.Searched)
	}
	await(t, e, "needle", has(0),
		func(r *search.Request) { r.May = search.Each(func(git.RepoPath) bool { return false }) })
	all, some := e.Status(nil), e.Status(search.Each(func(p git.RepoPath) bool { return p.String() == "open" }))
	if all.Repositories != 2 || some.Repositories != 1 || some.Fresh != 1 || some.Shards != 1 {
		t.Errorf("status: got %+v, want 2 repositories; for a reader of one: got %+v, want 1 fresh with 1 shard", all, some)
	}
}

// Access control may need slow requests to other processes. Other searches do not wait for them.
func TestNoWaitForPermissions(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.push("open", main, files{"f": "needle"})
	e := start(t, options(t, s))
	await(t, e, "needle", has(1))
	may := search.Each(func(git.RepoPath) bool {
		other := make(chan struct{})
		go func() {
			e.Status(nil)
			close(other)
		}()
		select {
		case <-other:
		case <-time.After(time.Minute):
			t.Error("others wait")
		}
		return true
	})
	await(t, e, "needle", has(1), func(r *search.Request) { r.May = may })
	if s := e.Status(may); s.Repositories != 1 {
		t.Errorf("the status is %+v", s)
	}
}

// TestQueryLimits sets the limits in the query, for callers that do not parse them.
func TestQueryLimits(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.push("a", main, files{"f": "needle", "g": "needle", "h": "needle"})
	e := start(t, options(t, s))
	await(t, e, "needle", has(3))
	for _, test := range []struct {
		text        string
		limit, want int
	}{{"needle", 2, 2}, {"needle count:1", 2, 1}, {"needle count:1", 0, 1}, {"needle count:all", 2, 3}, {"needle", 0, 3}} {
		f, err := ask(t, e, test.text, func(r *search.Request) { r.Limit = test.limit })
		if err != nil || f.Results != test.want || f.Limited != (test.want < 3) {
			t.Errorf("%s, limited to %d: %+v, %v", test.text, test.limit, f.Summary, err)
		}
	}
}

func TestUnindexed(t *testing.T) {
	t.Parallel()
	s := newSource()
	s.mu.Lock()
	s.broken = fault.Wrap(fault.Corrupt, "a tree is damaged", errors.New("/secret/place"))
	s.mu.Unlock()
	id := s.push("team/broken.git", main, files{"dir/f": "one\nthe needle é needle\n", "other": "needle"})
	s.push("empty", main, nil)
	e := start(t, options(t, s))
	f := await(t, e, "needle file:f repo:^team/broken$", finds(1, id))
	if !slices.Equal(f.Unindexed, []string{"team/broken"}) || f.Summary.Matches != 2 ||
		!bytes.Contains(f.json, []byte(`"unindexed":true`)) {
		t.Errorf("found %+v, %s", f.Summary, f.json)
	}
	if len(f.Repositories) != 1 || f.Repositories[0].Current != id.String() || f.Repositories[0].Indexed != "" {
		t.Errorf("freshness is %+v", f.Repositories)
	}
	f = await(t, e, "needle sym:x", has(0))
	if !slices.Equal(f.Missing, []string{"team/broken"}) {
		t.Errorf("missing is %q", f.Missing)
	}
	if f := await(t, e, "needle repo:other", has(0)); len(f.Missing)+len(f.Unindexed) > 0 {
		t.Errorf("repositories that were not asked for are missing: %+v", f.Summary)
	}
	var status search.Status
	eventually(t, "it is known what is wrong with one, and nothing is in the other", func() bool {
		status = e.Status(nil)
		return status.Failed == 1 && status.Empty == 1
	})
	if status.Complete || len(status.Failures) != 1 ||
		status.Failures[0].Error != "a tree is damaged" {
		t.Errorf("the status is %+v", status)
	}
	s.mu.Lock()
	s.broken = nil
	s.mu.Unlock()
	s.push("team/broken.git", main, files{"dir/f": "needle"})
	if f := await(t, e, "needle", has(1)); len(f.Unindexed) > 0 {
		await(t, e, "needle", func(f *found) bool { return len(f.Unindexed) == 0 && f.Results == 1 })
	}
}

// BenchmarkSearch measures searches of 10 results, one after the other, including the search worker.
func BenchmarkSearch(b *testing.B) {
	s := newSource()
	f := files{}
	for i := range 100 {
		f["file"+strconv.Itoa(i)+".go"] = strings.Repeat("return fmt.Errorf(\"needle: %w\", err) // and more\n", 3)
	}
	s.push("app", main, f)
	e := start(b, options(b, s))
	ten := func(r *search.Request) { r.Limit = 10 }
	await(b, e, "needle", has(10), ten)
	b.ReportAllocs()
	for b.Loop() {
		if f, err := ask(b, e, "needle", ten); err != nil || f.Results != 10 {
			b.Fatalf("got %+v, %v, want 10 results", f, err)
		}
	}
}
