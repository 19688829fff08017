package sourcetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// testRandom makes random packs of random repositories, which are stored in all ways.
func testRandom(t *testing.T, newSource Make) {
	specs := 2
	if !testing.Short() {
		specs = 25
	}
	for i, layout := range gittest.Layouts {
		seed, format := uint64(i+1), []string{"sha1", "sha256"}[i%2]
		t.Run(fmt.Sprintf("%s, %s, seed %d", layout.Name, format, seed), func(t *testing.T) {
			t.Parallel()
			s := newSource(t, "")
			g := newGenerator(layout.Arrange(randomRepository(t, seed, format)), seed)
			for i := range specs {
				spec := g.spec(i)
				FetchAndCheck(t, s, g.r, spec)
				if t.Failed() {
					t.Fatalf("spec %d of seed %d: %s", i, seed, describe(spec))
				}
			}
		})
	}
}

func randomRepository(t testing.TB, seed uint64, format string) *gittest.Repo {
	return gittest.Random(t, seed, gittest.Shape{Merge: 0.3, Skew: true, Format: format})
}

// generator makes specs for one repository.
type generator struct {
	r       *gittest.Repo
	rnd     *rand.Rand
	repo    packsource.Repository
	tips    []git.ObjectID // what refs point at, of any type
	commits []git.ObjectID
	objects map[git.ObjectType][]git.ObjectID // that refs reach
	tags    []packsource.Tag
	parents map[git.ObjectID][]git.ObjectID
	filters []string
}

func newGenerator(r *gittest.Repo, seed uint64) *generator {
	g := &generator{r: r, rnd: rand.New(rand.NewPCG(seed, 1)), repo: Repository(r),
		parents: make(map[git.ObjectID][]git.ObjectID), objects: make(map[git.ObjectType][]git.ObjectID)}
	g.tips = ids(r.Git("for-each-ref", "--format=%(objectname)"))
	for line := range strings.Lines(r.Git("rev-list", "--parents", "--all")) {
		list := ids(strings.ReplaceAll(strings.TrimSpace(line), " ", "\n"))
		g.commits = append(g.commits, list[0])
		g.parents[list[0]] = list[1:]
	}
	for id, o := range r.Read(r.Objects()) {
		g.objects[o.Type] = append(g.objects[o.Type], id)
	}
	for _, list := range g.objects {
		slices.SortFunc(list, git.ObjectID.Compare) // the same for each run of a seed
	}
	tags := g.objects[git.Tag]
	for i, peeled := range ids(r.Git(append([]string{"rev-parse"}, peel(tags)...)...)) {
		g.tags = append(g.tags, packsource.Tag{ID: tags[i], Peeled: peeled})
	}
	g.filters = []string{"blob:none", "blob:limit=0", "blob:limit=10", "blob:limit=1024", "tree:0", "tree:1", "tree:2",
		"tree:3", "object:type=commit", "object:type=tree", "object:type=blob", "object:type=tag",
		"combine:blob:limit=100+tree:2", "combine:tree:3+object:type=blob"}
	return g
}

// spec makes the i-th spec: the kinds take turns, all else is random.
func (g *generator) spec(i int) *packsource.Spec {
	s := &packsource.Spec{Repo: g.repo, Offset: g.rnd.IntN(2) == 0}
	if g.rnd.IntN(2) == 0 {
		s.Tags = g.tags
	}
	commitsOnly := i%3 == 2
	for range 1 + g.rnd.IntN(3) {
		from := g.commits
		switch n := g.rnd.IntN(8); {
		case commitsOnly:
		case n < 4:
			from = g.tips
		case n == 4:
			from = g.objects[git.Blob]
		}
		s.Wants = append(s.Wants, from[g.rnd.IntN(len(from))])
	}
	if i%3 == 1 || g.rnd.IntN(4) == 0 {
		for range 1 + g.rnd.IntN(3) {
			s.Haves = append(s.Haves, g.commits[g.rnd.IntN(len(g.commits))])
		}
		s.Thin = g.rnd.IntN(2) == 0
	}
	if commitsOnly {
		s.Shallow = g.boundary(s.Wants, 1+g.rnd.IntN(3))
	}
	if g.rnd.IntN(2) == 0 {
		s.Filter = g.filters[g.rnd.IntN(len(g.filters))]
		s.First = g.first(s.Wants)
	}
	s.Wants, s.Haves = sorted(s.Wants), sorted(s.Haves)
	return s
}

// first lists the blobs and trees that wants peel to: blobs, then trees. Trees must not contain one another.
func (g *generator) first(wants []git.ObjectID) []git.ObjectID {
	var blobs, trees []git.ObjectID
	for id, o := range g.r.Read(peel(wants)) {
		switch o.Type {
		case git.Blob:
			blobs = append(blobs, id)
		case git.Tree:
			trees = append(trees, id)
		}
	}
	return append(sorted(blobs), sorted(trees)...)
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

// peel names what tags lead to.
func peel(list []git.ObjectID) (revisions []string) {
	for _, id := range list {
		revisions = append(revisions, id.String()+"^{}")
	}
	return revisions
}

func sorted(list []git.ObjectID) []git.ObjectID {
	slices.SortFunc(list, git.ObjectID.Compare)
	return slices.Compact(list)
}

func ids(text string) []git.ObjectID {
	var list []git.ObjectID
	for line := range strings.Lines(text) {
		list = append(list, git.MustParseObjectID(strings.TrimSpace(line)))
	}
	return list
}

func describe(s *packsource.Spec) string {
	return fmt.Sprintf("wants %v first %v haves %v shallow %v filter %q, %d tags, thin %v, offset %v",
		s.Wants, s.First, s.Haves, s.Shallow, s.Filter, len(s.Tags), s.Thin, s.Offset)
}
