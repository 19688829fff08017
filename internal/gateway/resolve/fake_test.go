package resolve

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// fakeNode owns repositories in which each ref names an object that contains the serial of its change.
type fakeNode struct {
	mu       sync.Mutex
	epoch    uint64
	serial   uint64 // of states, over all repositories
	made     int    // incarnations
	repos    map[git.RepoPath]*fakeRepo
	watchers map[*fakeWatch]bool
	queued   bool // events wait in their watch until they are let go
	calls    int
	asked    int

	computed func([]node.Question)    // called between the answer's making and its giving; nil: nothing
	failing  error                    // of Resolve
	mute     error                    // of Watch
	told     func(node.Event, uint64) // called after each event; nil: nothing
}

type fakeRepo struct {
	version git.Version
	serial  uint64 // of its state
	refs    map[string]uint64
}

type fakeWatch struct {
	names  map[git.RepoPath]bool
	events chan toldEvent
	queue  []toldEvent
	broken chan struct{}
}

// toldEvent is an event with the serial of its state.
type toldEvent struct {
	node.Event
	serial uint64
}

func newFakeNode(paths ...string) *fakeNode {
	n := &fakeNode{epoch: 1, repos: map[git.RepoPath]*fakeRepo{}, watchers: map[*fakeWatch]bool{}}
	for _, p := range paths {
		n.create(path(p))
	}
	return n
}

func path(s string) git.RepoPath {
	p, err := git.ParseRepoPath(s)
	if err != nil {
		panic(err)
	}
	return p
}

// oid returns an object ID that contains a serial.
func oid(serial uint64) git.ObjectID {
	var raw [20]byte
	raw[0] = 1
	binary.BigEndian.PutUint64(raw[12:], serial)
	return git.RawObjectID(raw[:])
}

func serialOf(id git.ObjectID) uint64 { return binary.BigEndian.Uint64(id.Raw()[12:]) }

func (n *fakeNode) create(p git.RepoPath) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made++
	n.serial++
	n.repos[p] = &fakeRepo{
		version: git.Version{Incarnation: fmt.Sprint("i", n.made), Epoch: n.epoch, Generation: n.serial}, serial: n.serial,
		refs: map[string]uint64{"HEAD": n.serial, "main": n.serial},
	}
	n.tell(p)
}

func (n *fakeNode) move(p git.RepoPath) (serial uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.serial++
	if r := n.repos[p]; r != nil {
		r.version.Generation, r.serial = n.serial, n.serial
		for name := range r.refs {
			r.refs[name] = n.serial
		}
		n.tell(p)
	}
	return n.serial
}

func (n *fakeNode) remove(p git.RepoPath) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.repos, p)
	n.serial++
	n.tell(p)
}

// restart ends all watches and begins a new epoch.
func (n *fakeNode) restart() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.epoch++
	for _, r := range n.repos {
		r.version.Epoch = n.epoch
		r.version.Generation = 1
	}
	n.cut()
}

func (n *fakeNode) breakWatches() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut()
}

func (n *fakeNode) cut() {
	for w := range n.watchers {
		close(w.broken)
	}
	clear(n.watchers)
}

// event is the state of a repository. n.mu is held.
func (n *fakeNode) event(p git.RepoPath) toldEvent {
	if r := n.repos[p]; r != nil {
		return toldEvent{node.Event{Repository: p, Version: r.version}, r.serial}
	}
	return toldEvent{node.Event{Repository: p, Gone: true}, n.serial}
}

func (n *fakeNode) tell(p git.RepoPath) {
	for w := range n.watchers {
		if w.names[p] {
			n.give(w, n.event(p))
		}
	}
}

func (n *fakeNode) give(w *fakeWatch, e toldEvent) {
	if n.queued {
		w.queue = append(w.queue, e)
	} else {
		w.events <- e
	}
}

// letGo gives the next event of each watch that has one.
func (n *fakeNode) letGo() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.watchers {
		if len(w.queue) > 0 {
			w.events <- w.queue[0]
			w.queue = w.queue[1:]
		}
	}
}

func (n *fakeNode) Resolve(ctx context.Context, questions []node.Question) ([]node.Result, error) {
	n.mu.Lock()
	n.calls++
	n.asked += len(questions)
	computed, failing := n.computed, n.failing
	results := make([]node.Result, len(questions))
	for i, q := range questions {
		results[i] = n.answer(q)
	}
	n.mu.Unlock()
	if computed != nil {
		computed(questions)
	}
	return results, failing
}

func (n *fakeNode) answer(q node.Question) node.Result {
	r := n.repos[q.Repository]
	if r == nil {
		return node.Result{Err: fault.New(fault.NotFound, "no repository")}
	}
	serial, ok := r.refs[q.Revision]
	if !ok {
		return node.Result{Answer: node.Answer{Version: r.version}, Err: fault.New(fault.NotFound, "no revision")}
	}
	ref := "refs/heads/" + q.Revision
	if q.Revision == "HEAD" {
		ref = "HEAD"
	}
	return node.Result{Answer: node.Answer{ID: oid(serial), Type: git.Commit, Ref: ref, Version: r.version}}
}

func (n *fakeNode) Watch(ctx context.Context, from []node.Known, send func(node.Event) error) error {
	w := &fakeWatch{names: map[git.RepoPath]bool{}, events: make(chan toldEvent, 10_000), broken: make(chan struct{})}
	n.mu.Lock()
	if n.mute != nil {
		defer n.mu.Unlock()
		return n.mute
	}
	n.watchers[w] = true
	for _, k := range from {
		w.names[k.Repository] = true
		n.give(w, n.event(k.Repository))
	}
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.watchers, w)
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.broken:
			return fault.New(fault.Unavailable, "the watch broke")
		case e := <-w.events:
			if err := send(e.Event); err != nil {
				return err
			}
			if n.told != nil {
				n.told(e.Event, e.serial)
			}
		}
	}
}

func (n *fakeNode) counts() (calls, asked int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls, n.asked
}

// hold has computed called with each answer before it is given.
func (n *fakeNode) hold(computed func([]node.Question)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.computed = computed
}

func newTiers(t testing.TB, fake node.Resolver, change ...func(*Options)) *Tiers {
	t.Helper()
	o := Options{Node: fake, Entries: 1000, Metrics: NewMetrics(nil), Log: discard}
	for _, c := range change {
		c(&o)
	}
	tiers := New(o)
	t.Cleanup(func() {
		if err := tiers.Close(); err != nil {
			t.Error(err)
		}
	})
	return tiers
}

func ask(t testing.TB, r Resolver, repo, revision string) node.Result {
	t.Helper()
	results, err := r.Resolve(t.Context(), []node.Question{question(repo, revision)})
	if err != nil {
		t.Fatal(err)
	}
	return results[0]
}

// wantSerial holds an answer to the state that it has to be of.
func wantSerial(t testing.TB, r Resolver, repo string, want uint64) {
	t.Helper()
	if got := ask(t, r, repo, "main"); got.Err != nil || serialOf(got.ID) != want {
		t.Fatalf("%s: got state %d (%v); want %d", repo, serialOf(got.ID), got.Err, want)
	}
}

var discard = slog.New(slog.DiscardHandler)

func question(repo, revision string) node.Question {
	return node.Question{Repository: path(repo), Revision: revision}
}
