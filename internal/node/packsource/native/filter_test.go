package native

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

var testFilters = []string{"blob:none", "blob:limit=0", "blob:limit=1", "blob:limit=100", "blob:limit=1000", "tree:0",
	"tree:1", "tree:2", "tree:3", "tree:9", "object:type=commit", "object:type=tree", "object:type=blob",
	"object:type=tag", "combine:blob:limit=100+blob:none", "combine:blob:none+tree:2", "combine:object:type=tree+tree:2",
	"combine:object:type=blob+tree:2"}

// TestFilters compares every filter with git's.
func TestFilters(t *testing.T) {
	t.Parallel()
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		for name, arrange := range layouts {
			t.Run(fmt.Sprintf("%s, %s", format, name), func(t *testing.T) {
				t.Parallel()
				r := gittest.Random(t, 5, gittest.Shape{Merge: 0.3, Format: format.String()})
				arrange(r)
				c := newChooser(t, r, format)
				w := newWorld(r, 5)
				for _, filter := range testFilters {
					spec := w.spec()
					spec.Haves, spec.Filter = nil, filter
					spec.First = c.first(spec.Wants)
					chosen, _ := c.choose(spec)
					c.checkFiltered(spec, chosen)
				}
			})
		}
	}
}

// first lists the wanted trees and blobs as a Spec with a filter has them: blobs first.
func (c *chooser) first(wants []git.ObjectID) []git.ObjectID {
	var trees, blobs []git.ObjectID
	var peeled strings.Builder
	for _, id := range wants {
		fmt.Fprintf(&peeled, "%v^{}\n", id)
	}
	for line := range strings.Lines(c.r.GitIn(peeled.String(), "cat-file", "--batch-check=%(objectname) %(objecttype)")) {
		id, typ, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch typ {
		case "tree":
			trees = append(trees, git.MustParseObjectID(id))
		case "blob":
			blobs = append(blobs, git.MustParseObjectID(id))
		}
	}
	return append(sortIDs(blobs), sortIDs(trees)...)
}

// TestFilterOfWantedTrees checks that a filter applies to the entries of wanted trees, and not to the trees.
func TestFilterOfWantedTrees(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 6, gittest.Shape{})
	c := newChooser(t, r, git.SHA1)
	for _, filter := range testFilters {
		for _, wants := range [][]git.ObjectID{{r.ID("HEAD^{tree}")}, {r.ID("refs/tags/tree")}, {r.ID("refs/tags/blob")}} {
			spec := &packsource.Spec{Wants: wants, First: c.first(wants), Filter: filter}
			chosen, _ := c.choose(spec)
			c.checkFiltered(spec, chosen)
		}
	}
}

// checkFiltered compares the chosen objects with git's. A combination with tree:N may have more objects than
// git's, but none that a member omits. Git examines a blob only at the path at which it visits it first.
func (c *chooser) checkFiltered(spec *packsource.Spec, chosen []string) {
	c.t.Helper()
	members, combined := strings.CutPrefix(spec.Filter, "combine:")
	want := c.packed(spec)
	if !combined || !strings.Contains(members, "tree:") {
		checkSame(c.t, describe(spec), chosen, want)
		return
	}
	for _, id := range want {
		if _, ok := slices.BinarySearch(chosen, id); !ok {
			c.t.Errorf("%s: object %s is not chosen", describe(spec), id)
		}
	}
	for member := range strings.SplitSeq(members, "+") {
		one := *spec
		one.Filter = member
		passing := c.packed(&one)
		for _, id := range chosen {
			if _, ok := slices.BinarySearch(passing, id); !ok {
				c.t.Errorf("%s: object %s is chosen, but does not pass %s", describe(spec), id, member)
			}
		}
	}
}

// TestSparseFallback checks that git makes packs whose filter has patterns of paths.
func TestSparseFallback(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 8, gittest.Shape{})
	c := newChooser(t, r, git.SHA1)
	sparse := "sparse:oid=" + r.GitIn("/dir/\n", "hash-object", "-w", "--stdin")
	for _, filter := range []string{sparse, "combine:blob:none+" + sparse} {
		spec := wantOnly(r.ID("HEAD"))
		spec.Filter = filter
		_, _, err := c.try(spec)
		checkFallback(t, err, reasonFilter)
	}
}
