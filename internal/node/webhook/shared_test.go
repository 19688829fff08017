package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// fakeStore is a store with one repository, whose log has these pushes.
type fakeStore struct {
	*buckettest.Memory
	mu        sync.Mutex
	committed map[string]uint64 // records by push
	damaged   string            // a push whose log cannot be read
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
	if push == s.damaged {
		return nil, after, fault.New(fault.Corrupt, "damaged")
	}
	if id != "id" || record <= after {
		return nil, after, nil
	}
	return updates, record, nil
}

// commit makes a push as a server does. With ended false, the server dies before the end.
func (s *fakeStore) commit(t *testing.T, h *Hooks, p *receivepack.Push, ended bool) {
	t.Helper()
	r, err := h.begin(p)
	if err != nil {
		t.Fatal(err)
	}
	s.record(p.ID)
	if p.Record = 8; ended {
		if err := r.End(p.Updates); err != nil {
			t.Fatal(err)
		}
	}
}

// record makes a record of a push.
func (s *fakeStore) record(push string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.committed[push] = 8
}

// openShared makes the Hooks of one node. Its work in the background runs when the test calls it.
func openShared(t *testing.T, s *fakeStore, targets ...Target) *Hooks {
	t.Helper()
	h, err := New(Options{Dir: t.TempDir(), Targets: targets, Agent: "packhorse/test", Store: s,
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
	find(t, h)
}

func find(t *testing.T, h *Hooks) {
	t.Helper()
	if err := h.shared.findUnknown(t.Context()); err != nil {
		t.Fatal(err)
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
// committed and not noted. Pushes that are not committed for a time are forgotten.
func TestLostNode(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	down, up := newTarget(t, closed), newTarget(t, nil)
	a := openShared(t, s, told("w", down.URL))
	s.commit(t, a, push("WAITS", "1", "2"), true)
	s.commit(t, a, push("CUT", "2", "3"), false)
	if _, err := a.begin(push("NEVER", "3", "4")); err != nil {
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
	checkOutbox(t, s, b, "NEVER")
	b.shared.pushes["NEVER"].unknown = time.Now().Add(-unknownLimit)
	find(t, b)
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
// then are delivered by the other node.
func TestNodeThatWasTakenForLost(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	down, up := newTarget(t, closed), newTarget(t, nil)
	a := openShared(t, s, told("w", down.URL))
	s.commit(t, a, push("WAITS", "1", "2"), true)
	runs, late := push("RUNS", "2", "3"), push("LATE", "3", "4")
	running, err := a.begin(runs)
	if err != nil {
		t.Fatal(err)
	}
	keep := func() {
		t.Helper()
		if err := errors.Join(a.shared.renew(t.Context()), a.shared.check(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	keep()
	b, session := openShared(t, s, told("w", up.URL)), a.shared.session
	watchDead(t, b, deadAfter)
	checkOutbox(t, s, b, "RUNS")
	s.commit(t, a, late, true)
	s.record("RUNS")
	if keep(); a.shared.session == session || value(a.metrics.pending) != 0 {
		t.Errorf("%v deliveries wait on a node that lost its session, want none", value(a.metrics.pending))
	}
	if err := running.End(runs.Updates); err != nil {
		t.Fatal(err)
	}
	if got := files(t, a.o.Dir); len(got) != 0 {
		t.Errorf("the node that lost its session has the files %q", got)
	}
	find(t, b)
	watchDead(t, b, deadAfter) // LATE began in the lost session
	up.wait(t, 3)
	checkOutbox(t, s, b)
	if got := up.seen(); !slices.Equal(got, []string{"WAITS", "RUNS", "LATE"}) {
		t.Errorf("delivered %q, want each push once", got)
	}
}

// A push that cannot be taken now does not keep other pushes of its session from being delivered.
func TestTakeWithBadPushes(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	down, up := newTarget(t, closed), newTarget(t, nil)
	a, b := openShared(t, s, told("w", down.URL)), openShared(t, s, told("w", up.URL))
	for _, name := range []string{"A", "BAD", "C", "DAMAGED"} {
		s.commit(t, a, push(name, "1", "2"), true)
	}
	s.damaged = "DAMAGED"
	a.stop()
	s.SetHook(func(operation, key string) error {
		if operation == "get" && strings.HasSuffix(key, "BAD") {
			return fault.New(fault.Unavailable, "503")
		}
		return nil
	})
	if err := b.shared.take(t.Context(), a.shared.session, false); err == nil {
		t.Error("take of a push that cannot be read succeeds")
	}
	find(t, b)
	up.wait(t, 2)
	checkOutbox(t, s, b, takenKey[1:], "BAD")
	if got := files(t, b.o.Dir); len(got) != 1 || !strings.HasPrefix(got[0], "dead/w/") {
		t.Errorf("the files are %q, want the push with a damaged log", got)
	}
	s.SetHook(nil)
	watchDead(t, b, takenAfter)
	up.wait(t, 1)
	checkOutbox(t, s, b)
}

// While a node takes a session, !taken changes, so that the session is not taken from it.
func TestTakeAgain(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	a, b := openShared(t, s, told("w", newTarget(t, closed).URL)), openShared(t, s, told("w", newTarget(t, nil).URL))
	s.commit(t, a, push("P", "1", "2"), true)
	a.stop()
	taken := outboxPrefix + a.shared.session + takenKey
	if err := s.Create(t.Context(), taken, []byte("lost\n")); err != nil {
		t.Fatal(err)
	}
	if err := b.shared.take(t.Context(), a.shared.session, false); err != nil || len(b.shared.pushes) > 0 {
		t.Fatalf("take of a session that another node takes = %v", err)
	}
	puts := 0
	s.SetHook(func(operation, key string) error {
		if operation == "put" && key == taken {
			puts++
		}
		return nil
	})
	if err := b.shared.take(t.Context(), a.shared.session, true); err != nil || puts != 1 {
		t.Errorf("take = %v, and !taken was replaced %d times, want once", err, puts)
	}
}

// A take that hangs does not keep a node from renewing its own session.
func TestRenewDuringTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		target := told("w", "http://127.0.0.1:1")
		a, b := openShared(t, s, target), openShared(t, s, target)
		for h, name := range map[*Hooks]string{a: "LOST", b: "OWN"} {
			if _, err := h.begin(push(name, "1", "2")); err != nil {
				t.Fatal(err)
			}
		}
		alive, renewed, done := outboxPrefix+b.shared.session+aliveKey, make(chan struct{}), make(chan struct{})
		s.SetHook(func(operation, key string) error {
			switch {
			case operation == "put" && key == alive:
				select {
				case renewed <- struct{}{}:
				default:
				}
			case operation == "get" && strings.HasSuffix(key, "LOST"):
				defer close(done)
				for range 3 {
					select {
					case <-renewed:
					case <-time.After(deadAfter):
						t.Error("the session was not renewed during a take")
						return nil
					}
				}
			}
			return nil
		})
		b.running.Go(b.shared.run)
		<-done
	})
}

// A push that is not written for one of its targets, because the disk is full, is delivered to each once.
func TestFullDiskWithTwoTargets(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	one, two := newTarget(t, nil), newTarget(t, nil)
	h := openShared(t, s, told("one", one.URL), told("two", two.URL))
	dir := h.queues[1].dir
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	r, err := h.begin(push("P", "1", "2"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.End(push("P", "1", "2").Updates); err == nil {
		t.Error("End without the directory of a target succeeds")
	}
	one.wait(t, 1)
	checkOutbox(t, s, h, "P", "P.one")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	two.wait(t, 1)
	checkOutbox(t, s, h)
	if len(one.seen()) != 1 || len(two.seen()) != 1 {
		t.Errorf("delivered %q and %q, want one delivery each", one.seen(), two.seen())
	}
}

// A push whose result is found out later is delivered without a restart.
func TestUnknownResult(t *testing.T) {
	t.Parallel()
	s := newFakeStore()
	up := newTarget(t, nil)
	h := openShared(t, s, told("w", up.URL))
	r, err := h.begin(push("P", "1", "2"))
	if err != nil {
		t.Fatal(err)
	}
	r.Unknown()
	find(t, h)
	checkOutbox(t, s, h, "P")
	s.mu.Lock()
	s.committed["P"] = 9
	s.mu.Unlock()
	find(t, h)
	up.wait(t, 1)
	find(t, h)
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
	if _, err := a.begin(push("Q", "2", "3")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Begin during an outage = %v, want unavailable", err)
	}
	s.SetHook(nil)
	checkOutbox(t, s, a, "P")
}
