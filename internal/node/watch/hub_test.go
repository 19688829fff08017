package watch

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Repositories that only patient watches cover are checked in turn, a bounded number of them in each round. Others are
// always checked.
func TestPatientWatch(t *testing.T) {
	t.Parallel()
	h := New(Options{Interval: time.Hour})
	defer h.Close()
	var from []From
	for i := range 1000 {
		path, err := git.ParseRepoPath(fmt.Sprintf("repo%d", i))
		if err != nil {
			t.Fatal(err)
		}
		from = append(from, From{Path: path, Patient: true})
	}
	patient, err := h.subscribe(from)
	if err != nil {
		t.Fatal(err)
	}
	eager, err := h.subscribe([]From{{Path: from[0].Path}})
	if err != nil {
		t.Fatal(err)
	}
	looks := map[*watchedRepo]int{}
	for range 5 { // 999 of them, in parts of 200
		all, _ := h.nextRound(time.Now())
		if len(all) > patientChecks+1 {
			t.Errorf("%d repositories are looked at in a round", len(all))
		}
		for _, w := range all {
			looks[w]++
		}
	}
	for _, w := range patient.repos {
		if n := looks[w]; n != 1 && w.path != from[0].Path {
			t.Errorf("%s was looked at %d times", w.path, n)
		}
	}
	if n := looks[eager.repos[0]]; n != 5 {
		t.Errorf("what somebody cannot wait for was looked at %d times in 5 rounds", n)
	}
	h.unsubscribe(eager)
	if w := eager.repos[0]; w.eager != 0 {
		t.Errorf("%d cannot wait who have gone", w.eager)
	}
	h.unsubscribe(patient)
}

// A round ends without the checks that hang, if they are not too many.
func TestRoundsSkipHangingChecks(t *testing.T) {
	t.Parallel()
	h := New(Options{Interval: 5 * time.Millisecond})
	defer h.Close()
	repos := make([]*watchedRepo, 1000)
	for i := range repos {
		repos[i] = &watchedRepo{number: i}
	}
	hang, checked := make(chan struct{}), make(chan int, 1000)
	h.running.Add(1)
	h.forEach(h.ctx, repos, func(w *watchedRepo) {
		checked <- w.number
		if w.number%20 == 0 {
			<-hang
		}
	})
	if len(checked) != cap(checked) {
		t.Errorf("%d checks, want %d", len(checked), cap(checked))
	}
	close(hang)
	h.running.Done()
}

// A repository that hangs, as on a file system that does not answer, delays no other.
func TestWatchBesideARepositoryThatHangs(t *testing.T) {
	t.Parallel()
	var generation atomic.Uint64
	hang := make(chan struct{})
	empty := openEmpty(t)
	h := New(Options{Interval: 5 * time.Millisecond, State: func(ctx context.Context, path git.RepoPath, _ bool) (State,
		error) {
		if path.String() == "bad" && generation.Load() > 0 {
			<-hang
		}
		return State{Refs: empty, Version: git.Version{Incarnation: fmt.Sprint("good", generation.Load()), Epoch: 1}}, nil
	}})
	defer h.Close()
	defer close(hang)
	events := make(chan Event)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var from []From
	for _, name := range []string{"bad", "good"} {
		path, err := git.ParseRepoPath(name)
		if err != nil {
			t.Fatal(err)
		}
		from = append(from, From{Path: path})
	}
	go h.Watch(ctx, from, func(e Event) error {
		select {
		case events <- e:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	<-events
	<-events
	for i := range 3 {
		generation.Add(1)
		if e := <-events; e.Path.String() != "good" || e.Version.Incarnation != fmt.Sprint("good", i+1) {
			t.Errorf("event %+v, want change %d of good", e, i+1)
		}
	}
}

// openEmpty returns a snapshot of a repository without refs.
func openEmpty(t *testing.T) *refs.Snapshot {
	t.Helper()
	r, err := repo.Open(gittest.Init(t).Dir, repo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	snap, err := r.Refs.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snap
}
