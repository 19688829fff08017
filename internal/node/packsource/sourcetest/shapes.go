package sourcetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// shape is one kind of request.
type shape struct {
	name string
	spec *packsource.Spec
}

// testShapes makes packs of all shapes. Each shape is made of one layout of the objects, without -short of each.
func testShapes(t *testing.T, newSource Make) {
	for i, layout := range gittest.Layouts {
		t.Run(layout.Name, func(t *testing.T) {
			t.Parallel()
			s := newSource(t, "")
			g := newGenerator(layout.Arrange(randomRepository(t, 1, "sha1")), 1)
			for k, shape := range g.shapes() {
				if testing.Short() && k%len(gittest.Layouts) != i {
					continue
				}
				t.Run(shape.name, func(t *testing.T) {
					FetchAndCheck(t, s, g.r, shape.spec)
					if t.Failed() {
						t.Log(describe(shape.spec))
					}
				})
			}
		})
	}
}

// shapes lists the kinds of requests for the repository.
func (g *generator) shapes() []shape {
	main := g.r.ID("main")
	older := g.r.ID("main~2")
	one := []git.ObjectID{main}
	var list []shape
	add := func(name string, spec packsource.Spec) {
		spec.Repo = g.repo
		spec.Wants = sorted(slices.Clone(spec.Wants))
		list = append(list, shape{name, &spec})
	}
	add("all refs", packsource.Spec{Wants: g.tips, Offset: true})
	add("all refs without offsets", packsource.Spec{Wants: g.tips})
	add("one branch", packsource.Spec{Wants: one, Offset: true})
	add("one branch and its tags", packsource.Spec{Wants: one, Offset: true, Tags: g.tags})
	for name, rev := range map[string]string{"tag of a tag": "nested", "tag of a tree": "tree", "tag of a blob": "blob",
		"blob": "light-blob", "tree": "main^{tree}"} {
		add(name, packsource.Spec{Wants: []git.ObjectID{g.r.ID(rev)}, Offset: true})
	}
	for _, thin := range []bool{true, false} {
		for _, offset := range []bool{true, false} {
			name := fmt.Sprintf("thin %v, offset %v", thin, offset)
			update := packsource.Spec{Wants: one, Haves: []git.ObjectID{older}, Thin: thin, Offset: offset}
			add("update, "+name, update)
			update.Wants, update.Tags = g.tips, g.tags
			add("update of all refs, "+name, update)
		}
	}
	add("nothing new", packsource.Spec{Wants: []git.ObjectID{older}, Haves: one})
	g.addShallow(add)
	for _, filter := range g.filters {
		name := "filter " + strings.ReplaceAll(filter, "/", "_")
		add(name, packsource.Spec{Wants: g.tips, First: g.first(g.tips), Filter: filter, Offset: true})
		add(name+", update", packsource.Spec{Wants: one, Haves: []git.ObjectID{older}, Filter: filter, Thin: true,
			Offset: true, Tags: g.tags})
		add(name+", depth 1", packsource.Spec{Wants: one, Shallow: g.boundary(one, 1), Filter: filter, Offset: true})
		wants := []git.ObjectID{g.objects[git.Blob][0], g.r.ID("main^{tree}"), main}
		add(name+", wanted tree and blob", packsource.Spec{Wants: wants, First: g.first(wants), Filter: filter})
	}
	return list
}

// addShallow adds requests that change the boundary, as uploadpack specifies their packs.
func (g *generator) addShallow(add func(name string, spec packsource.Spec)) {
	main := g.r.ID("main")
	one := []git.ObjectID{main}
	for _, depth := range []int{1, 2, 5} {
		add(fmt.Sprintf("depth %d", depth), packsource.Spec{Wants: one, Shallow: g.boundary(one, depth), Offset: true})
		add(fmt.Sprintf("depth %d with tags", depth), packsource.Spec{Wants: one, Shallow: g.boundary(one, depth),
			Tags: g.tags, Offset: true})
		add(fmt.Sprintf("depth %d of all branches", depth), packsource.Spec{Wants: g.branches(),
			Shallow: g.boundary(g.branches(), depth), Offset: true})
	}
	parents := g.parents[main]
	add("deepen from 1 to 3", packsource.Spec{Wants: slices.Concat(one, parents), Haves: one, Thin: true, Offset: true,
		Shallow: sorted(append(g.boundary(one, 3), main))})
	add("unshallow", packsource.Spec{Wants: slices.Concat(one, parents), Haves: one, Thin: true, Offset: true,
		Shallow: one})
	older := parents[:1]
	add("update of a shallow clone", packsource.Spec{Wants: one, Haves: older, Shallow: older, Thin: true, Offset: true})
	add("depth 1 of a newer commit", packsource.Spec{Wants: one, Haves: older, Shallow: sorted(append(slices.Clone(older),
		main)), Thin: true, Offset: true})
}

func (g *generator) branches() []git.ObjectID {
	return ids(g.r.Git("for-each-ref", "--format=%(objectname)",
		"refs/heads"))
}
