package sourcetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// testPartial makes packs of a partial clone, which has promisor packs and no blobs.
func testPartial(t *testing.T, s packsource.Source) {
	t.Parallel()
	r := gittest.Random(t, 1, gittest.Shape{})
	r.Git("config", "uploadpack.allowFilter", "true")
	dir := filepath.Join(t.TempDir(), "partial.git")
	r.Git("clone", "-q", "--mirror", "--filter=blob:none", "file://"+r.Dir, dir)
	all := sorted(ids(r.Git("for-each-ref", "--format=%(objectname)", "refs/heads")))
	spec := &packsource.Spec{Repo: Repository(gittest.At(t, dir)), Wants: all, Offset: true}
	for _, filter := range []string{"blob:none", "tree:0", "object:type=commit"} {
		spec.Filter = filter
		FetchAndCheck(t, s, r, spec)
	}
	spec.Filter = ""
	p, err := s.Open(t.Context(), spec)
	if err != nil {
		return
	}
	defer p.Close()
	var out Output
	if err := p.Send(t.Context(), &out); err == nil || whole(spec.Repo.Format, out.Pack(t)) == nil {
		t.Errorf("a pack without its blobs was sent; the error is %v", err)
	}
}

// testReplaced has a repository with replace refs, grafts, and a configuration: a Spec does not depend on them.
func testReplaced(t *testing.T, s packsource.Source) {
	t.Parallel()
	sound := gittest.Random(t, 2, gittest.Shape{})
	r := copyOf(t, sound)
	parent := r.ID("main^")
	r.Git("replace", parent.String(), r.Commit("replaces it").String())
	r.Git("config", "core.bigFileThreshold", "1")
	r.Git("config", "pack.compression", "0")
	grafts := filepath.Join(r.Dir, "info/grafts")
	if err := os.WriteFile(grafts, []byte(r.ID("main").String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, shape := range plainShapes(sound) {
		shape.spec.Repo = Repository(r)
		FetchAndCheck(t, s, sound, shape.spec)
	}
}

// testVanishing makes packs while git packs the repository again and again. A pack may fail, but not be wrong.
func testVanishing(t *testing.T, s packsource.Source) {
	t.Parallel()
	rounds := 12
	if !testing.Short() {
		rounds = 150
	}
	r := gittest.Random(t, 3, gittest.Shape{Commits: 60})
	sound := copyOf(t, r)
	g := newGenerator(sound, 3)
	g.repo = Repository(r)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { repackForever(ctx, t, r) })
	failed := 0
	for i := range rounds {
		spec := g.spec(i)
		if i%2 == 0 {
			spec = Full(sound)
			spec.Repo = g.repo
		}
		p, err := s.Open(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		var out Output
		err = p.Send(t.Context(), &out)
		p.Close()
		if err == nil {
			if check(t, sound, spec, out.Pack(t), p.Info().Made.Source); t.Failed() {
				t.Errorf("round %d: %s", i, describe(spec))
				break
			}
			continue
		}
		failed++
		t.Logf("round %d: %v", i, err)
		if whole(spec.Repo.Format, out.Pack(t)) == nil {
			t.Errorf("round %d: a whole pack was sent before the error", i)
		}
	}
	cancel()
	wg.Wait()
	if t.Logf("%d of %d packs failed", failed, rounds); failed > rounds/2 {
		t.Errorf("%d of %d packs failed, want few", failed, rounds)
	}
}

func repackForever(ctx context.Context, t testing.TB, r *gittest.Repo) {
	steps := [][]string{{"repack", "-qadf"}, {"repack", "-qadfb", "--window=2"}, {"repack", "-qd"},
		{"gc", "-q", "--prune=now"},
		{"multi-pack-index", "write"}, {"repack", "-qad", "--depth=1"}, {"commit-graph", "write", "--reachable"},
		{"unpack"}}
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := 0; ctx.Err() == nil; i++ {
		step := steps[rnd.IntN(len(steps))]
		if step[0] == "unpack" {
			id := r.Commit(fmt.Sprint("step ", i))
			step = []string{"update-ref", "refs/other/new", id.String()}
		}
		if _, err := r.Try(step...); err != nil {
			t.Error(err)
			return
		}
	}
}
