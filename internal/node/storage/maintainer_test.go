package storage_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// checks reads how often maintenance was looked into, by outcome.
func checks(t *testing.T, reg *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, f := range families {
		if f.GetName() == "packhorse_maintenance_checks_total" {
			for _, one := range f.GetMetric() {
				found[one.GetLabel()[0].GetValue()] = int(one.GetCounter().GetValue())
			}
		}
	}
	return found
}

// until waits for a condition.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	gittest.WaitFor(t, what, is)
}

func newMaintained(t *testing.T, when storage.Maintenance) (*root, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	return newRoot(t, storage.Options{Runner: newRunner(t), Registerer: reg, Maintenance: &when}), reg
}

// TestAutomaticMaintenance changes refs until maintenance is due: by packs, by loose objects, by loose refs; and not
// before.
func TestAutomaticMaintenance(t *testing.T) {
	t.Parallel()
	r, m := newMaintained(t, storage.Maintenance{Packs: 6, Loose: 40, LooseRefs: 30, Quiet: time.Millisecond})
	path := r.path("app")
	repo := r.repo("app.git", "x")
	changed := func(outcome string) {
		t.Helper()
		before := checks(t, m)[outcome]
		r.RefsChanged(path)
		until(t, "a check that says "+outcome, func() bool { return checks(t, m)[outcome] > before })
	}
	packs := func() int {
		found, err := filepath.Glob(repo.Dir + "/objects/pack/*.pack")
		r.do(err)
		return len(found)
	}
	changed("not_due")
	for i := range 7 {
		repo.Git("update-ref", "refs/heads/main", repo.Commit(fmt.Sprint("commit ", i), repo.ID("main")).String())
		repo.Git("repack", "-d", "-q")
	}
	before := repo.Objects()
	if packs() < 6 {
		t.Fatal("too few packs to begin with")
	}
	changed("due")
	if packs() > 2 {
		t.Errorf("%d packs after maintenance", packs())
	}
	if loose, err := filepath.Glob(repo.Dir + "/refs/heads/*"); err != nil || len(loose) != 1 {
		t.Errorf("a few loose refs were packed: %q, %v", loose, err)
	}
	changed("not_due")
	for i := range 15 {
		repo.Commit(fmt.Sprint("nobody has ", i))
	}
	changed("due")
	for i := range 31 {
		repo.Git("update-ref", fmt.Sprint("refs/heads/b", i), "main")
	}
	changed("due")
	if loose, err := filepath.Glob(repo.Dir + "/refs/heads/*"); err != nil || len(loose) != 0 {
		t.Errorf("loose refs %q, %v", loose, err)
	}
	after := repo.Objects()
	for _, object := range before {
		if !slices.Contains(after, object) {
			t.Errorf("%s is lost", object)
		}
	}
	repo.Git("fsck", "--full")
	r.serves("app", repo.ID("main"))
}

// A repository whose maintenance fails is left alone for a while. A removed repository is not an error.
func TestAutomaticMaintenancePauses(t *testing.T) {
	t.Parallel()
	r, m := newMaintained(t, storage.Maintenance{Packs: 1, Loose: 1, Quiet: time.Millisecond})
	repo := r.repo("app.git", "x")
	repo.Git("config", "core.compression", "99")
	r.RefsChanged(r.path("app"))
	until(t, "a failure", func() bool { return checks(t, m)["failed"] == 1 })
	r.RefsChanged(r.path("app"))
	until(t, "a pause", func() bool { return checks(t, m)["paused"] == 1 })
	r.RefsChanged(r.path("gone"))
	until(t, "one that is gone", func() bool { return checks(t, m)["failed"] == 2 })
}

// TestAutomaticMaintenanceEndsWithTheNode closes the node while git repacks: no lock and no half of anything stays.
func TestAutomaticMaintenanceEndsWithTheNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	repo := gittest.InitAt(t, filepath.Join(dir, "app.git"))
	repo.Git("update-ref", "refs/heads/main", repo.Commit("x").String())
	for seed := range uint64(3) {
		history(repo, seed)
	}
	objects, refs := repo.Objects(), repo.Git("for-each-ref")
	for i := range 4 {
		reg := prometheus.NewRegistry()
		r := newRoot(t, storage.Options{Root: dir, Runner: newRunner(t), Registerer: reg,
			Maintenance: &storage.Maintenance{Packs: 1, Loose: 1, LooseRefs: 1, Quiet: time.Millisecond}})
		r.RefsChanged(r.path("app"))
		time.Sleep(time.Duration(i) * 15 * time.Millisecond) // somewhere in it
		r.do(r.Close())
		for _, lock := range []string{"packed-refs.lock", "objects/pack/multi-pack-index.lock",
			"objects/info/commit-graphs/commit-graph-chain.lock"} {
			if _, err := os.Stat(filepath.Join(repo.Dir, lock)); err == nil {
				t.Errorf("%s is left", lock)
			}
		}
	}
	if !slices.Equal(repo.Objects(), objects) || repo.Git("for-each-ref") != refs {
		t.Error("the repository holds something else now")
	}
	repo.Git("fsck", "--full")
}

// TestPushesBesideMaintenance pushes from two sides while the repository is maintained all the time: every push that
// git took is there.
func TestPushesBesideMaintenance(t *testing.T) {
	t.Parallel()
	r := newManager(t)
	repo := r.repo("app.git", "x")
	repo.Git("config", "receive.unpackLimit", "1")
	var pushing sync.WaitGroup
	for side := range 2 {
		from := gittest.Init(t)
		from.Git("fetch", "-q", repo.Dir, "main:main")
		pushing.Go(func() {
			for i := range 12 {
				from.Git("update-ref", "refs/heads/main", from.Commit(fmt.Sprint(side, i), from.ID("main")).String())
				from.Git("push", "-q", repo.Dir, fmt.Sprintf("main:refs/heads/side%d", side),
					fmt.Sprintf("main:refs/tags/t%d-%d", side, i))
			}
		})
	}
	done := make(chan struct{})
	go func() { pushing.Wait(); close(done) }()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		if _, err := r.Maintain(t.Context(), r.path("app")); err != nil {
			t.Error(err)
		}
	}
	repo.Git("fsck", "--full")
	for side := range 2 {
		if n := repo.Git("rev-list", "--count", fmt.Sprintf("refs/heads/side%d", side)); n != "13" {
			t.Errorf("side %d has %s commits", side, n)
		}
	}
	if n := len(strings.Split(repo.Git("for-each-ref", "refs/tags"), "\n")); n != 24 {
		t.Errorf("%d tags", n)
	}
}

// TestAutomaticCollection removes old unreachable objects after a push, once a day.
func TestAutomaticCollection(t *testing.T) {
	t.Parallel()
	r, m := newMaintained(t, storage.Maintenance{Quiet: time.Millisecond, Unreachable: 14 * day})
	repo := r.repo("app.git", "x")
	has := func(id git.ObjectID) bool { _, err := repo.Try("cat-file", "-e", id.String()); return err == nil }
	old := repo.Commit("old")
	age(t, repo)
	young := repo.Commit("young")
	r.RefsChanged(r.path("app"))
	until(t, "a collection", func() bool { return !has(old) })
	// maintenance after it would put the next object into a new pack
	until(t, "the end of the check", func() bool { return checks(t, m)["not_due"] > 0 })
	if !has(young) {
		t.Error("a young object was removed")
	}
	old = repo.Commit("old, too")
	age(t, repo)
	before := checks(t, m)["not_due"]
	r.RefsChanged(r.path("app"))
	until(t, "another check", func() bool { return checks(t, m)["not_due"] > before })
	if !has(old) {
		t.Error("a second collection on the same day")
	}
	then := time.Now().Add(-25 * time.Hour)
	r.do(os.Chtimes(filepath.Join(repo.Dir, "packhorse-collected"), then, then))
	r.RefsChanged(r.path("app"))
	until(t, "a collection on the next day", func() bool { return !has(old) })
	repo.Git("fsck", "--strict")
}
