package router_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
)

// storeNode is a node of an object store.
type storeNode struct {
	name   string
	store  atomic.Pointer[string] // nil: not known
	isDown atomic.Bool
	isOut  atomic.Bool // still usable

	mu    sync.Mutex
	hints []string
	hold  chan struct{} // a hint waits for it; nil: none does
}

func newStoreNode(name, store string) *storeNode {
	n := &storeNode{name: name}
	n.store.Store(&store)
	return n
}

func (n *storeNode) ready() error {
	if n.isDown.Load() || n.isOut.Load() {
		return fault.New(fault.Unavailable, "away")
	}
	return nil
}

func (n *storeNode) hint(_ context.Context, repo git.RepoPath, record uint64) (bool, error) {
	n.mu.Lock()
	n.hints = append(n.hints, fmt.Sprint(repo, " ", record))
	n.mu.Unlock()
	if n.hold != nil {
		<-n.hold
	}
	return true, nil
}

func (n *storeNode) hinted() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.hints)
}

// storeRouter makes a router with one route to the nodes.
func storeRouter(t *testing.T, nodes ...*storeNode) *router.Router {
	t.Helper()
	r := router.New(nil)
	setRoute(t, r, nodes...)
	return r
}

// setRoute gives a router one route to the nodes.
func setRoute(t *testing.T, r *router.Router, nodes ...*storeNode) {
	t.Helper()
	var replicas []*router.Replica
	for _, n := range nodes {
		replicas = append(replicas, &router.Replica{Name: n.name, Ready: n.ready, Usable: n.isOut.Load, Hint: n.hint,
			Revisions: newRevisions(n.name), Store: func() (string, bool) {
				id := n.store.Load()
				if id == nil {
					return "", false
				}
				return *id, true
			}})
	}
	if err := r.Set([]router.Route{{Replicas: replicas}}); err != nil {
		t.Fatal(err)
	}
}

type assignFunc func(repo git.RepoPath, tried []string) (*router.Assignment, error)

// assigned returns the nodes to which a request goes, one after the other.
func assigned(t *testing.T, assign assignFunc, repo string) (all []string) {
	t.Helper()
	for {
		a, err := assign(path(t, repo), all)
		if err != nil {
			return all
		}
		all = append(all, a.Name)
		a.Done(router.Blame{})
	}
}

func first(t *testing.T, assign assignFunc, repo string) string {
	t.Helper()
	all := assigned(t, assign, repo)
	if len(all) == 0 {
		t.Fatalf("no node is assigned to %s", repo)
	}
	return all[0]
}

// Each repository has an order of the nodes that depends on their names and weights only.
func TestOrder(t *testing.T) {
	t.Parallel()
	a, b, c := newStoreNode("a", "s"), newStoreNode("b", "s"), newStoreNode("c", "s")
	one, other := storeRouter(t, a, b, c), storeRouter(t, c, a, b)
	two := storeRouter(t, a, c)
	counts := map[string]int{}
	for i := range 300 {
		repo := fmt.Sprint("team/", i)
		order := assigned(t, one.AssignPush, repo)
		counts[order[0]]++
		if len(order) != 3 {
			t.Fatalf("order of %s = %v, want three nodes", repo, order)
		}
		if got := assigned(t, other.AssignPush, repo+".git"); !slices.Equal(got, order) {
			t.Errorf("order of %s.git at another gateway = %v, want %v", repo, got, order)
		}
		if got := assigned(t, one.Assign, repo); !slices.Equal(got, order) {
			t.Errorf("order of %s for a cold fetch = %v, want %v", repo, got, order)
		}
		without := slices.DeleteFunc(slices.Clone(order), func(name string) bool { return name == "b" })
		if got := assigned(t, two.AssignPush, repo); !slices.Equal(got, without) {
			t.Errorf("order of %s without b = %v, want %v", repo, got, without)
		}
		if got := one.Home(path(t, repo)); got != order[0] {
			t.Errorf("home of %s = %s, want %s", repo, got, order[0])
		}
	}
	for name, n := range counts {
		if n < 60 || n > 140 {
			t.Errorf("%s is the first node of %d repositories, want about 100", name, n)
		}
	}
}

func TestPushesOfAStore(t *testing.T) {
	t.Parallel()
	nodes := map[string]*storeNode{"a": newStoreNode("a", "s"), "b": newStoreNode("b", "s"), "c": newStoreNode("c", "s")}
	r := storeRouter(t, nodes["a"], nodes["b"], nodes["c"])
	const repo = "team/app"
	order := assigned(t, r.AssignPush, repo)
	want := func(why, name string) {
		t.Helper()
		if got := first(t, r.AssignPush, repo); got != name {
			t.Errorf("%s: a push goes to %s, want %s", why, got, name)
		}
	}
	nodes[order[0]].isDown.Store(true)
	want("the first node is down", order[1])
	if err := r.Drain(order[1]); err != nil {
		t.Fatal(err)
	}
	want("the second node is drained", order[2])
	nodes[order[2]].isOut.Store(true)
	want("the third node is not ready", order[2])
	nodes[order[0]].isDown.Store(false)
	want("the first node is back", order[0])
	a, err := r.AssignPush(path(t, repo), nil)
	if err != nil {
		t.Fatal(err)
	}
	a.Done(router.BlameFor(fault.New(fault.Unavailable, "the store is away")))
	if err := r.Undrain(order[1]); err != nil {
		t.Fatal(err)
	}
	want("the first node failed a moment ago", order[1])
}

// Pushes are refused unless the nodes of a route share an object store.
func TestRefusedPushes(t *testing.T) {
	t.Parallel()
	store := func(id string) *string { return &id }
	for _, test := range []struct {
		a, b    *string
		kind    fault.Kind // Internal: the push is accepted
		message string
	}{
		{store("s"), store("s"), fault.Internal, ""},
		{store(""), store(""), fault.Denied, "have no common object store"},
		{store("s"), store("other"), fault.Denied, "have different object stores (a: s, b: other)"},
		{store("s"), store(""), fault.Denied, "have different object stores (a: s, b: none)"},
		{store("s"), nil, fault.Internal, ""}, // b is skipped until it is known
		{nil, nil, fault.Unavailable, "try again"},
	} {
		a, b := newStoreNode("a", ""), newStoreNode("b", "")
		a.store.Store(test.a)
		b.store.Store(test.b)
		r := storeRouter(t, a, b)
		got, err := r.AssignPush(path(t, "x"), nil)
		if err == nil {
			got.Done(router.Blame{})
		}
		if test.kind == fault.Denied && strings.Contains(fault.Message(err), ": s") {
			t.Errorf("the client got %q, want nothing about nodes and stores", fault.Message(err))
		}
		if (err == nil) != (test.kind == fault.Internal) || err != nil && (!fault.Is(err, test.kind) ||
			!strings.Contains(err.Error(), test.message)) {
			t.Errorf("push to %v and %v: error %v, want kind %v with %q", test.a, test.b, err, test.kind, test.message)
		}
		if refused := r.Status()[0].Refused; (refused != "") != (test.kind == fault.Denied) {
			t.Errorf("status of %v and %v: refused %q, want kind %v", test.a, test.b, refused, test.kind)
		}
		if _, err := r.Assign(path(t, "x"), nil); (err == nil) != (test.a != nil) {
			t.Errorf("fetch from %v and %v: %v, want a node unless no store is known", test.a, test.b, err)
		}
		if test.kind == fault.Denied { // a node that is down does not matter
			b.isDown.Store(true)
			_, err := r.AssignPush(path(t, "x"), nil)
			if isOne := test.a != nil && *test.a == "s"; isOne != (err == nil) {
				t.Errorf("push to %v while b is down: error %v", *test.a, err)
			}
		}
	}
}

// A node takes no request of a route with an object store unless it is known to be in that store, also if no other node
// is left.
func TestNodesOutsideTheStore(t *testing.T) {
	t.Parallel()
	store := func(id string) *string { return &id }
	for name, outside := range map[string]*string{"not known": nil, "other store": store("other"), "no store": store("")} {
		a, b, c := newStoreNode("a", "s"), newStoreNode("b", "s"), newStoreNode("c", "s")
		c.store.Store(outside)
		c.isOut.Store(true) // a last resort
		r := storeRouter(t, a, b, c)
		for i := range 20 { // some would go to c first
			repo := fmt.Sprint("team/", i)
			for what, assign := range map[string]assignFunc{"push": r.AssignPush, "fetch": r.Assign} {
				if got := assigned(t, assign, repo); len(got) != 2 || slices.Contains(got, "c") {
					t.Errorf("%s: a %s of %s goes to %v, want a and b", name, what, repo, got)
				}
			}
			if got := r.Home(path(t, repo)); got == "c" {
				t.Errorf("%s: the home of %s = c, want a or b", name, repo)
			}
		}
		c.isOut.Store(false) // it is ready, and alone
		a.isDown.Store(true)
		b.isDown.Store(true)
		a.store.Store(nil)
		b.store.Store(nil)
		for what, assign := range map[string]assignFunc{"push": r.AssignPush, "fetch": r.Assign} {
			if got := assigned(t, assign, "x"); len(got) > 0 {
				t.Errorf("%s: a %s goes to %v although a and b are away, want none", name, what, got)
			}
		}
	}
}

// A route gets another object store when all its nodes report it, as after a recovery from a copy of the bucket.
func TestAnotherStore(t *testing.T) {
	t.Parallel()
	a, b := newStoreNode("a", "s"), newStoreNode("b", "s")
	r := storeRouter(t, a, b)
	push := func() (string, error) {
		got, err := r.AssignPush(path(t, "x"), nil)
		if err != nil {
			return "", err
		}
		defer got.Done(router.Blame{})
		return got.StoreID, nil
	}
	if got, err := push(); got != "s" || err != nil {
		t.Fatalf("store of a push = %q, %v, want s", got, err)
	}
	copied := "copy"
	b.store.Store(&copied)
	if _, err := push(); !fault.Is(err, fault.Denied) ||
		!strings.Contains(err.Error(), "(a: s, b: copy, the route until now: s)") {
		t.Errorf("push while b is in another store: %v, want denied with both stores", err)
	}
	a.store.Store(nil)
	a.isDown.Store(true)
	if _, err := push(); !fault.Is(err, fault.Denied) {
		t.Errorf("push while a is away: %v, want denied", err)
	}
	a.store.Store(&copied)
	a.isDown.Store(false)
	if got, err := push(); got != copied || err != nil {
		t.Errorf("store of a push = %q, %v, want %s", got, err, copied)
	}
	none := ""
	a.store.Store(&none)
	b.store.Store(&none)
	if got := assigned(t, r.Assign, "x"); len(got) != 2 {
		t.Errorf("nodes of a fetch without any store = %v, want both", got)
	}
}

// A route keeps its store when routes are replaced. When a node is taken out, the others may have another one.
func TestStoreAfterReload(t *testing.T) {
	t.Parallel()
	a, b, c := newStoreNode("a", "s"), newStoreNode("b", "s"), newStoreNode("c", "other")
	c.isDown.Store(true)
	r := storeRouter(t, a, b, c)
	if got := assigned(t, r.AssignPush, "x"); len(got) != 2 {
		t.Fatalf("nodes of a push = %v, want a and b", got)
	}
	a.isDown.Store(true)
	b.isDown.Store(true)
	c.isDown.Store(false)
	a.store.Store(nil)
	b.store.Store(nil)
	for _, nodes := range [][]*storeNode{{c, b, a}, {a, b, c, newStoreNode("d", "other")}} {
		setRoute(t, r, nodes...)
		for what, assign := range map[string]assignFunc{"push": r.AssignPush, "fetch": r.Assign} {
			if got := assigned(t, assign, "x"); len(got) > 0 {
				t.Errorf("after a reload with %d nodes, a %s goes to %v while a and b are away, want none", len(nodes), what,
					got)
			}
		}
	}
	b.store.Store(c.store.Load())
	b.isDown.Store(false)
	setRoute(t, r, b, c)
	if got := assigned(t, r.AssignPush, "x"); len(got) != 2 {
		t.Errorf("after a was taken out, nodes of a push = %v, want b and c", got)
	}
}

// If no node of the store is ready, the home is one of them nevertheless.
func TestHomeWithoutReadyNode(t *testing.T) {
	t.Parallel()
	a, b, c := newStoreNode("a", "other"), newStoreNode("b", "s"), newStoreNode("c", "s")
	a.isDown.Store(true)
	r := storeRouter(t, a, b, c)
	if got := r.Home(path(t, "x")); got == "a" {
		t.Errorf("home = %s, which is not in the store, want b or c", got)
	}
	b.isDown.Store(true)
	c.isDown.Store(true)
	if got := r.Home(path(t, "x")); got != "b" {
		t.Errorf("home while no node is ready = %s, want b", got)
	}
}

// Fetches go to the nodes that have the repository on their disks.
func TestHolders(t *testing.T) {
	t.Parallel()
	nodes := map[string]*storeNode{"a": newStoreNode("a", "s"), "b": newStoreNode("b", "s"), "c": newStoreNode("c", "s")}
	r := storeRouter(t, nodes["a"], nodes["b"], nodes["c"])
	const repo = "team/app"
	order := assigned(t, r.Assign, repo)
	holding := func(name string, isHeld bool) {
		t.Helper()
		tried := slices.DeleteFunc(slices.Clone(order), func(other string) bool { return other == name })
		a, err := r.Assign(path(t, repo), tried)
		if err != nil {
			t.Fatal(err)
		}
		r.NoteHolding(a, path(t, repo), isHeld)
		a.Done(router.Blame{})
	}
	holding(order[2], true)
	if got, want := assigned(t, r.Assign, repo+".git"), []string{order[2], order[0], order[1]}; !slices.Equal(got, want) {
		t.Errorf("fetches go to %v, want %v", got, want)
	}
	if got := first(t, r.AssignPush, repo); got != order[0] {
		t.Errorf("a push goes to %s, want %s", got, order[0])
	}
	holding(order[1], true)
	one, err := r.Assign(path(t, repo), nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := r.Assign(path(t, repo), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := []string{one.Name, other.Name}; slices.Contains(got, order[0]) || got[0] == got[1] {
		t.Errorf("two fetches go to %v, want the two holders", got)
	}
	one.Done(router.Blame{})
	other.Done(router.Blame{})
	nodes[order[1]].isDown.Store(true)
	nodes[order[2]].isDown.Store(true)
	if got := first(t, r.Assign, repo); got != order[0] {
		t.Errorf("without the holders a fetch goes to %s, want %s", got, order[0])
	}
	nodes[order[2]].isDown.Store(false)
	for _, s := range r.Status() {
		if want := min(1, slices.Index(order, s.Name)); s.Held != want {
			t.Errorf("held repositories of %s = %d, want %d", s.Name, s.Held, want)
		}
	}
	holding(order[2], false)
	if got := first(t, r.Assign, repo); got != order[0] {
		t.Errorf("after an eviction a fetch goes to %s, want %s", got, order[0])
	}
}

// After a push, the first two nodes of the order hear of it. Hints for one repository are combined.
func TestHints(t *testing.T) {
	t.Parallel()
	nodes := map[string]*storeNode{"a": newStoreNode("a", "s"), "b": newStoreNode("b", "s"), "c": newStoreNode("c", "s")}
	for _, n := range nodes {
		n.hold = make(chan struct{})
	}
	r := storeRouter(t, nodes["a"], nodes["b"], nodes["c"])
	repo := path(t, "team/app")
	order := assigned(t, r.AssignPush, "team/app")
	second := nodes[order[1]]
	push := func(record uint64) {
		t.Helper()
		a, err := r.AssignPush(repo, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Hint(a, repo, record)
		a.Done(router.Blame{})
	}
	push(1)
	gittest.WaitFor(t, "the first hint", func() bool { return len(second.hinted()) == 1 })
	for record := range uint64(50) {
		push(record + 2)
	}
	close(second.hold)
	gittest.WaitFor(t, "the last hint", func() bool { return len(second.hinted()) > 1 })
	if got, want := second.hinted(), []string{"team/app 1", "team/app 51"}; !slices.Equal(got, want) {
		t.Errorf("hints to the second node = %v, want %v", got, want)
	}
	for _, name := range []string{order[0], order[2]} {
		if got := nodes[name].hinted(); len(got) > 0 {
			t.Errorf("hints to %s = %v, want none", name, got)
		}
	}
	nodes[order[0]].isDown.Store(true) // the second one takes the push, and the first one hears nothing
	push(60)
	nodes[order[0]].isDown.Store(false)
	close(nodes[order[0]].hold)
	a, err := r.AssignPush(repo, order[:1])
	if err != nil {
		t.Fatal(err)
	}
	r.Hint(a, repo, 61)
	a.Done(router.Blame{})
	gittest.WaitFor(t, "a hint to the first node", func() bool { return len(nodes[order[0]].hinted()) == 1 })
	gittest.WaitFor(t, "it has the repository", func() bool { return first(t, r.Assign, "team/app") == order[0] })
}

// Revisions are resolved by the first ready node in the order of each repository.
func TestHomesOfAStore(t *testing.T) {
	t.Parallel()
	a, b := newStoreNode("a", "s"), newStoreNode("b", "s")
	r := storeRouter(t, a, b)
	var questions []node.Question
	for i := range 20 {
		questions = append(questions, node.Question{Repository: path(t, fmt.Sprint("x/", i)), Revision: "main"})
	}
	homes := func() map[string]int {
		t.Helper()
		results, err := r.Resolve(t.Context(), questions)
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]int{}
		for i, result := range results {
			name := result.Version.Incarnation
			counts[name]++
			if home := r.Home(questions[i].Repository); name != home {
				t.Errorf("%v is answered by %q (%v), want %s", questions[i], name, result.Err, home)
			}
		}
		return counts
	}
	if got := homes(); got["a"] == 0 || got["b"] == 0 {
		t.Errorf("answers by node = %v, want some of each", got)
	}
	a.isDown.Store(true)
	if got := homes(); got["b"] != len(questions) {
		t.Errorf("answers while a is down = %v, want all of b", got)
	}
}
