package storage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
)

// names are the names that TestResolveAsGit resolves: ordinary, short, strange and hostile ones.
var names = []string{
	"main", "HEAD", "@", "refs/heads/main", "heads/main", "tags/v1", "v1", "v1.0", "both", "refs/both",
	"remotes/origin/main", "origin/main", "origin",
	"refs/remotes/origin/HEAD", "feature/x", "x", "light", "deep", "sym", "dangling", "refs/heads/sym", "missing",
	"refs/heads/missing", "refs", "refs/", "heads",
	"refs/refs/heads/odd", "refs/heads/odd", "-x", "--all", "heads/-x", "é", "a b", "main ", " main", "main\n", "\n",
	"main\x00", "..", "../main", "a..b", "/main",
	"/refs/heads/main", "refs//heads/main", "refs/heads/main/", "./main", "heads/../heads/main", "/etc/passwd", ".",
	"main.lock", "head", "Main", "@{0}", "main^", "main~1", "main:file",
	":/one", "^main", "main^{}", "main@{1}", "-", "refs/heads/*", "refs/stash", strings.Repeat("x", 5000), "0123",
	"tree/v1", "FETCH_HEAD",
}

// TestResolveAsGit compares with git rev-parse.
func TestResolveAsGit(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	repo := r.repo("app.git", "one")
	main := repo.ID("main")
	other := repo.Commit("two", main).String()
	for _, name := range []string{
		"refs/tags/light", "refs/heads/both", "refs/both", "refs/remotes/origin/main", "refs/heads/feature/x",
		"refs/refs/heads/odd", "refs/heads/-x", "refs/heads/é",
	} {
		repo.Git("update-ref", name, other)
	}
	repo.Git("update-ref", "refs/tags/both", main.String())
	repo.Git("tag", "-a", "-m", "t", "v1", "main")
	repo.Git("tag", "-a", "-m", "t", "deep", "v1")
	repo.Git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
	repo.Git("symbolic-ref", "refs/heads/sym", "refs/heads/main")
	repo.Git("symbolic-ref", "refs/heads/dangling", "refs/heads/nothing")
	repo.Git("symbolic-ref", "refs/dangling", "refs/heads/nothing")
	for range 2 {
		for _, name := range names {
			want, gitErr := "", errors.New("no name for a command")
			if !strings.Contains(name, "\x00") {
				want, gitErr = repo.Try("rev-parse", "--verify", "--quiet", "--end-of-options", name)
			}
			if regexp.MustCompile(`[@^~:]`).MatchString(name) && name != "@" {
				gitErr = errors.New("a revision, and no name of a ref")
			}
			got, err := r.Resolve(t.Context(), r.path("app"), name)
			switch {
			case (err == nil) != (gitErr == nil) || err == nil && got.ID.String() != want:
				t.Errorf("%.80q: %s, %v; git says %s, %v", name, got.ID, err, want, gitErr)
			case err != nil && fault.KindOf(err) != fault.NotFound && fault.KindOf(err) != fault.Invalid:
				t.Errorf("%.80q: %v", name, err)
			case err == nil:
				r.detailsAsGit(repo, got)
			}
			exists, _, err := r.Exists(t.Context(), r.path("app"), name)
			_, gitErr = repo.Try("show-ref", "--verify", "--quiet", "--", name)
			if name == "HEAD" || strings.HasPrefix(name, "refs/") && err == nil {
				if exists != (gitErr == nil) {
					t.Errorf("%.80q exists: %v, git says %v", name, exists, gitErr)
				}
			} else if !fault.Is(err, fault.Invalid) {
				t.Errorf("%.80q exists: %v, %v; want an error of kind invalid", name, exists, err)
			}
		}
		repo.Git("pack-refs", "--all")
	}
	repo.Git("update-ref", "refs/heads/"+main.String(), other)
	if _, err := r.Resolve(t.Context(), r.path("app"), main.String()); !fault.Is(err, fault.NotFound) {
		t.Errorf("an object ID: %v", err)
	}
	repo.Git("symbolic-ref", "HEAD", "refs/heads/unborn")
	if _, err := r.Resolve(t.Context(), r.path("app"), "HEAD"); !fault.Is(err, fault.NotFound) ||
		!strings.Contains(err.Error(), "refs/heads/unborn") {
		t.Errorf("an unborn HEAD: %v", err)
	}
	repo.Git("config", "transfer.hideRefs", "refs/heads/feature")
	if _, err := r.Resolve(t.Context(), r.path("app"), "feature/x"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a hidden ref: %v", err)
	}
}

// detailsAsGit compares a ref's full name, what it peels to and where it leads.
func (r *root) detailsAsGit(repo *gittest.Repo, got storage.Resolved) {
	r.t.Helper()
	peeled := ""
	if id := repo.Git("rev-parse", string(got.Name)+"^{}"); id != got.ID.String() {
		peeled = id
	}
	target, _ := repo.Try("symbolic-ref", "-q", string(got.Name))
	ours := ""
	if !got.Peeled.IsZero() {
		ours = got.Peeled.String()
	}
	if ours != peeled || string(got.Target) != target || got.Version.Incarnation == "" || got.Version.Generation == 0 ||
		got.Version.Epoch == 0 {
		r.t.Errorf("%+v; git says peeled %q, target %q", got, peeled, target)
	}
}

func TestResolveMany(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	one, two := r.repo("one.git", "1"), r.repo("two.git", "2")
	one.Git("tag", "-a", "-m", "t", "v1", "main")
	var questions []storage.Question
	for range 50 {
		for _, path := range []string{"one", "two", "one.git", "gone"} {
			for _, name := range []string{"main", "v1", "none", "a..b"} {
				questions = append(questions, storage.Question{Path: r.path(path), Name: name})
			}
		}
	}
	answered := make([]bool, len(questions))
	versions := map[string]git.Version{}
	err := r.ResolveMany(t.Context(), questions, func(i int, got storage.Resolved, err error) {
		q := questions[i]
		if answered[i] {
			t.Errorf("%d is answered twice", i)
		}
		answered[i] = true
		repo := map[string]*gittest.Repo{"one": one, "two": two, "one.git": one}[q.Path.String()]
		kind := fault.NotFound
		if repo != nil && (q.Name == "main" || q.Name == "v1" && repo == one) {
			kind = fault.Internal
			if err != nil || got.Name != git.RefName(map[string]string{"main": "refs/heads/main",
				"v1": "refs/tags/v1"}[q.Name]) {
				t.Errorf("%v: %+v, %v", q, got, err)
			}
			if v, ok := versions[repo.Dir]; ok && v != got.Version {
				t.Errorf("two versions of %s: %v, %v", q.Path, v, got.Version)
			}
			versions[repo.Dir] = got.Version
		} else if repo != nil && q.Name == "a..b" {
			kind = fault.Invalid
		}
		if fault.KindOf(err) != kind {
			t.Errorf("%v: %v, want kind %v", q, err, kind)
		}
	})
	if err != nil || slices.Contains(answered, false) {
		t.Errorf("%v; answered %v", err, answered)
	}
	if err := r.ResolveMany(t.Context(), make([]storage.Question, storage.MaxNames+1), nil); !fault.Is(err,
		fault.Invalid) {
		t.Errorf("too many: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.ResolveMany(ctx, questions, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after its caller has gone: %v", err)
	}
}

// list is a whole list as text, and how many batches it came in.
func (r *root) list(path string, q storage.RefQuery) (lines []string, batches int, next git.RefName, err error) {
	err = r.ListRefs(context.Background(), r.path(path), q, func(b storage.RefBatch) error {
		batches++
		if len(b.Refs) > storage.MaxBatch || b.Version.Epoch == 0 || next != "" {
			r.t.Errorf("a batch of %d, version %v, after the last: %v", len(b.Refs), b.Version, next)
		}
		for _, ref := range b.Refs {
			line := ref.ID.String() + " " + string(ref.Name)
			if !ref.Peeled.IsZero() {
				line += " " + ref.Peeled.String()
			}
			if ref.Target != "" {
				line += " -> " + string(ref.Target)
			}
			lines = append(lines, line)
		}
		next = b.Next
		return nil
	})
	return lines, batches, next, err
}

// many makes a repository with so many refs, most of them packed.
func (r *root) many(path string, n int) *gittest.Repo {
	r.t.Helper()
	repo := r.repo(path, "x")
	repo.Git("tag", "-a", "-m", "t", "v1", "main")
	id, tag := repo.ID("main"), repo.ID("v1")
	repo.Git("pack-refs", "--all")
	var text strings.Builder
	text.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	for i := range n {
		fmt.Fprintf(&text, "%s refs/heads/b%07d\n", id, i)
	}
	fmt.Fprintf(&text, "%s refs/heads/main\n%s refs/tags/v1\n^%s\n", id, tag, id)
	r.do(os.WriteFile(filepath.Join(repo.Dir, "packed-refs"), []byte(text.String()), 0o666))
	repo.Git("update-ref", "refs/heads/b0000003x", id.String())
	repo.Git("tag", "-a", "-m", "t", "v2", "main")
	repo.Git("symbolic-ref", "refs/heads/sym", "refs/heads/main")
	return repo
}

// TestListRefsAsGit compares with git for-each-ref.
func TestListRefsAsGit(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	repo := r.many("app.git", 2500)
	whole := func(args ...string) []string {
		out := repo.Git(append([]string{"for-each-ref",
			"--format=%(objectname) %(refname)%(if)%(*objectname)%(then) %(*objectname)%(end)%(if)%(symref)%(then) -> " +
				"%(symref)%(end)"}, args...)...)
		return slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool { return line == "" })
	}
	for prefix, patterns := range map[string][]string{"": nil, "refs/tags/": {"refs/tags/"},
		"refs/heads/": {"refs/heads/"}, "refs/none/": {"refs/none/"}} {
		got, batches, next, err := r.list("app", storage.RefQuery{Prefix: prefix, Peel: true})
		if want := whole(patterns...); err != nil || next != "" || !slices.Equal(got, want) ||
			batches != max(1, (len(want)+999)/1000) {
			t.Errorf("%q: %d refs in %d batches, %v; want %d", prefix, len(got), batches, err, len(want))
		}
	}
	for _, pattern := range []string{"refs/heads/*", "refs/*/v?", "refs/**/main", "refs/heads/b000000??", "**",
		"refs/heads/main", "x*", "refs/tags/v1*"} {
		got, _, _, err := r.list("app", storage.RefQuery{Pattern: pattern, Peel: true})
		r.do(err)
		var want []string
		for _, line := range whole() {
			if like(pattern).MatchString(strings.Fields(line)[1]) {
				want = append(want, line)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %d refs, want %d", pattern, len(got), len(want))
		}
	}
	if got, _, _, err := r.list("app", storage.RefQuery{Prefix: "refs/tags/", Pattern: "refs/heads/**"}); err != nil ||
		len(got) > 0 {
		t.Errorf("a pattern beside the prefix: %q, %v", got, err)
	}
	if _, _, _, err := r.list("app", storage.RefQuery{Pattern: strings.Repeat("*a", 200)}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a long pattern: %v", err)
	}
	stop := errors.New("enough")
	if err := r.ListRefs(t.Context(), r.path("app"), storage.RefQuery{},
		func(storage.RefBatch) error { return stop }); err != stop {
		t.Errorf("a reader who has enough: %v", err)
	}
}

// like is the regular expression for a pattern.
func like(pattern string) *regexp.Regexp {
	text := regexp.QuoteMeta(pattern)
	text = regexp.MustCompile(`(\\\*){2,}`).ReplaceAllString(text, "(?s:.*)")
	text = strings.ReplaceAll(text, `\*`, "[^/]*")
	return regexp.MustCompile("^(?:" + strings.ReplaceAll(text, `\?`, "[^/]") + ")$")
}

// TestGlob compares with regular expressions.
func TestGlob(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pattern := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "/", "*", "?", "**", "ab"}), 0, 8).Draw(t,
			"pattern"), "")
		name := rapid.StringMatching("[ab/]{0,12}").Draw(t, "name")
		if n := rapid.SampledFrom([]int{0, 0, 1, 55, 60, 62, 63, 64, 122, 127, 190}).Draw(t, "before"); n > 0 {
			pattern, name = strings.Repeat("?", n)+pattern, strings.Repeat("a", n)+name
		}
		g, err := storage.ParseGlob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := g.Match(name), like(pattern).MatchString(name); got != want {
			t.Fatalf("%q matches %q: %v, want %v", pattern, name, got, want)
		}
		if g.Match(name) && !strings.HasPrefix(name, g.Literal()) {
			t.Fatalf("%q matches %q without %q", pattern, name, g.Literal())
		}
	})
}

// A name is matched byte by byte, in one pass. A matcher that backtracks needs minutes for patterns and names like
// these.
func TestGlobsThatGoBack(t *testing.T) {
	t.Parallel()
	name := strings.Repeat(strings.Repeat("a", 250)+"/", 16)
	for _, pattern := range []string{
		"**a*" + strings.Repeat("a", 249) + "b", "**a*" + strings.Repeat("a", 120) + "b",
		"**" + strings.Repeat("*a", 120) + "b",
		strings.Repeat("**a", 85), strings.Repeat("*?", 127) + "/", strings.Repeat("a*", 128), strings.Repeat("?", 256),
	} {
		g, err := storage.ParseGlob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			if part := name[97*i:]; g.Match(part) != like(pattern).MatchString(part) {
				t.Errorf("%.20s... matches what is behind %d bytes: %v", pattern, 97*i, g.Match(part))
			}
		}
	}
}

// TestRefPages reads lists in pages of any size: together they are the whole.
func TestRefPages(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{})
	r.many("app.git", 40)
	rapid.Check(t, func(rt *rapid.T) {
		q := storage.RefQuery{
			Prefix: rapid.SampledFrom([]string{"", "refs/heads/b", "refs/tags/", "refs/heads/b0000003", "none"}).Draw(rt,
				"prefix"),
			Pattern: rapid.SampledFrom([]string{"", "**1*", "refs/*/v*", "refs/heads/*"}).Draw(rt, "pattern"),
		}
		want, _, _, err := r.list("app", q)
		if err != nil {
			rt.Fatal(err)
		}
		var got []string
		for {
			q.Limit = rapid.IntRange(1, 15).Draw(rt, "limit")
			page, _, next, err := r.list("app", q)
			if err != nil || len(page) > q.Limit || next != "" && len(page) < q.Limit {
				rt.Fatalf("%d of %d, next %q, %v", len(page), q.Limit, next, err)
			}
			got = append(got, page...)
			if q.After = next; next == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("%q\nwant\n%q", got, want)
		}
	})
}

// TestManyRefsAreBounded lists 200,000 refs, and resolves among them, in memory that does not grow with them.
func TestManyRefsAreBounded(t *testing.T) {
	r := newRoot(t, storage.Options{})
	const n = 200_000
	r.many("app.git", n)
	_, err := r.Resolve(t.Context(), r.path("app"), "main")
	r.do(err)
	live := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, most, count := live(), uint64(0), 0
	r.do(r.ListRefs(t.Context(), r.path("app"), storage.RefQuery{Peel: true}, func(b storage.RefBatch) error {
		if count += len(b.Refs); count%20_000 < storage.MaxBatch {
			most = max(most, live())
		}
		return nil
	}))
	if count != n+5 || most > before+4<<20 {
		t.Errorf("%d refs, %d bytes more in memory", count, int64(most)-int64(before))
	}
	name := fmt.Sprintf("b%07d", n/2)
	if allocated := testing.AllocsPerRun(100, func() {
		_, _ = r.Resolve(t.Context(), r.path("app"),
			name)
	}); allocated > 100 {
		t.Errorf("Resolve makes %v allocations", allocated)
	}
}

// TestResolveInTables resolves and lists refs in reftables.
func TestResolveInTables(t *testing.T) {
	t.Parallel()
	program := newerGit(t)
	r, _ := newTables(t, program)
	dir := filepath.Join(r.dir, "app.git")
	by(t, program, r.dir, "", "init", "-q", "--bare", "--ref-format=reftable", "--initial-branch=main", dir)
	tree := by(t, program, dir, "", "mktree")
	id := by(t, program, dir, "", "commit-tree", "-m", "x", tree)
	by(t, program, dir, "", "update-ref", "refs/heads/main", id)
	got, err := r.Resolve(t.Context(), r.path("app"), "main")
	if err != nil || got.ID.String() != id {
		t.Errorf("%+v, %v", got, err)
	}
	by(t, program, dir, "", "update-ref", "refs/heads/other", id)
	lines, _, _, err := r.list("app", storage.RefQuery{})
	if want := []string{id + " refs/heads/main", id + " refs/heads/other"}; err != nil || !slices.Equal(lines, want) {
		t.Errorf("%q, %v", lines, err)
	}
	if again, err := r.Resolve(t.Context(), r.path("app"), "HEAD"); err != nil ||
		again.Version.Generation <= got.Version.Generation || again.Target != "refs/heads/main" {
		t.Errorf("%+v, %v", again, err)
	}
}

func BenchmarkResolve(b *testing.B) {
	for _, n := range []int{200, 200_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := b.TempDir()
			repo := gittest.InitAt(b, filepath.Join(dir, "app.git"))
			id := repo.Commit("x")
			var text strings.Builder
			text.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
			for i := range n {
				fmt.Fprintf(&text, "%s refs/heads/b%07d\n", id, i)
			}
			if err := os.WriteFile(filepath.Join(repo.Dir, "packed-refs"), []byte(text.String()), 0o666); err != nil {
				b.Fatal(err)
			}
			node, err := storage.New(uploadpack.New(&specs{}, uploadpack.Options{}), storage.Options{Root: dir})
			if err != nil {
				b.Fatal(err)
			}
			defer node.Close()
			path, err := git.ParseRepoPath("app")
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i = (i + 7919) % n
				if got, err := node.Resolve(b.Context(), path, fmt.Sprintf("b%07d", i)); err != nil || got.ID != id {
					b.Fatal(err)
				}
			}
		})
	}
}
