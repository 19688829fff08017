package storage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/ingest"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// newIngester makes a root that can take over states of other repositories.
func newIngester(t *testing.T, o storage.Options) *root {
	t.Helper()
	limits := process.Limits{Slots: 4, Queue: 100}
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		ingest.Class: limits, places.ClassManage: limits, places.ClassMaintain: limits}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	o.Runner = runner
	return newRoot(t, o)
}

// stateOf returns the state of a repository for Ingest. fetches counts calls of Fetch.
func stateOf(t *testing.T, from *gittest.Repo, fetches *int) ingest.State {
	t.Helper()
	in := ingest.State{Format: from.Format()}
	if head, err := from.Try("symbolic-ref", "-q", "HEAD"); err == nil {
		in.Head = git.RefName(head)
	}
	for line := range strings.Lines(from.Git("for-each-ref", "--format=%(objectname) %(refname)")) {
		id, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		in.Refs = append(in.Refs, refs.Ref{Name: git.RefName(name), ID: git.MustParseObjectID(id)})
	}
	in.Fetch = func(_ context.Context, wants, haves []git.ObjectID) (io.ReadCloser, error) {
		*fetches++
		var list strings.Builder
		for _, id := range wants {
			fmt.Fprintln(&list, id)
		}
		for _, id := range haves {
			if _, err := from.Try("cat-file", "-e", id.String()); err == nil {
				fmt.Fprintf(&list, "^%v\n", id)
			}
		}
		out, err := from.TryIn(list.String(), "pack-objects", "--revs", "--stdout", "--thin", "-q")
		return io.NopCloser(strings.NewReader(out + "\n")), err // Run drops a final newline, and index-pack ignores it
	}
	return in
}

// sameRefs compares a repository below the root with the one it follows.
func (r *root) sameRefs(path string, from *gittest.Repo, seed uint64) {
	r.t.Helper()
	made := gittest.At(r.t, filepath.Join(r.dir, path))
	const format = "--format=%(objectname) %(*objectname) %(refname)"
	if got, want := made.Git("for-each-ref", format), from.Git("for-each-ref", format); got != want {
		r.t.Fatalf("seed %d: refs\n%s\nwant\n%s", seed, got, want)
	}
	if got, want := made.Git("symbolic-ref", "HEAD"), from.Git("symbolic-ref", "HEAD"); got != want {
		r.t.Fatalf("seed %d: HEAD is %s, want %s", seed, got, want)
	}
	made.Git("fsck", "--full", "--strict", "--no-dangling", "--connectivity-only")
	if left, _ := filepath.Glob(made.Dir + "/objects/tmp_objdir*"); len(left) > 0 {
		r.t.Fatalf("seed %d: left %q", seed, left)
	}
}

// TestIngestFollows takes over states of repositories that change at random. There are commits, rewinds, deleted,
// created and renamed refs, tags of tags, names below others, names that differ in case, and another HEAD.
func TestIngestFollows(t *testing.T) {
	t.Parallel()
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := newIngester(t, storage.Options{})
		from := gittest.Random(t, seed, gittest.Shape{Commits: 20, Format: format.String()})
		_, err := r.Create(t.Context(), r.path("team/app"), storage.CreateOptions{Format: format})
		r.do(err)
		parent := git.MustParseObjectID(from.Git("rev-list", "--all", "--max-count=1"))
		names := []string{"heads/a", "heads/a/b", "heads/A", "heads/main", "heads/main/x", "tags/t", "tags/T/u",
			"pull/1/head"}
		for round := range 12 {
			for range rnd.IntN(4) {
				name := "refs/" + names[rnd.IntN(len(names))]
				for line := range strings.Lines(from.Git("for-each-ref", "--format=%(refname)")) {
					if old := strings.TrimSuffix(line, "\n"); strings.HasPrefix(old+"/", name+"/") ||
						strings.HasPrefix(name+"/", old+"/") {
						from.Git("update-ref", "-d", old)
					}
				}
				switch id := from.Commit(fmt.Sprint(rnd.Uint64()), parent); {
				case rnd.IntN(4) == 0: // stays deleted
				case strings.HasPrefix(name, "refs/tags/"):
					from.Git("tag", "-a", "-m", "x", strings.TrimPrefix(name, "refs/tags/"), id.String())
				default:
					from.Git("update-ref", name, id.String())
				}
			}
			if rnd.IntN(3) == 0 {
				from.Git("symbolic-ref", "HEAD", []string{"refs/heads/feature/a", "refs/heads/main"}[rnd.IntN(2)])
			}
			fetches := 0
			in := stateOf(t, from, &fetches)
			rnd.Shuffle(len(in.Refs), func(i, j int) { in.Refs[i], in.Refs[j] = in.Refs[j], in.Refs[i] })
			before, _ := r.refs("team/app")
			got, err := r.Ingest(t.Context(), r.path("team/app"), in)
			if err != nil {
				t.Fatalf("seed %d, round %d: %v", seed, round, err)
			}
			r.sameRefs("team/app.git", from, seed)
			after, err := r.refs("team/app.git")
			r.do(err)
			if changed := got.Created+got.Changed+got.Deleted > 0 || got.Head; changed != (before != after) && !got.Head {
				t.Fatalf("seed %d, round %d: result %+v, changed %t", seed, round, got, before != after)
			}
			if again, err := r.Ingest(t.Context(), r.path("team/app"), in); err != nil || fetches > 1 ||
				again.Created+again.Changed+again.Deleted > 0 || again.Head {
				t.Fatalf("seed %d, round %d: again %+v, %v; %d fetches", seed, round, again, err, fetches)
			}
			if round%5 == 4 {
				_, err := r.Maintain(t.Context(), r.path("team/app"))
				r.do(err)
			}
		}
	}
}

// Bad objects, missing objects, a pack that ends early and one that is too large change no ref and leave nothing.
func TestIngestRefuses(t *testing.T) {
	t.Parallel()
	r := newIngester(t, storage.Options{})
	from := gittest.Init(t)
	from.Git("update-ref", "refs/heads/main", from.Commit("x").String())
	fetches := 0
	path := r.path("app")
	_, err := r.Create(t.Context(), path, storage.CreateOptions{})
	r.do(err)
	_, err = r.Ingest(t.Context(), path, stateOf(t, from, &fetches))
	r.do(err)
	made := gittest.At(t, filepath.Join(r.dir, "app.git"))
	before := made.Git("for-each-ref")
	good := from.Commit("y", from.ID("main"))
	bad := git.MustParseObjectID(from.GitIn("tree "+from.Git("rev-parse", "main^{tree}")+"\nauthor x\ncommitter x\n\nx",
		"hash-object", "-t", "commit", "-w", "--stdin", "--literally"))
	hole := from.CommitTree("hole", "100644 blob "+strings.Repeat("1", 40)+"\tfile\n", from.ID("main"))
	failed := errors.New("the connection failed")
	pack := func(ids ...git.ObjectID) []byte {
		var list bytes.Buffer
		for _, id := range ids {
			fmt.Fprintf(&list, "%v\n%v^{tree}\n", id, id)
		}
		var objects strings.Builder
		for line := range strings.Lines(from.GitIn(list.String(), "cat-file", "--batch-check=%(objectname)")) {
			objects.WriteString(line)
		}
		return []byte(from.GitIn(objects.String(), "pack-objects", "--stdout", "-q") + "\n")
	}
	for name, test := range map[string]struct {
		tip  git.ObjectID
		pack io.Reader
		kind fault.Kind
		edit func(*ingest.State)
	}{
		"a bad object":      {tip: bad, pack: bytes.NewReader(pack(bad)), kind: fault.Corrupt},
		"a missing blob":    {tip: hole, pack: bytes.NewReader(pack(hole)), kind: fault.Corrupt},
		"other objects":     {tip: good, pack: bytes.NewReader(pack(from.ID("main"))), kind: fault.Corrupt},
		"no pack":           {tip: good, pack: strings.NewReader("no pack"), kind: fault.Corrupt},
		"half a pack":       {tip: good, pack: bytes.NewReader(pack(good)[:40]), kind: fault.Corrupt},
		"a lost connection": {tip: good, pack: &failing{pack(good)[:40], failed}, kind: fault.Internal},
		"a large pack": {tip: good, pack: bytes.NewReader(pack(good)), kind: fault.Invalid,
			edit: func(in *ingest.State) { in.MaxPack = 40 }},
		"another format": {tip: good, kind: fault.Invalid, edit: func(in *ingest.State) { in.Format = git.SHA256 }},
	} {
		in := stateOf(t, from, &fetches)
		in.Refs = append(in.Refs, refs.Ref{Name: "refs/heads/next", ID: test.tip})
		in.Fetch = func(context.Context, []git.ObjectID, []git.ObjectID) (io.ReadCloser, error) {
			return io.NopCloser(test.pack), nil
		}
		if test.edit != nil {
			test.edit(&in)
		}
		_, err := r.Ingest(t.Context(), path, in)
		if err == nil || fault.KindOf(err) != test.kind {
			t.Errorf("%s: error %v, want one of kind %v", name, err, test.kind)
		}
		if got := made.Git("for-each-ref"); got != before {
			t.Errorf("%s: refs are\n%s\nwant\n%s", name, got, before)
		}
	}
	if left, _ := filepath.Glob(made.Dir + "/objects/*/*"); slices.ContainsFunc(left, func(path string) bool {
		return strings.Contains(path, "tmp_")
	}) {
		t.Errorf("left: %q", left)
	}
}

// failing is a reader that ends with an error.
type failing struct {
	content []byte
	err     error
}

func (f *failing) Read(p []byte) (int, error) {
	if len(f.content) == 0 {
		return 0, f.err
	}
	n := copy(p, f.content)
	f.content = f.content[n:]
	return n, nil
}

// Loose refs are replaced too, and leftovers of a killed process are removed.
func TestIngestLeftovers(t *testing.T) {
	t.Parallel()
	r := newIngester(t, storage.Options{})
	from := gittest.Init(t)
	from.Git("update-ref", "refs/heads/main", from.Commit("x").String())
	made := r.repo("app.git", "old")
	made.Git("update-ref", "refs/heads/other", "main")
	for _, name := range []string{"objects/tmp_objdir-ingest-1/pack/tmp_pack_1", "objects/pack/tmp_idx_2",
		"packed-refs.lock", "HEAD.lock"} {
		path := filepath.Join(made.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	r.do(r.RemoveIngestLeftovers(r.path("app")))
	fetches := 0
	got, err := r.Ingest(t.Context(), r.path("app"), stateOf(t, from, &fetches))
	if err != nil || got.Changed != 1 || got.Deleted != 1 {
		t.Fatalf("Ingest: %+v, %v; want one change and one deletion", got, err)
	}
	r.sameRefs("app.git", from, 0)
	if left := made.Git("count-objects", "-v"); !strings.Contains(left, "garbage: 0") {
		t.Errorf("left: %s", left)
	}
}

// Half a million refs are taken over, and one of them changes.
func TestIngestManyRefs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	r := newIngester(t, storage.Options{})
	from := gittest.Init(t)
	from.Git("update-ref", "refs/heads/main", from.Commit("x").String())
	next := from.Commit("y", from.ID("main"))
	fetches := 0
	in := stateOf(t, from, &fetches)
	for i := range 500_000 {
		in.Refs = append(in.Refs, refs.Ref{Name: git.RefName(fmt.Sprintf("refs/pull/%d/head", i)), ID: in.Refs[0].ID})
	}
	_, err := r.Create(t.Context(), r.path("app"), storage.CreateOptions{})
	r.do(err)
	for _, want := range []ingest.Result{{Created: 500_001}, {Changed: 1}, {Deleted: 1}} {
		start := time.Now()
		got, err := r.Ingest(t.Context(), r.path("app"), in)
		if err != nil || got.Created != want.Created || got.Changed != want.Changed || got.Deleted != want.Deleted {
			t.Fatalf("Ingest of %d refs: %+v, %v; want %+v", len(in.Refs), got, err, want)
		}
		t.Logf("created %d, changed %d, deleted %d in %v", got.Created, got.Changed, got.Deleted, time.Since(start))
		if from.Git("update-ref", "refs/heads/main", next.String()); want.Created > 0 {
			in.Refs[250_000].ID = next
		} else {
			in.Refs = in.Refs[:len(in.Refs)-1]
		}
	}
}
