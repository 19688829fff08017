package storage_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// TestVersions: a version rises with every change, and only then while the repository is open. It is the same under
// each path. It never decreases when handles are evicted.
func TestVersions(t *testing.T) {
	t.Parallel()
	const epoch = 7
	r := newRoot(t, storage.Options{MaxOpen: 2, Epoch: epoch})
	repo := r.repo("app.git", "x")
	id := repo.ID("main").String()
	r.do(os.Symlink("app.git", filepath.Join(r.dir, "link.git")))
	version := func(path string) git.Version {
		t.Helper()
		ok, v, err := r.Exists(t.Context(), r.path(path), "refs/heads/main")
		if !ok || err != nil || v.Epoch != epoch {
			t.Errorf("%v, %v, %v", ok, v, err)
		}
		return v
	}
	for j := range 4 {
		r.repo(fmt.Sprintf("other%d.git", j), "x")
	}
	last := version("app")
	for i := range 30 {
		for _, path := range []string{"app", "app.git", "link"} {
			if v := version(path); v != last {
				t.Errorf("%s has version %v, without a change after %v", path, v, last)
			}
		}
		switch i % 3 {
		case 0:
			repo.Git("update-ref", fmt.Sprintf("refs/heads/%d", i), id)
		case 1:
			repo.Git("config", "x.y", fmt.Sprint(i)) // reopened
			repo.Git("update-ref", fmt.Sprintf("refs/heads/%d", i), id)
		default:
			for j := range 4 { // evicted
				version(fmt.Sprintf("other%d", j))
			}
		}
		v := version("app")
		if v.Incarnation != last.Incarnation || v.Generation <= last.Generation {
			t.Errorf("step %d: %v after %v", i, v, last)
		}
		last = v
	}
	r.do(os.RemoveAll(repo.Dir))
	r.repo("app.git", "x")
	if v := version("app"); v.Incarnation == last.Incarnation {
		t.Errorf("made anew: %v after %v", v, last)
	}
}

// Many callers read a repository while it changes: a higher generation means a later state.
func TestVersionsUnderConcurrency(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{MaxOpen: 2})
	repo := r.repo("app.git", "0")
	r.repo("other.git", "x")
	r.repo("third.git", "x")
	var ids []git.ObjectID
	order := map[git.ObjectID]int{}
	batch := repo.Batch()
	for i := range 30 {
		ids = append(ids, batch.Commit(fmt.Sprint(i)))
		order[ids[i]] = i
	}
	batch.Store()
	repo.Git("update-ref", "refs/heads/main", ids[0].String())
	type seen struct {
		version git.Version
		state   int
	}
	results := make(chan []seen)
	done := make(chan struct{})
	const workers, seed = 4, 9
	for worker := range workers {
		go func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(worker)))
			var all []seen
			defer func() { results <- all }()
			for {
				select {
				case <-done:
					return
				default:
				}
				path := []string{"app", "app.git", "other", "third"}[rnd.IntN(4)]
				got, err := r.Resolve(context.Background(), r.path(path), "main")
				if err != nil {
					t.Error(err)
					return
				}
				if strings.HasPrefix(path, "app") {
					all = append(all, seen{got.Version, order[got.ID]})
				}
			}
		}()
	}
	for i, id := range ids[1:] {
		repo.Git("update-ref", "refs/heads/main", id.String())
		if i%5 == 0 {
			repo.Git("config", "x.y", fmt.Sprint(i))
		}
	}
	close(done)
	var all []seen
	for range workers {
		all = append(all, <-results...)
	}
	slices.SortFunc(all, func(a, b seen) int { return int(int64(a.version.Generation) - int64(b.version.Generation)) })
	for i := range all[1:] {
		if all[i].state > all[i+1].state || all[i].version == all[i+1].version && all[i].state != all[i+1].state {
			t.Fatalf("%+v, then %+v", all[i], all[i+1])
		}
	}
}

func TestNextEpoch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	last := uint64(0)
	for range 5 {
		epoch, err := storage.NextEpoch(dir)
		if err != nil || epoch <= last {
			t.Errorf("%d after %d, %v", epoch, last, err)
		}
		last = epoch
	}
	file := path.Join(dir, "epoch")
	const future = uint64(1) << 62
	if err := os.WriteFile(file, fmt.Appendln(nil, future), 0o600); err != nil { // the clock was set back
		t.Fatal(err)
	}
	if epoch, err := storage.NextEpoch(dir); err != nil || epoch != future+1 {
		t.Errorf("%d, %v", epoch, err)
	}
	if err := os.WriteFile(file, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := storage.NextEpoch(dir); err == nil {
		t.Error("junk is an epoch")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
