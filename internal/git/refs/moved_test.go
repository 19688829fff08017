package refs

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// A repository that is moved away in the middle of a look is gone; its refs are not.
func TestMovedDuringCheck(t *testing.T) {
	t.Parallel()
	repo := gittest.Init(t)
	id := repo.Commit("a").String()
	for i := range 3 {
		repo.Git("update-ref", fmt.Sprintf("refs/heads/%d", i), id)
	}
	repo.Git("pack-refs", "--all")
	repo.Git("update-ref", "refs/heads/loose", id)
	moved := false
	store := Open(repo.Dir, repo.Dir, Options{between: func() {
		if !moved {
			moved = true
			if err := os.Rename(repo.Dir, repo.Dir+".away"); err != nil {
				t.Error(err)
			}
		}
	}})
	snap, err := store.Snapshot(context.Background())
	if !fault.Is(err, fault.NotFound) {
		t.Errorf("%v, %v", snap, err)
	}
	if err := os.Rename(repo.Dir+".away", repo.Dir); err != nil {
		t.Fatal(err)
	}
	if snap, err = store.Snapshot(context.Background()); err != nil || len(state(t, snap)) != 5 { // with an unborn HEAD
		t.Errorf("%v after its return: %v", snap, err)
	}
}
