package router_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// revisions is a node.Resolver whose name is the version of its answers.
type revisions struct {
	name string

	mu      sync.Mutex
	err     error
	asked   []node.Question
	watched chan []node.Known // each watch
	events  chan node.Event
}

func newRevisions(name string) *revisions {
	return &revisions{name: name, watched: make(chan []node.Known, 100), events: make(chan node.Event)}
}

func (r *revisions) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *revisions) down() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *revisions) Resolve(_ context.Context, questions []node.Question) ([]node.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, questions...)
	if r.err != nil {
		return nil, r.err
	}
	results := make([]node.Result, len(questions))
	for i, q := range questions {
		if q.Revision == "none" {
			results[i].Err = fault.New(fault.NotFound, "no revision none")
			continue
		}
		id := git.MustParseObjectID("0123456789012345678901234567890123456789")
		results[i].Answer = node.Answer{ID: id, Type: git.Commit, Ref: "refs/heads/main",
			Version: git.Version{Incarnation: r.name, Epoch: 1, Generation: 1 << 60}}
		if q.Revision == "twice" {
			results[i] = node.Result{Err: fault.New(fault.Exists, "the object ID is ambiguous")}
		}
	}
	return results, nil
}

func (r *revisions) Watch(ctx context.Context, from []node.Known, send func(node.Event) error) error {
	r.watched <- from
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-r.events:
			if err := send(e); err != nil {
				return err
			}
		}
	}
}

func path(t *testing.T, s string) git.RepoPath {
	t.Helper()
	p, err := git.ParseRepoPath(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// router has a node for team/, and two for the rest.
func revisionsRouter(t *testing.T) (r *router.Router, team, first, second *revisions) {
	t.Helper()
	team, first, second = newRevisions("team"), newRevisions("first"), newRevisions("second")
	replica := func(r *revisions) *router.Replica {
		return &router.Replica{Name: r.name, Revisions: r, Ready: r.down}
	}
	r = router.New(nil)
	err := r.Set([]router.Route{
		{Prefix: "team", Replicas: []*router.Replica{replica(team)}},
		{Prefix: "x", Replicas: []*router.Replica{replica(first), replica(second)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, team, first, second
}

func TestRouterResolves(t *testing.T) {
	t.Parallel()
	r, _, first, second := revisionsRouter(t)
	questions := []node.Question{{Repository: path(t, "x/a"), Revision: "main"},
		{Repository: path(t, "team/b"), Revision: "main"}, {Repository: path(t, "nowhere"), Revision: "main"},
		{Repository: path(t, "x/c"), Revision: "none"}}
	ask := func(from string, kinds ...fault.Kind) {
		t.Helper()
		results, err := r.Resolve(t.Context(), questions)
		if err != nil {
			t.Fatal(err)
		}
		for i, result := range results {
			if kinds[i] == 0 {
				if want := []string{from, "team"}[i]; result.Err != nil || result.Version.Incarnation != want {
					t.Errorf("%v: %+v, want an answer of %s", questions[i], result, want)
				}
			} else if !fault.Is(result.Err, kinds[i]) {
				t.Errorf("%v: %v, want an error of kind %v", questions[i], result.Err, kinds[i])
			}
		}
	}
	for range 5 {
		ask("first", 0, 0, fault.NotFound, fault.NotFound)
	}
	if len(second.asked) > 0 {
		t.Errorf("the second node was asked %v", second.asked)
	}
	if home := r.Home(path(t, "x/a")); home != "first" {
		t.Errorf("home is %q", home)
	}
	first.fail(fault.New(fault.Unavailable, "away"))
	ask("second", 0, 0, fault.NotFound, fault.NotFound)
	if home := r.Home(path(t, "x/a")); home != "second" {
		t.Errorf("home is %q", home)
	}
	second.fail(fault.New(fault.Unavailable, "away"))
	ask("", fault.Unavailable, 0, fault.NotFound, fault.Unavailable)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Resolve(ctx, questions); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody waits: %v", err)
	}
}

func TestRouterWatches(t *testing.T) {
	t.Parallel()
	r, team, first, second := revisionsRouter(t)
	known := []node.Known{{Repository: path(t, "x/a")}, {Repository: path(t, "team/b")},
		{Repository: path(t, "nowhere")}}
	events := make(chan node.Event, 10)
	watch := func(ctx context.Context) chan error {
		ended := make(chan error, 1)
		go func() {
			ended <- r.Watch(ctx, known, func(e node.Event) error { events <- e; return nil })
		}()
		return ended
	}
	ended := watch(t.Context())
	if e := <-events; !e.Gone || e.Repository != path(t, "nowhere") {
		t.Errorf("first %+v", e)
	}
	if from := <-first.watched; len(from) != 1 || from[0].Repository != path(t, "x/a") {
		t.Errorf("the first node watches %v", from)
	}
	<-team.watched
	team.events <- node.Event{Repository: path(t, "team/b")}
	if e := <-events; e.Repository != path(t, "team/b") {
		t.Errorf("%+v", e)
	}
	first.fail(fault.New(fault.Unavailable, "away"))
	if err := <-ended; !fault.Is(err, fault.Unavailable) {
		t.Errorf("a node is away: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended = watch(ctx)
	<-second.watched
	first.fail(nil) // the first one is home again
	if err := <-ended; !fault.Is(err, fault.Unavailable) {
		t.Errorf("a node is back: %v", err)
	}
	ended = watch(ctx)
	<-first.watched
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ended = watch(t.Context())
	<-first.watched
	if err := r.Set(nil); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("other routes: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the watch goes on after its routes are gone")
	}
}
