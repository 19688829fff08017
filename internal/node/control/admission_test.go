package control

import (
	"context"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// waitFor waits for a state that has to come.
func waitFor(t *testing.T, what string, there func() bool) {
	t.Helper()
	gittest.WaitFor(t, what, there)
}

// takeAll takes every slot that there is.
func takeAll(t *testing.T, slots *balance.Slots) (release func()) {
	t.Helper()
	var all []func()
	for slots.InUse() < slots.Size() {
		one, _, err := slots.Acquire(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	return func() {
		for _, one := range all {
			one()
		}
	}
}

// Heavy look-ups that wait for their slots hold no place that a small one needs.
func TestHeavyLookupsHaveTheirOwnQueue(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	p.create("app")
	p.create("old")
	repo := gittest.At(t, filepath.Join(p.dir, "app.git"))
	repo.Git("update-ref", "refs/heads/main", repo.Commit("x").String())
	heavy := map[string]func() error{
		"Get": func() error {
			_, err := p.repositories.Get(t.Context(), connect.NewRequest(&packhorsev1.GetRequest{Repository: "app"}))
			return err
		},
		"List": func() error {
			_, err := p.repositories.List(t.Context(), connect.NewRequest(&packhorsev1.ListRequest{}))
			return err
		},
		"Create": func() error {
			_, err := p.repositories.Create(t.Context(), connect.NewRequest(&packhorsev1.CreateRequest{Repository: "new"}))
			return err
		},
		"Delete": func() error {
			_, err := p.repositories.Delete(t.Context(), connect.NewRequest(&packhorsev1.DeleteRequest{Repository: "old"}))
			return err
		},
		"Log": func() error {
			stream, err := p.objects.Log(t.Context(), connect.NewRequest(&packhorsev1.LogRequest{Repository: "app",
				Revisions: []string{"main"}}))
			if err != nil {
				return err
			}
			defer stream.Close()
			for stream.Receive() {
			}
			return stream.Err()
		},
	}
	// all of them find a place in the lane
	p.server.slots.Resize(smallPlaces-1, balance.Limits{Queue: slotQueue, Wait: slotWait})
	release := takeAll(t, p.server.slots)
	defer release()
	var calls sync.WaitGroup
	for name, call := range heavy {
		calls.Go(func() {
			if err := call(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	waitFor(t, "all heavy calls wait", func() bool { return p.server.slots.Queued() == len(heavy) })
	var seats []*admit.Seat
	for range smallPlaces - 1 { // one is left
		seat, err := p.lanes.Small.Enter("")
		if err != nil {
			t.Fatal("a call that waits has a place in the small lane: ", err)
		}
		seats = append(seats, seat)
	}
	if _, err := p.refs.Resolve(t.Context(), connect.NewRequest(&packhorsev1.ResolveRequest{Repository: "app",
		Name: "main"})); err != nil {
		t.Error(err)
	}
	for _, seat := range seats {
		seat.Leave()
	}
	for i := p.server.slots.Queued(); i < slotQueue; i++ { // until no more may wait
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go p.server.slots.Acquire(ctx, callerLocal)
	}
	waitFor(t, "the queue is full", func() bool { return p.server.slots.Queued() == slotQueue })
	p.code(heavy["Get"](), connect.CodeResourceExhausted)
	if _, err := p.refs.Resolve(t.Context(), connect.NewRequest(&packhorsev1.ResolveRequest{Repository: "app",
		Name: "main"})); err != nil {
		t.Error(err)
	}
	release()
	calls.Wait()
}

// A reader that takes its time has no slot meanwhile, and has one again when the walk goes on.
func TestSlowReadersKeepNoSlot(t *testing.T) {
	t.Parallel()
	s, _ := realPort(t, "tcp", Options{Lookups: 1, Lanes: admit.NewLanes(admit.Sizes{Small: 1, Hit: 10})})
	p, err := s.enterHeavy(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if s.slots.InUse() != 1 {
			t.Error("a walk has no slot")
		}
		err := p.send(t.Context(), func() error {
			release, _, err := s.slots.Acquire(t.Context(), "") // waits until it was given up
			if err == nil {
				release()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if s.slots.InUse() != 1 || !p.seat.In(s.Lanes.Hit) {
		t.Error("a walk that goes on has no slot")
	}
	var other func()
	err = p.send(t.Context(), func() error { // an answer that has begun goes on, though others have the slots
		other, _, err = s.slots.Acquire(t.Context(), "")
		s.slots.Resize(1, balance.Limits{}) // no request may wait
		return err
	})
	if err != nil || p.slot != nil {
		t.Errorf("without a slot: %v", err)
	}
	if err := p.send(t.Context(), func() error { return nil }); err != nil {
		t.Error(err)
	}
	p.end()
	other()
	if _, err := s.Lanes.Small.Enter(""); err != nil || s.slots.InUse() != 0 {
		t.Error("something is held after the end")
	}
}

// A list of refs that does not fit into one message goes on among the long answers, however slow its reader is.
func TestLongListsLeaveTheSmallLane(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	p.create("app")
	repo := gittest.At(t, filepath.Join(p.dir, "app.git"))
	packRefs(t, repo.Dir, repo.Commit("x").String(), 2500)
	for err := error(nil); err == nil; { // until it is full
		_, err = p.lanes.Hit.Enter("")
	}
	for size, full := range map[int32]bool{0: true, 10: false} {
		stream, err := p.refs.List(t.Context(), connect.NewRequest(&packhorsev1.RefServiceListRequest{Repository: "app",
			PageSize: size}))
		if err != nil {
			t.Fatal(err)
		}
		messages := 0
		for stream.Receive() {
			messages++
		}
		if messages != 1 || full != (connect.CodeOf(stream.Err()) == connect.CodeResourceExhausted) || !full &&
			stream.Err() != nil {
			t.Errorf("pages of %d: %d messages, %v", size, messages, stream.Err())
		}
		stream.Close()
	}
}

func TestShares(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]string{"": "gateway", "alice": "alice", "192.0.2.0%2F24": "192.0.2.0/24",
		"%": "gateway"} {
		header := http.Header{callerHeader: {"gateway"}, node.ShareHeader: {sent}}
		if got := shareOf(header); got != want {
			t.Errorf("%q: a share of %q, want %q", sent, got, want)
		}
	}
}

// Changes of refs can wait for hooks, and must not take the places of look-ups meanwhile.
func TestChangesEnterTheLaneOfPushes(t *testing.T) {
	t.Parallel()
	c := &interceptor{&Server{Options: Options{Lanes: admit.NewLanes(admit.Sizes{Small: 9, Push: 1})}}}
	for _, call := range pushCalls {
		a, err := c.admissionOf(t.Context(), call, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.enterPush(); !fault.Is(err, fault.Exhausted) {
			t.Errorf("%s: the lane of pushes has a place: %v", call, err)
		}
		a.end()
	}
}
