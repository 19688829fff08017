package receivepack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/pushrecovery"
)

// The process of an Updater is killed at any moment. A change was made if and only if Update returns no error. Both
// refs change or none, and the next change goes through.
func TestUpdaterKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	if isInStore(t) {
		t.Skip("refs in a store are not changed by git")
	}
	w := newWorld(t, Options{})
	w.server.recovery.Delays = pushrecovery.Delays{Poll: time.Millisecond, Stable: 5 * time.Millisecond,
		Retry: 5 * time.Millisecond}
	var pid atomic.Int64
	w.server.started = func(started int) { pid.Store(int64(started)) }
	target := w.target()
	target.Head = "refs/heads/main"
	var u *Updater
	tip := git.ObjectID{}
	update := func(id git.ObjectID) (err error) {
		changes := []Change{{Updates: []Update{{Ref: "refs/heads/main", Old: tip, New: id}}},
			{Updates: []Update{{Ref: "refs/heads/side", Old: tip, New: id}}}}
		var errs []error
		u, errs = w.server.Update(t.Context(), u, target, changes)
		return errs[0]
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	rounds, made := 60, 0
	if testing.Short() {
		rounds = 15
	}
	for i := range rounds {
		var id git.ObjectID
		if tip.IsZero() {
			id = w.Commit(fmt.Sprint(i))
		} else {
			id = w.Commit(fmt.Sprint(i), tip)
		}
		var killing sync.WaitGroup
		if i%2 == 1 {
			after := time.Duration(rnd.Int64N(int64(10 * time.Millisecond)))
			killing.Go(func() { time.Sleep(after); _ = syscall.Kill(-int(pid.Load()), syscall.SIGKILL) })
		}
		err := update(id)
		killing.Wait()
		if i%2 == 0 && errors.Is(err, ErrNotUpdated) { // the process was killed after the change before
			err = update(id)
		}
		main, side := w.value("main"), w.value("side")
		switch {
		case main != side:
			t.Fatalf("round %d: main is %s and side is %s (%v)", i, main, side, err)
		case err == nil && main != id.String():
			t.Fatalf("round %d: main is %s, want %s", i, main, id)
		case err == nil:
			tip, made = id, made+1
		case main == id.String():
			t.Fatalf("round %d: main is %s in spite of %v", i, main, err)
		case i%2 == 0:
			t.Fatalf("round %d: %v", i, err)
		}
	}
	t.Logf("%d of %d changes were made", made, rounds)
	if u != nil {
		u.Close()
	}
}

// A change is not repeated when its process is killed later, and another change has set a ref back meanwhile.
func TestUpdaterKilledAfterAChange(t *testing.T) {
	t.Parallel()
	if isInStore(t) {
		t.Skip("refs in a store are not changed by git")
	}
	w := newWorld(t, Options{})
	var pid atomic.Int64
	w.server.started = func(started int) { pid.Store(int64(started)) }
	old := w.Commit("old")
	id := w.Commit("new", old)
	w.Git("update-ref", "refs/heads/main", old.String())
	u, errs := w.server.Update(t.Context(), nil, w.target(), []Change{{Updates: []Update{{Ref: "refs/heads/main",
		Old: old, New: id}, {Ref: "refs/heads/side", New: id}}}})
	if errs[0] != nil {
		t.Fatal(errs)
	}
	w.Git("update-ref", "refs/heads/main", old.String())
	_ = syscall.Kill(-int(pid.Load()), syscall.SIGKILL)
	u.Close()
	if got := w.value("main"); got != old.String() {
		t.Errorf("main is %s, want %s", got, old)
	}
}

// value returns the value of a branch; "" if it does not exist.
func (w *world) value(branch string) string {
	out, _ := w.Try("for-each-ref", "--format=%(objectname)", "refs/heads/"+branch)
	return strings.TrimSpace(out)
}
