package lookup

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

func revisionsOf(t testing.TB, r *repo.Repo) *Revisions {
	t.Helper()
	snap, err := r.Refs.Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return New(Options{}).Revisions(context.Background(), r, snap)
}

// asBatchCheck formats a result like git cat-file --batch-check.
func asBatchCheck(revision string, found Revision, err error) string {
	switch fault.KindOf(err) {
	case fault.Exists:
		return revision + " ambiguous"
	case fault.NotFound, fault.Invalid:
		return revision + " missing"
	}
	if err != nil {
		return err.Error()
	}
	return found.ID.String() + " " + found.Type.String()
}

// resolvesAsGit compares the results of revisions with git. One git process answers all of them like git rev-parse,
// which checks some of the answers.
func resolvesAsGit(t *testing.T, r *gittest.Repo, v *Revisions, revisions []string) {
	t.Helper()
	want := strings.Split(strings.TrimSuffix(r.GitIn(strings.Join(revisions, "\n")+"\n", "cat-file",
		"--batch-check=%(objectname) %(objecttype)"), "\n"), "\n")
	if len(want) != len(revisions) {
		t.Fatalf("%d answers of git to %d questions", len(want), len(revisions))
	}
	counts := map[string]int{}
	for i, revision := range revisions {
		found, err := v.Resolve(revision)
		have := asBatchCheck(revision, found, err)
		// If an abbreviation within a longer revision is ambiguous, git reports the whole as missing. For names of git
		// describe it is the other way round.
		if have != want[i] && !(fault.Is(err, fault.Exists) && strings.HasSuffix(want[i], " missing")) {
			t.Errorf("%q:\nhave %s (%v)\nwant %s", revision, have, err, want[i])
		}
		_, outcome, _ := strings.Cut(want[i], " ")
		counts[outcome]++
		if i%50 != 0 {
			continue
		}
		text, gitErr := r.Try("rev-parse", "--verify", "--quiet", "--end-of-options", revision)
		if ours := ""; err == nil {
			ours = found.ID.String()
			if gitErr != nil || strings.TrimSpace(text) != ours {
				t.Errorf("%q is %s, git rev-parse says %q, %v", revision, ours, text, gitErr)
			}
			// full IDs git does not look up
		} else if id, full := git.ParseObjectID(revision); gitErr == nil && (full != nil || id.Format() != v.repo.Format) {
			t.Errorf("%q: %v, git rev-parse says %q", revision, err, text)
		}
	}
	t.Logf("%d revisions: %v", len(revisions), counts)
}

// revisionMaker invents revisions of a repository.
type revisionMaker struct {
	rnd   *rand.Rand
	bases []string
}

func newRevisionMaker(r *gittest.Repo, seed uint64) *revisionMaker {
	m := &revisionMaker{rnd: rand.New(rand.NewPCG(seed, 1)),
		bases: []string{"HEAD", "@", "main", "heads/main", "refs/heads/main", "origin", "nothing", "v1-3-g", "-g"}}
	for line := range strings.Lines(r.Git("for-each-ref", "--format=%(refname)")) {
		name := strings.TrimSpace(line)
		m.bases = append(m.bases, name, strings.TrimPrefix(name, "refs/"), name[strings.LastIndexByte(name, '/')+1:])
		if parts := strings.SplitN(name, "/", 3); len(parts) == 3 {
			m.bases = append(m.bases, parts[2])
		}
	}
	ids := r.Objects()
	prefixes := map[string][]string{}
	for _, id := range ids {
		for n := 4; n < 8; n++ {
			prefixes[id[:n]] = append(prefixes[id[:n]], id)
		}
	}
	for prefix, ids := range prefixes {
		if len(ids) > 1 {
			m.bases = append(m.bases, prefix, strings.ToUpper(prefix), "x-1-g"+prefix, ids[0][:len(prefix)+1],
				ids[1][:len(prefix)+3])
		}
	}
	slices.Sort(m.bases)
	for range 200 {
		id := ids[m.rnd.IntN(len(ids))]
		m.bases = append(m.bases, id, id[:1+m.rnd.IntN(len(id))], strings.ToUpper(id[:4+m.rnd.IntN(20)]), "v1-12-g"+id[:7])
	}
	return m
}

var revisionSuffixes = []string{
	"^", "~", "^0", "~0", "^1", "^2", "^3", "~1", "~2", "~3", "~7", "~40", "^{}", "^{commit}", "^{tree}", "^{tag}",
	"^{blob}", "^{object}", "^{nothing}",
	"^{commit", "^{}}", "^{tree}x}", "~99999999999999999999", "^2147483648", "~2147483647", "^^", "~~", "^00002",
	"^{Commit}", "^-2", "~+1", "^{commit}^{tree}",
}

func (m *revisionMaker) next() string {
	text := m.bases[m.rnd.IntN(len(m.bases))]
	for m.rnd.IntN(3) > 0 && len(text) < 200 {
		text += revisionSuffixes[m.rnd.IntN(len(revisionSuffixes))]
	}
	if m.rnd.IntN(20) == 0 && len(text) > 0 {
		at := m.rnd.IntN(len(text))
		text = text[:at] + text[at+1:]
	}
	if text == "" || text[0] == '^' || strings.HasPrefix(text, "-") && m.rnd.IntN(2) > 0 {
		return "HEAD"
	}
	return text
}

func TestRevisionsAsGit(t *testing.T) {
	t.Parallel()
	for seed, shape := range []gittest.Shape{
		{Commits: 500, Merge: 0.3, Skew: true},
		{Commits: 300, Merge: 0.2, Format: "sha256"},
		{Commits: 60, Merge: 0.9, Branches: 7},
	} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if testing.Short() && shape.Commits > 60 {
				t.Skip("a smaller history is enough with -short")
			}
			t.Parallel()
			r := gittest.Random(t, uint64(seed), shape)
			oddRefs(r)
			for i, prepare := range []func(){
				func() {},
				func() { r.Git("pack-refs", "--all"); r.Git("commit-graph", "write", "--reachable") },
				func() { r.Git("repack", "-a", "-d", "--max-pack-size=1m"); r.Git("multi-pack-index", "write") },
				func() { moreObjects(r) },
				func() { r.Git("repack", "-q"); unpackOne(t, r) },
				func() { r.Git("config", "core.disambiguate", "blob") },
				func() { r.Git("config", "core.disambiguate", "TreeIsh") },
				func() {
					r.Git("config", "--unset", "core.disambiguate")
					r.Git("-c", "pack.indexVersion=1", "repack", "-q", "-a", "-d")
				},
			} {
				prepare()
				maker := newRevisionMaker(r, uint64(i))
				var revisions []string
				for range 1500 {
					revisions = append(revisions, maker.next())
				}
				resolvesAsGit(t, r, revisionsOf(t, openRepo(t, r)), revisions)
			}
		})
	}
}

// oddRefs makes refs whose names look like other revisions.
func oddRefs(r *gittest.Repo) {
	head := r.ID("HEAD").String()
	r.Git("update-ref", "refs/heads/"+head[:7], "HEAD~2")
	r.Git("update-ref", "refs/heads/v1-1-g"+head[:8], "HEAD~3")
	r.Git("update-ref", "refs/tags/main", "HEAD~1")
	r.Git("update-ref", "refs/heads/refs/heads/main", "HEAD~2")
	r.Git("update-ref", "refs/remotes/origin/main", "HEAD")
	r.Git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
	r.Git("symbolic-ref", "refs/heads/alias", "refs/tags/v1")
	r.Git("symbolic-ref", "refs/heads/dangling", "refs/heads/none")
}

// moreObjects adds loose ones: abbreviations become ambiguous.
func moreObjects(r *gittest.Repo) {
	var names strings.Builder
	dir := filepath.Join(filepath.Dir(r.Dir), filepath.Base(r.Dir)+".files")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		panic(err)
	}
	for i := range 400 {
		name := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(name, fmt.Appendf(nil, "more %d", i), 0o600); err != nil {
			panic(err)
		}
		fmt.Fprintln(&names, name)
	}
	r.GitIn(names.String(), "hash-object", "-w", "--stdin-paths")
}

// unpackOne has objects twice, loose and in a pack.
func unpackOne(t *testing.T, r *gittest.Repo) {
	for i, id := range r.Objects() {
		if i%7 != 0 {
			continue
		}
		path := filepath.Join(r.Dir, "objects", id[:2], id[2:])
		if _, err := os.Stat(path); err == nil {
			continue
		}
		typ := strings.TrimSpace(r.Git("cat-file", "-t", id))
		if typ == "blob" {
			parsed := git.MustParseObjectID(id)
			if parsed.Format() == git.SHA1 {
				store(t, r, git.Blob, []byte(r.Git("cat-file", "blob", id)))
			}
		}
		if i > 300 {
			return
		}
	}
}

func TestRevisionsOfPartsOfARepository(t *testing.T) {
	t.Parallel()
	from := gittest.Random(t, 5, gittest.Shape{Commits: 200, Merge: 0.3})
	for name, clone := range map[string][]string{"shallow": {"--depth", "3", "--no-single-branch", "file://" + from.Dir},
		"shared": {"--shared", from.Dir}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "clone.git")
			from.Git(append(append([]string{"clone", "-q", "--bare"}, clone...), dir)...)
			r := gittest.At(t, dir)
			r.Git("update-ref", "refs/heads/own", r.Commit("own", r.ID("HEAD")).String())
			moreObjects(r)
			maker := newRevisionMaker(r, 9)
			var revisions []string
			for range 2000 {
				revisions = append(revisions, maker.next())
			}
			resolvesAsGit(t, r, revisionsOf(t, openRepo(t, r)), revisions)
		})
	}
}

func TestRevisionsOfABrokenRepository(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	one := r.Commit("one")
	two := r.Commit("two", one)
	r.Git("update-ref", "refs/heads/main", two.String())
	r.Git("tag", "-a", "-m", "t", "v1", one.String())
	r.Git("config", "transfer.hideRefs", "refs/hidden")
	r.Git("update-ref", "refs/hidden/x", one.String())
	r.Git("update-ref", "refs/heads/gone", one.String())
	if err := os.Remove(loosePath(r, one)); err != nil {
		t.Fatal(err)
	}
	v := revisionsOf(t, openRepo(t, r))
	long := strings.Repeat("^0", MaxRevision/2-2)
	for revision, want := range map[string]fault.Kind{
		"main": 0, "main^{tree}": 0, "v1": 0, "main~1": fault.Corrupt, "main^": fault.Corrupt, "v1^{}": fault.Corrupt,
		"v1^{commit}": fault.Corrupt, "gone": fault.Corrupt,
		one.String(): fault.NotFound, one.String()[:8]: fault.NotFound, "hidden/x": fault.NotFound,
		"refs/hidden/x": fault.NotFound, "main~2": fault.Corrupt,
		"main^2": fault.NotFound, "main^{blob}": fault.NotFound, "main~4294967296": fault.Corrupt,
		strings.Repeat("0", 40): fault.NotFound, "": 0, "main" + long: 0,
		"main" + long + long: fault.Invalid, "main..main": fault.Invalid, "^main": fault.Invalid, "main^@": fault.Invalid,
		"main@{0}": fault.Invalid, "main:x": fault.Invalid,
		":/x": fault.Invalid, "main^{/x}": fault.Invalid, "~1": fault.Invalid, "^{}": fault.Invalid, "a\x00b": fault.Invalid,
		"main\n": fault.Invalid, "--all": fault.NotFound,
		strings.Repeat("^", 4000): fault.Invalid, "main" + strings.Repeat("^{}", 2000): 0,
		strings.Repeat("}", 5000): fault.Invalid, strings.Repeat("a/", 3000) + "a": fault.Invalid,
	} {
		found, err := v.Resolve(revision)
		if want == 0 && err == nil && !found.ID.IsZero() && found.Type != 0 {
			continue
		}
		if want == 0 || !fault.Is(err, want) {
			t.Errorf("%.80q: %+v, %v; want an error of kind %v", revision, found, err, want)
		}
	}
	v.steps = maxSteps
	if _, err := v.Resolve("main~1"); !fault.Is(err, fault.Invalid) {
		t.Errorf("after too many steps: %v", err)
	}
	ended, end := context.WithCancel(context.Background())
	end()
	v.ctx = ended
	if _, err := v.Resolve("main~1"); !fault.Is(err, fault.Cancelled) {
		t.Errorf("nobody waits: %v", err)
	}
}

func FuzzRevision(f *testing.F) {
	r := gittest.Init(f)
	one := r.Commit("one")
	r.Git("update-ref", "refs/heads/main", r.Commit("two", one).String())
	r.Git("tag", "-a", "-m", "t", "v1", "main")
	v := revisionsOf(f, openRepo(f, r))
	for _, seed := range append([]string{"main", "HEAD~1^{tree}", "v1^{}", one.String()[:5] + "^0", "v1-0-g" +
		one.String()[:7], "@{u}", ":/x", "a..b"}, revisionSuffixes...) {
		f.Add(seed)
		f.Add("main" + seed)
	}
	f.Fuzz(func(t *testing.T, revision string) {
		found, err := v.Resolve(revision)
		switch fault.KindOf(err) {
		case fault.NotFound, fault.Invalid, fault.Exists:
			return
		}
		if err != nil {
			t.Fatalf("%q: %v", revision, err)
		}
		if again, err := v.Resolve(found.ID.String()); err != nil || again.ID != found.ID || again.Type != found.Type {
			t.Fatalf("%q is %v, which is %v, %v", revision, found, again, err)
		}
	})
}
