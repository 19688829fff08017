package sourcetest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/gittest"
	"github.com/packhorse-git/packhorse/internal/packsource"
)

// seeds of the random repositories; a failure names the one it came from.
var seeds = []struct {
	seed   uint64
	format string
	layout string // what is done to the repository before
}{
	{1, "sha1", "as it is"}, {2, "sha256", "as it is"}, {3, "sha1", "bitmap"}, {4, "sha1", "alternate"},
	{5, "sha1", "multi-pack-index"},
}

const specsPerRepository = 6

func testRandom(t *testing.T, newSource Make) {
	for _, c := range seeds {
		t.Run(fmt.Sprintf("%s %s, seed %d", c.format, c.layout, c.seed), func(t *testing.T) {
			t.Parallel()
			s := newSource(t, "")
			r := gittest.Random(t, c.seed, gittest.Shape{Merge: 0.3, Skew: true, Format: c.format})
			r = arrange(t, r, c.layout)
			g := newGenerator(r, c.seed)
			for i := range specsPerRepository {
				spec := g.spec(i)
				check(t, r, spec, Fetch(t, s, spec))
				if t.Failed() {
					t.Fatalf("spec %d of seed %d: %s", i, c.seed, describe(spec))
				}
			}
		})
	}
}

// arrange lays out the objects of a repository in another way.
func arrange(t *testing.T, r *gittest.Repo, layout string) *gittest.Repo {
	t.Helper()
	switch layout {
	case "bitmap":
		r.Git("repack", "-q", "-adb")
	case "multi-pack-index":
		r.GitIn("refs/heads/main\n", "pack-objects", "-q", "--revs", filepath.Join(r.Dir, "objects/pack/pack"))
		r.Git("multi-pack-index", "write", "--bitmap")
		r.Git("commit-graph", "write", "--reachable")
	case "alternate":
		fork := gittest.Init(t)
		path := filepath.Join(r.Dir, "objects") + "\n"
		if err := os.WriteFile(filepath.Join(fork.Dir, "objects/info/alternates"), []byte(path), 0o600); err != nil {
			t.Fatal(err)
		}
		fork.Git("fetch", "-q", r.Dir, "+refs/*:refs/*")
		fork.Git("update-ref", "refs/heads/main", fork.Commit("only in the fork", fork.ID("main")).String())
		return fork
	}
	return r
}

type generator struct {
	r       *gittest.Repo
	rnd     *rand.Rand
	repo    packsource.Repository
	tips    []git.ObjectID // what refs point at, of any type
	commits []git.ObjectID
	tags    []packsource.Tag
	parents map[git.ObjectID][]git.ObjectID
}

func newGenerator(r *gittest.Repo, seed uint64) *generator {
	g := &generator{r: r, rnd: rand.New(rand.NewPCG(seed, 1)), repo: Repository(r),
		parents: make(map[git.ObjectID][]git.ObjectID)}
	g.tips = ids(r.Git("for-each-ref", "--format=%(objectname)"))
	for line := range strings.Lines(r.Git("rev-list", "--parents", "--all")) {
		list := ids(strings.ReplaceAll(strings.TrimSpace(line), " ", "\n"))
		g.commits = append(g.commits, list[0])
		g.parents[list[0]] = list[1:]
	}
	for line := range strings.Lines(r.Git("for-each-ref", "--format=%(objecttype) %(refname) %(objectname)",
		"refs/tags")) {
		if f := strings.Fields(line); f[0] == "tag" {
			g.tags = append(g.tags, packsource.Tag{ID: git.MustParseObjectID(f[2]), Peeled: r.ID(f[1] + "^{}")})
		}
	}
	slices.SortFunc(g.tags, func(a, b packsource.Tag) int { return a.ID.Compare(b.ID) })
	g.tags = slices.Compact(g.tags)
	return g
}

// spec makes the i-th spec: the kinds take turns, all else is random.
func (g *generator) spec(i int) *packsource.Spec {
	s := &packsource.Spec{Repo: g.repo, Thin: g.rnd.IntN(2) == 0, Offset: g.rnd.IntN(2) == 0}
	if g.rnd.IntN(2) == 0 {
		s.Tags = g.tags
	}
	commitsOnly := i%3 == 2
	for range 1 + g.rnd.IntN(3) {
		from := g.commits
		if !commitsOnly && g.rnd.IntN(2) == 0 {
			from = g.tips
		}
		s.Wants = append(s.Wants, from[g.rnd.IntN(len(from))])
	}
	if i%3 == 1 || g.rnd.IntN(4) == 0 {
		for range 1 + g.rnd.IntN(3) {
			s.Haves = append(s.Haves, g.commits[g.rnd.IntN(len(g.commits))])
		}
	}
	if commitsOnly {
		s.Shallow = g.boundary(s.Wants, 1+g.rnd.IntN(3))
	}
	if filters := []string{"", "", "blob:none", "blob:limit=100", "tree:0", "tree:2",
		"object:type=commit"}; g.rnd.IntN(2) == 0 {
		s.Filter = filters[g.rnd.IntN(len(filters))]
	}
	s.Wants, s.Haves = sorted(s.Wants), sorted(s.Haves)
	return s
}

// boundary is the commits at a depth from the wants, as `--depth` counts.
func (g *generator) boundary(wants []git.ObjectID, depth int) []git.ObjectID {
	seen := make(map[git.ObjectID]bool)
	level := slices.Clone(wants)
	for range depth - 1 {
		var next []git.ObjectID
		for _, id := range level {
			seen[id] = true
			next = append(next, g.parents[id]...)
		}
		level = next
	}
	var shallow []git.ObjectID
	for _, id := range level {
		if !seen[id] && len(g.parents[id]) > 0 {
			shallow = append(shallow, id)
		}
	}
	return sorted(shallow)
}

func sorted(list []git.ObjectID) []git.ObjectID {
	slices.SortFunc(list, git.ObjectID.Compare)
	return slices.Compact(list)
}

func ids(lines string) []git.ObjectID {
	var list []git.ObjectID
	for line := range strings.Lines(lines) {
		list = append(list, git.MustParseObjectID(strings.TrimSpace(line)))
	}
	return list
}

func describe(s *packsource.Spec) string {
	return fmt.Sprintf("wants %v haves %v shallow %v filter %q, %d tags, thin %v, offset %v",
		s.Wants, s.Haves, s.Shallow, s.Filter, len(s.Tags), s.Thin, s.Offset)
}

// check gives the pack to a repository that has exactly the haves. It checks that no requested object is missing, that
// no other object has arrived, and that the result is connected.
func check(t *testing.T, r *gittest.Repo, spec *packsource.Spec, pack []byte) {
	t.Helper()
	grafts := filepath.Join(t.TempDir(), "shallow")
	var text string
	for _, id := range spec.Shallow {
		text += id.String() + "\n"
	}
	if err := os.WriteFile(grafts, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client := clientOf(t, r, spec)
	owned := objects(client)
	args := []string{"index-pack", "--stdin", "--fix-thin"}
	if !spec.Thin {
		args = args[:2]
	}
	client.GitIn(string(pack), args...)
	got := objects(client)

	in := func(more ...string) []string {
		args := append([]string{"--shallow-file", grafts, "rev-list", "--objects", "--no-object-names"}, more...)
		return strings.Fields(r.GitIn(revisions(spec.Wants, "")+revisions(spec.Haves, "^"), append(args, "--stdin")...))
	}
	var filter []string
	if spec.Filter != "" {
		filter = append(filter, "--filter="+spec.Filter)
	}
	reach := func(list []git.ObjectID, more ...string) []string {
		args := append([]string{"--shallow-file", grafts, "rev-list", "--objects", "--no-object-names", "--stdin"}, more...)
		return strings.Fields(r.GitIn(revisions(list, ""), args...))
	}
	needed := in(filter...)
	missing := without(needed, setOf(got))
	if len(missing) > 0 {
		t.Errorf("%d objects are missing: %v", len(missing), missing)
	}
	allowed := setOf(reach(spec.Wants, filter...))
	for _, tag := range spec.Tags {
		for _, id := range strings.Fields(r.Git("rev-list", "--objects", "--no-object-names", "--no-walk", tag.ID.String())) {
			allowed[id] = true
		}
		if allowed[tag.Peeled.String()] && !slices.Contains(got, tag.ID.String()) &&
			slices.Contains(needed, tag.Peeled.String()) {
			t.Errorf("tag %v of %v was not added", tag.ID, tag.Peeled)
		}
	}
	extra := without(without(got, setOf(owned)), allowed)
	if len(extra) > 0 {
		t.Errorf("%d objects that were not requested: %v", len(extra), extra)
	}
	if spec.Filter == "" {
		if _, err := client.Try(append([]string{"--shallow-file", grafts, "rev-list", "--objects", "--quiet"},
			hex(spec.Wants)...)...); err != nil {
			t.Errorf("the client's repository is not connected: %v", err)
		}
	}
}

// clientOf makes a repository that has what the haves reach, without grafts, and nothing else.
func clientOf(t *testing.T, r *gittest.Repo, spec *packsource.Spec) *gittest.Repo {
	t.Helper()
	client := gittest.Init(t, "--object-format="+spec.Repo.Format.String())
	if len(spec.Haves) > 0 {
		base := filepath.Join(client.Dir, "objects/pack/pack")
		r.GitIn(revisions(spec.Haves, ""), "pack-objects", "-q", "--revs", base)
	}
	return client
}

func objects(r *gittest.Repo) []string {
	return strings.Fields(r.Git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)"))
}

func revisions(list []git.ObjectID, prefix string) string {
	var b strings.Builder
	for _, id := range list {
		b.WriteString(prefix + id.String() + "\n")
	}
	return b.String()
}

func hex(list []git.ObjectID) []string {
	var out []string
	for _, id := range list {
		out = append(out, id.String())
	}
	return out
}

func setOf(list []string) map[string]bool {
	set := make(map[string]bool, len(list))
	for _, s := range list {
		set[s] = true
	}
	return set
}

func without(list []string, set map[string]bool) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return set[s] })
}
