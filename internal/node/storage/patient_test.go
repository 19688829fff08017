package storage

import (
	"fmt"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Repositories that only patient watches cover are checked in turn, a bounded number of them in each round. Others are
// always checked.
func TestPatientWatch(t *testing.T) {
	t.Parallel()
	h := newHub(&Node{metrics: newMetrics(nil)}, Options{CheckInterval: time.Hour})
	defer h.close()
	var from []WatchFrom
	for i := range 1000 {
		path, err := git.ParseRepoPath(fmt.Sprintf("repo%d", i))
		if err != nil {
			t.Fatal(err)
		}
		from = append(from, WatchFrom{Path: path, Patient: true})
	}
	patient, err := h.subscribe(from)
	if err != nil {
		t.Fatal(err)
	}
	eager, err := h.subscribe([]WatchFrom{{Path: from[0].Path}})
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
