package storage_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
)

func question(t testing.TB, path, revision string) node.Question {
	t.Helper()
	parsed, err := git.ParseRepoPath(path)
	if err != nil {
		t.Fatal(err)
	}
	return node.Question{Repository: parsed, Revision: revision}
}

func TestResolveRevisions(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	app, lib := r.repo("app.git", "one"), r.repo("team/lib.git", "two", "--object-format=sha256")
	app.Git("update-ref", "refs/heads/main", app.Commit("three", app.ID("main")).String())
	app.Git("config", "transfer.hideRefs", "refs/hidden")
	app.Git("update-ref", "refs/hidden/x", app.Commit("secret").String())

	resolver := storage.Resolver{Node: r.Node}
	results, err := resolver.Resolve(context.Background(), []node.Question{
		question(t, "app", ""), question(t, "team/lib", "main^{tree}"), question(t, "app.git", "main~1"),
		question(t, "nothing", "main"),
		question(t, "app", "none"), question(t, "app", "a b"), question(t, "app", "hidden/x"),
		question(t, "team/lib", lib.ID("main").String()[:10]),
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		id, ref string
		typ     git.ObjectType
		kind    fault.Kind
	}{
		{id: app.ID("main").String(), ref: "refs/heads/main", typ: git.Commit},
		{id: lib.ID("main^{tree}").String(), ref: "refs/heads/main", typ: git.Tree},
		{id: app.ID("main~1").String(), ref: "refs/heads/main", typ: git.Commit},
		{kind: fault.NotFound}, {kind: fault.NotFound}, {kind: fault.Invalid}, {kind: fault.NotFound},
		{id: lib.ID("main").String(), typ: git.Commit},
	} {
		have := results[i]
		if want.id == "" {
			if !fault.Is(have.Err, want.kind) {
				t.Errorf("%d: %v, want an error of kind %v", i, have, want.kind)
			}
			continue
		}
		if have.Err != nil || have.ID.String() != want.id || have.Ref != want.ref || have.Type != want.typ ||
			have.Version.Generation == 0 {
			t.Errorf("%d: %+v, want %+v", i, have, want)
		}
	}
	if a, b := results[0].Version, results[2].Version; a != b { // by two of its paths
		t.Errorf("one repository in two states: %v and %v", a, b)
	}
	if _, err := resolver.Resolve(context.Background(), make([]node.Question, storage.MaxNames+1)); !fault.Is(err,
		fault.Invalid) {
		t.Errorf("too many: %v", err)
	}
	ended, end := context.WithCancel(context.Background())
	end()
	if _, err := resolver.Resolve(ended, []node.Question{question(t, "app", "")}); !fault.Is(err, fault.Cancelled) {
		t.Errorf("nobody waits: %v", err)
	}
}

// A reader of a fork learns nothing of objects that are in the lender only, and not in the fork's own history. The
// existence of an object, the rest of an abbreviated ID and the content of a commit stay hidden.
func TestResolveRevisionsOfAFork(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	lender, fork := r.repo("lender.git", "one"), r.repo("fork.git", "unrelated")
	one := lender.ID("main")
	secret := lender.Commit("secret", one)
	lender.Git("update-ref", "refs/heads/secret", secret.String())
	lender.Git("tag", "-a", "-m", "t", "v1", "main")
	if err := os.WriteFile(filepath.Join(fork.Dir, "objects/info/alternates"), []byte(lender.Dir+"/objects\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	fork.Git("update-ref", "refs/heads/main", one.String())
	fork.Git("update-ref", "refs/tags/v1", lender.ID("v1").String())

	resolver := storage.Resolver{Node: r.Node}
	for revision, want := range map[string]git.ObjectID{
		"main^{tree}": lender.ID("main^{tree}"), one.String(): one, one.String()[:12] + "^{commit}": one,
		lender.ID("v1").String()[:12]: lender.ID("v1"),
		secret.String():               {}, secret.String()[:12]: {}, secret.String() + "~1": {},
		secret.String() + "^{tree}":              {},
		"v1-1-g" + secret.String()[:12]:          {},
		lender.ID("secret^{tree}").String()[:12]: {},
	} {
		results, err := resolver.Resolve(context.Background(), []node.Question{question(t, "fork", revision)})
		if err != nil {
			t.Fatal(err)
		}
		if have := results[0]; want.IsZero() && !fault.Is(have.Err, fault.NotFound) || !want.IsZero() &&
			(have.Err != nil || have.ID != want) {
			t.Errorf("%s: %+v, want %s", revision, have, want)
		}
	}
	if results, err := resolver.Resolve(context.Background(), []node.Question{question(t, "lender",
		secret.String()[:12])}); err != nil || results[0].ID != secret {
		t.Errorf("of the lender itself: %+v, %v", results, err)
	}
	many := make([]node.Question, 101)
	for i := range many {
		many[i] = question(t, "fork", one.String())
	}
	if results, err := resolver.Resolve(context.Background(), many); err != nil || results[99].Err != nil ||
		!fault.Is(results[100].Err, fault.Invalid) {
		t.Errorf("very many: %v, %v, %v", results[99], results[100], err)
	}
}

func TestResolverWatches(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{CheckInterval: 10 * time.Millisecond})
	app := r.repo("app.git", "one")
	resolver, q := storage.Resolver{Node: r.Node}, question(t, "app", "main")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	events := make(chan node.Event, 100)
	go resolver.Watch(ctx, []node.Known{{Repository: q.Repository}},
		func(e node.Event) error { events <- e; return nil })
	first := <-events
	app.Git("update-ref", "refs/heads/main", app.Commit("two").String())
	second := <-events
	if second.Gone || second.Version.Epoch != first.Version.Epoch ||
		second.Version.Generation <= first.Version.Generation {
		t.Errorf("after a change %+v, before it %+v", second, first)
	}
	results, err := resolver.Resolve(ctx, []node.Question{q})
	if err != nil || results[0].Version.Epoch != second.Version.Epoch ||
		results[0].Version.Generation < second.Version.Generation {
		t.Errorf("an answer of version %+v, %v; the event's is %+v", results, err, second)
	}
	go resolver.Watch(ctx, []node.Known{{Repository: q.Repository, Version: second.Version},
		{Repository: question(t, "none", "").Repository}}, func(e node.Event) error { events <- e; return nil })
	for range 2 {
		if e := <-events; e.Gone != (e.Repository != q.Repository) {
			t.Errorf("%+v", e)
		}
	}
}

func BenchmarkResolveRevisions(b *testing.B) {
	dir := b.TempDir()
	resolver, err := storage.New(uploadpack.New(nil, uploadpack.Options{}), storage.Options{Root: dir})
	if err != nil {
		b.Fatal(err)
	}
	defer resolver.Close()
	repo := gittest.InitAt(b, dir+"/app.git")
	id := repo.Commit("0")
	for i := range 100 {
		id = repo.Commit(fmt.Sprint(i), id)
	}
	repo.Git("update-ref", "refs/heads/main", id.String())
	repo.Git("repack", "-a", "-d", "-q")
	repo.Git("prune-packed")
	repo.Git("commit-graph", "write", "--reachable")
	time.Sleep(2 * time.Second) // its files are as old as those of most
	for _, revision := range []string{"HEAD", "main", "main~50", "main^{tree}", id.String(), id.String()[:8]} {
		b.Run(revision, func(b *testing.B) {
			b.ReportAllocs()
			q := []node.Question{question(b, "app", revision)}
			var took []time.Duration
			for b.Loop() {
				begun := time.Now()
				if results, err := resolver.ResolveRevisions(context.Background(), q); err != nil || results[0].Err != nil {
					b.Fatal(results, err)
				}
				took = append(took, time.Since(begun))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
		})
	}
}
