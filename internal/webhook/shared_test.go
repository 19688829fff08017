package webhook

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/bucket"
	"github.com/packhorse-git/packhorse/internal/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/receivepack"
)

// fakeStore is a store with one repository, whose log has these pushes.
type fakeStore struct {
	*buckettest.Memory
	mu        sync.Mutex
	committed map[string]uint64 // records by push
}

func newFakeStore() *fakeStore {
	return &fakeStore{Memory: buckettest.NewMemory(1), committed: map[string]uint64{}}
}

func (s *fakeStore) Bucket() bucket.Bucket { return s.Memory }

func (s *fakeStore) Position(context.Context, git.RepoPath) (string, uint64, error) {
	return "id", 7, nil
}

func (s *fakeStore) PushResult(_ context.Context, id string, after uint64, push string,
	updates []receivepack.Update) ([]receivepack.Update, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	record := s.committed[push]
	if id != "id" || record <= after {
		return nil, 0, nil
	}
	return updates, record, nil
}

// commit makes a push as a server does. With ended false, the server dies before the end.
func (s *fakeStore) commit(t *testing.T, h *Hooks, p *receivepack.Push, ended bool) {
	t.Helper()
	r, err := h.Begin(p)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.committed[p.ID] = 8
	s.mu.Unlock()
	if p.Record = 8; ended {
		if err := r.End(p.Updates); err != nil {
			t.Fatal(err)
		}
	}
}

// openShared makes the Hooks of one node. Its work in the background runs when the test calls it.
func openShared(t *testing.T, s *fakeStore, targets ...Target) *Hooks {
	t.Helper()
	h, err := New(Options{Dir: t.TempDir(), Targets: targets, Agent: "packhorse/test", Metrics: NewMetrics(), Store: s,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Retry: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range h.queues {
		h.running.Go(q.run)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// watchDead lets a node find that no other session changes for a time.
func watchDead(t *testing.T, h *Hooks, patience time.Duration) {
	t.Helper()
	for range 2 {
		if err := h.shared.watch(t.Context()); err != nil {
			t.Fatal(err)
		}
		for session, seen := range h.shared.seen {
			seen.since = seen.since.Add(-patience)
			h.shared.seen[session] = seen
		}
	}
}

// checkOutbox waits until the bucket has these objects, without their sessions.
func checkOutbox(t *testing.T, s *fakeStore, h *Hooks, want ...string) {
	t.Helper()
	var got []string
	if !eventually(func() bool {
		if err := h.shared.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, key := range s.Keys() {
			got = append(got, key[strings.LastIndexByte(key, '/')+1:])
		}
		return slices.Equal(got, want)
	}) {
		t.Errorf("the bucket has %q, want %q", got, want)
	}
}

var closed = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })

// The deliveries of a node that is lost are made by another one: those that waited, and those of pushes that were
// committed and not noted. Pushes that were not committed are forgotten.
func TestLostNode(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	down, up := newTarget(t, closed), newTarget(t, nil)
	a := openShared(t, s, told("w", down.URL))
	s.commit(t, a, push("WAITS", "1", "2"), true)
	s.commit(t, a, push("CUT", "2", "3"), false)
	if _, err := a.Begin(push("NEVER", "3", "4")); err != nil {
		t.Fatal(err)
	}
	if err := a.shared.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.stop() // without the end of Close

	b := openShared(t, s, told("w", up.URL))
	watchDead(t, b, deadAfter-time.Second)
	if got := up.seen(); len(got) != 0 {
		t.Errorf("%q were taken from a node that may work", got)
	}
	watchDead(t, b, deadAfter)
	up.wait(t, 2)
	got := up.seen()
	if slices.Sort(got); !slices.Equal(got, []string{"CUT", "WAITS"}) {
		t.Errorf("delivered %q, want the two pushes that were committed", got)
	}
	for i, m := range up.got {
		if m.Record != 8 || up.head[i].Get("Packhorse-Delivery") != m.Push || len(m.Updates) != 1 {
			t.Errorf("delivered %+v, want the record, the ID and the update of the push", m)
		}
	}
	checkOutbox(t, s, b)
}

// A target that has a push does not get it again from the node that takes over.
func TestLostNodeWithTwoTargets(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	var isDown atomic.Bool
	isDown.Store(true)
	one := newTarget(t, nil)
	two := newTarget(t, func(w http.ResponseWriter, r *http.Request) {
		if isDown.Load() {
			closed(w, r)
		}
	})
	a := openShared(t, s, told("one", one.URL), told("two", two.URL))
	s.commit(t, a, push("P", "1", "2"), true)
	one.wait(t, 1)
	checkOutbox(t, s, a, "P", "P.one")
	a.stop()
	a.running.Wait()
	isDown.Store(false)
	b := openShared(t, s, told("one", one.URL), told("two", two.URL))
	watchDead(t, b, deadAfter)
	checkOutbox(t, s, b)
	if got := one.seen(); len(got) != 1 {
		t.Errorf("the first target got %q, want one delivery", got)
	}
}

// A node whose pushes were taken although it works does not deliver them itself any more. Pushes that were running
// then are delivered, and are in the bucket again.
func TestNodeThatWasTakenForLost(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	down, up := newTarget(t, closed), newTarget(t, nil)
	a := openShared(t, s, told("w", down.URL))
	s.commit(t, a, push("WAITS", "1", "2"), true)
	running, err := a.Begin(push("RUNS", "2", "3"))
	if err != nil {
		t.Fatal(err)
	}
	b := openShared(t, s, told("w", up.URL))
	session := a.shared.session
	if err := s.Create(t.Context(), outboxPrefix+session+takenKey, []byte("b\n")); err != nil {
		t.Fatal(err)
	}
	if err := a.shared.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	watchDead(t, b, takenAfter)
	up.wait(t, 1)
	if a.shared.session == session || value(a.o.Metrics.pending) != 0 {
		t.Errorf("%v deliveries wait on a node that lost its session, want none", value(a.o.Metrics.pending))
	}
	checkOutbox(t, s, b)
	if err := running.End(push("RUNS", "2", "3").Updates); err != nil {
		t.Fatal(err)
	}
	checkOutbox(t, s, a, "RUNS")
}

// A push whose result is found out later is delivered without a restart.
func TestUnknownResult(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	up := newTarget(t, nil)
	h := openShared(t, s, told("w", up.URL))
	r, err := h.Begin(push("P", "1", "2"))
	if err != nil {
		t.Fatal(err)
	}
	r.Unknown()
	find := func() {
		t.Helper()
		if err := h.shared.findUnknown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	find()
	checkOutbox(t, s, h, "P")
	s.mu.Lock()
	s.committed["P"] = 9
	s.mu.Unlock()
	find()
	up.wait(t, 1)
	find()
	checkOutbox(t, s, h)
	if got := fmt.Sprint(up.seen(), up.got[0].Record); got != "[P] 9" {
		t.Errorf("delivered %s, want P with record 9", got)
	}
}

// While the store does not answer, no node is taken for lost, and pushes are not accepted.
func TestOutageOfTheStore(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	down := newTarget(t, closed)
	a, b := openShared(t, s, told("w", down.URL)), openShared(t, s, told("w", down.URL))
	s.commit(t, a, push("P", "1", "2"), true)
	if err := b.shared.watch(t.Context()); err != nil || len(b.shared.seen) != 1 {
		t.Fatalf("watch sees %v, %v, want one session", b.shared.seen, err)
	}
	s.SetHook(func(string, string) error { return fault.New(fault.Unavailable, "503") })
	if err := b.shared.watch(t.Context()); err == nil || len(b.shared.seen) != 0 {
		t.Errorf("watch during an outage sees %v, %v, want an error", b.shared.seen, err)
	}
	if _, err := a.Begin(push("Q", "2", "3")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Begin during an outage = %v, want unavailable", err)
	}
	s.SetHook(nil)
	checkOutbox(t, s, a, "P")
}
