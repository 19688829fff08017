package native

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// bitmapLayouts have bitmaps of most of the history, but not of the last commits.
var bitmapLayouts = map[string]func(r *gittest.Repo){
	"bitmap": func(r *gittest.Repo) { r.Git("repack", "-adbq") },
	"multi-pack-index": func(r *gittest.Repo) {
		old := r.Git("rev-list", "--all", "--skip=20", "-n1")
		r.GitIn(old+"\n", "pack-objects", "-q", "--revs", r.Dir+"/objects/pack/pack")
		r.Git("multi-pack-index", "write", "--bitmap")
	},
}

// TestBitmaps compares packs that are selected by bitmaps with those of git.
func TestBitmaps(t *testing.T) {
	t.Parallel()
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		for name, arrange := range bitmapLayouts {
			t.Run(fmt.Sprintf("%s, %s", format, name), func(t *testing.T) {
				t.Parallel()
				r := gittest.Random(t, 7, gittest.Shape{Merge: 0.3, Commits: 80, Format: format.String()})
				arrange(r)
				for i, branch := range []string{"new", "newer"} {
					r.Git("update-ref", "refs/heads/"+branch, r.Commit(branch, r.ID(fmt.Sprintf("HEAD~%d", i))).String())
				}
				if i := strings.Index(name, "multi"); i == 0 { // one more pack, which the bitmap does not have
					r.Git("repack", "-dq")
				}
				c := newChooser(t, r, format)
				c.bitmaps = newBitmaps()
				w := newWorld(r, 7)
				for _, filter := range append([]string{"", ""}, testFilters...) {
					spec := w.spec()
					spec.Wants = sortIDs(append(spec.Wants, r.ID("new")))
					spec.Haves, spec.Shallow, spec.Filter = nil, nil, filter
					if filter != "" {
						spec.First = c.first(spec.Wants)
					}
					chosen, _ := c.choose(spec)
					c.checkFiltered(spec, chosen)
				}
				if n := c.bitmaps.open.Len(); n != 1 {
					t.Errorf("%d bitmaps are open, want 1", n)
				}
			})
		}
	}
}

// TestEarlierPack composes selections from an earlier pack whose wants are, or are not, reached.
func TestEarlierPack(t *testing.T) {
	t.Parallel()
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	for _, filter := range []string{"", "blob:none", "blob:limit=100", "tree:2"} {
		for seed := range seeds {
			r := gittest.Random(t, seed, gittest.Shape{Merge: 0.3, Commits: 60})
			c := newChooser(t, r, git.SHA1)
			w := newWorld(r, seed)
			old := &packsource.Spec{Wants: w.pick(slices.Concat(w.tips, w.commits), 3), Filter: filter}
			if filter != "" {
				old.First = c.first(old.Wants)
			}
			c.withEarlier(old, func() {
				for i := range 6 {
					spec := w.spec()
					spec.Haves, spec.Shallow, spec.Filter = nil, nil, filter
					if i%2 == 0 { // the earlier pack can be used as a whole
						spec.Wants = sortIDs(append(spec.Wants, old.Wants...))
					}
					if filter != "" {
						spec.First = c.first(spec.Wants)
					}
					chosen, _ := c.choose(spec)
					checkSame(t, describe(old)+"; "+describe(spec), chosen, c.packed(spec))
				}
			})
		}
	}
}

// withEarlier calls fn while the chooser has an earlier pack for a spec.
func (c *chooser) withEarlier(spec *packsource.Spec, fn func()) {
	c.t.Helper()
	c.packed(spec)
	dir := c.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.pack"), c.last, 0o600); err != nil {
		c.t.Fatal(err)
	}
	gittest.Run(c.t, "", "", "index-pack", "--object-format="+c.format.String(), filepath.Join(dir, "a.pack"))
	f, err := os.Open(filepath.Join(dir, "a.pack"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	index, err := os.Open(filepath.Join(dir, "a.idx"))
	if err != nil {
		c.t.Fatal(err)
	}
	defer index.Close()
	x, err := pack.MapIndex(index, 0, c.format)
	if err != nil {
		c.t.Fatal(err)
	}
	defer x.Close()
	info, err := f.Stat()
	if err != nil {
		c.t.Fatal(err)
	}
	err = x.Do(func(t *pack.Table) error {
		c.earlier = []*source{{earlier: &earlier{closed: true, wants: spec.Wants}, Raw: &pack.Raw{Table: *t,
			Path: "an earlier pack", File: f, End: info.Size() - int64(c.format.Size())}}}
		fn()
		c.earlier = nil
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
}
