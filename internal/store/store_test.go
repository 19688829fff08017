package store

import (
	"errors"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// testStore returns an initialized bucket.
func newBucket(t *testing.T) *buckettest.Memory {
	t.Helper()
	b := buckettest.NewMemory(1)
	if _, err := Init(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return b
}

// newNode returns the Store of one more node on a bucket.
func newNode(t testing.TB, b bucket.Bucket, change ...func(*Options)) *Store {
	t.Helper()
	id, err := ReadIdentity(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Bucket: b, URL: "s3://test/store", Node: "n", Cache: hydrate.Options{Root: t.TempDir()}}
	for _, f := range change {
		f(&o)
	}
	s, err := open(o, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.ctx.Err() != nil { // the test has closed it
			return
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func repoPath(s string) git.RepoPath {
	p, err := git.ParseRepoPath(s)
	if err != nil {
		panic(err)
	}
	return p
}

// create creates a repository, and returns its ID.
func create(t *testing.T, s *Store, path string) string {
	t.Helper()
	if err := s.Create(t.Context(), repoPath(path), git.SHA1, "refs/heads/main", "", nil); err != nil {
		t.Fatalf("Create(%s): %v", path, err)
	}
	return idOf(t, s, path)
}

// idOf returns the ID of the repository that has a path after a freshness check; "" if there is none.
func idOf(t *testing.T, s *Store, path string) string {
	t.Helper()
	for range 2 {
		p, err := s.Acquire(t.Context(), repoPath(path))
		if fault.Is(err, fault.NotFound) {
			return ""
		}
		if err != nil {
			t.Fatalf("Acquire(%s): %v", path, err)
		}
		defer p.Release()
		_, err = p.(*place).Layers(t.Context())
		if err == nil {
			return p.(*place).ID()
		}
		if !fault.Is(err, fault.NotFound) {
			t.Fatalf("Layers of %s: %v", path, err)
		}
	}
	t.Fatalf("%s was not found twice by a known path", path)
	return ""
}

// setRef appends a record that changes one ref, as a push does.
func setRef(t *testing.T, s *Store, path string, name git.RefName, id git.ObjectID) uint64 {
	t.Helper()
	r, err := s.find(t.Context(), repoPath(path))
	if err != nil {
		t.Fatal(err)
	}
	defer s.release(r)
	done, err := r.change(t.Context(), func(head *state) (*replog.Record, error) {
		next := head.record.Next(replog.KindPush, s.options.Node, head.record.At)
		next.Refs.Tail = append(next.Refs.Tail, replog.TailEntry{Number: next.Number,
			Changes: []replog.RefChange{{Name: name, New: id}}})
		return next, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return done.record.Number
}

// refOf returns a ref as a request on this node sees it.
func refOf(t *testing.T, s *Store, path string, name git.RefName) git.ObjectID {
	t.Helper()
	p, err := s.Acquire(t.Context(), repoPath(path))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	layers, err := p.(*place).Layers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range layers.Changes {
		if c.Name == name {
			return c.ID
		}
	}
	return git.ObjectID{}
}

var (
	id1 = git.MustParseObjectID("1111111111111111111111111111111111111111")
	id2 = git.MustParseObjectID("2222222222222222222222222222222222222222")
)

func TestLifeOfARepository(t *testing.T) {
	b := newBucket(t)
	a, c := newNode(t, b), newNode(t, b)
	first := create(t, a, "team/app")
	if err := c.Create(t.Context(), repoPath("team/app.git"), git.SHA1, "refs/heads/main", "", nil); !fault.Is(err,
		fault.Exists) {
		t.Errorf("second Create = %v, want exists", err)
	}
	if got := idOf(t, c, "team/app.git"); got != first {
		t.Errorf("ID on another node = %q, want %q", got, first)
	}
	if got := idOf(t, c, "team"); got != "" {
		t.Errorf("ID of the path above = %q, want none", got)
	}
	setRef(t, a, "team/app", "refs/heads/main", id1)
	if got := refOf(t, c, "team/app", "refs/heads/main"); got != id1 {
		t.Errorf("ref on another node = %v, want %v", got, id1)
	}
	setRef(t, c, "team/app", "refs/heads/main", id2)
	if got := refOf(t, a, "team/app", "refs/heads/main"); got != id2 {
		t.Errorf("ref on the first node = %v, want %v", got, id2)
	}
	if err := c.Rename(t.Context(), repoPath("team/app"), repoPath("team/other")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"team/app": "", "team/other": first} {
		if got := idOf(t, a, path); got != want {
			t.Errorf("after Rename, ID of %s = %q, want %q", path, got, want)
		}
	}
	second := create(t, a, "team/app")
	err := a.Delete(t.Context(), repoPath("team/other"), places.DeleteOptions{Incarnation: second})
	if !fault.Is(err, fault.NotFound) {
		t.Errorf("Delete of another incarnation = %v, want not found", err)
	}
	if err := a.Delete(t.Context(), repoPath("team/other"), places.DeleteOptions{Incarnation: first}); err != nil {
		t.Fatal(err)
	}
	if got := idOf(t, c, "team/other"); got != "" {
		t.Errorf("after Delete, ID = %q, want none", got)
	}
	third := create(t, c, "team/other")
	if got := idOf(t, a, "team/other"); got != third || third == first {
		t.Errorf("after another Create, ID = %q, want %q and not %q", got, third, first)
	}
	if got := idOf(t, a, "team/app"); got != second {
		t.Errorf("ID of team/app = %q, want %q", got, second)
	}
}

var errCrash = errors.New("crash")
