package uploadpack

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// newShapeFetch returns a fetch from a repository with branches, tags and other refs, and the tips below some prefixes.
func newShapeFetch(t *testing.T) (f *fetch, tips func(prefixes ...string) []git.ObjectID) {
	t.Helper()
	r := gittest.Init(t)
	commit := r.Commit("first")
	for _, name := range []string{"heads/main", "heads/main-2", "heads/topic", "tags/v1", "tags/v2", "changes/1",
		"pull/1"} {
		if name != "heads/main-2" { // of the same value as main
			commit = r.Commit(name, commit)
		}
		r.Git("update-ref", "refs/"+name, commit.String())
	}
	f = &fetch{Server: &Server{warmth: &warmth{shapes: newShapes(time.Hour)}}, repo: openRepo(t, r.Dir)}
	var err error
	if f.snapshot, err = f.repo.Refs.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f, func(prefixes ...string) (ids []git.ObjectID) {
		for _, prefix := range prefixes {
			for _, line := range strings.Fields(r.Git("for-each-ref", "--format=%(objectname)", "refs/"+prefix)) {
				id, err := git.ParseObjectID(line)
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, id)
			}
		}
		return protocol.SortIDs(ids)
	}
}

// TestWantedScope compares wants with the tips of scopes, before and after a match is cached.
func TestWantedScope(t *testing.T) {
	t.Parallel()
	f, tips := newShapeFetch(t)
	for range 2 {
		for _, c := range []struct {
			wants []git.ObjectID
			want  scope
		}{
			{tips("heads/"), branches}, {tips("heads/", "tags/"), cloned}, {tips(""), all},
			{tips("heads/", "changes/"), byName}, {tips("tags/"), byName}, {tips("")[1:], byName}, {tips("heads/")[1:], byName},
		} {
			f.wants = c.wants
			if got, err := f.wantedScope(digestOf(f.wants)); got != c.want || err != nil {
				t.Errorf("wantedScope of %v = %v, %v, want %v", c.wants, got, err, c.want)
			}
			if c.want == byName {
				continue
			}
			if got, ok, err := tipsOf(f.snapshot, &shape{scope: c.want}); !slices.Equal(got, c.wants) || !ok || err != nil {
				t.Errorf("tipsOf(%v) = %v, %v, %v, want %v", c.want, got, ok, err, c.wants)
			}
		}
	}
}

// TestWantedNames finds names of HEAD, of known shapes and, not too often, of any ref.
func TestWantedNames(t *testing.T) {
	t.Parallel()
	f, tips := newShapeFetch(t)
	clock := time.Now()
	shapes := f.warmth.shapes
	shapes.now = func() time.Time { return clock }
	names := func(wants []git.ObjectID) (string, error) {
		t.Helper()
		f.wants = wants
		names, err := f.wantedNames()
		text := ""
		for _, name := range names {
			text += string(name) + " "
		}
		return text, err
	}
	for _, c := range []struct{ prefix, want string }{
		{"heads/main", "refs/heads/main "}, {"pull/1", "refs/pull/1 "}, {"tags/v2", "refs/tags/v2 "},
	} {
		clock = clock.Add(time.Hour)
		if got, err := names(tips(c.prefix)); got != c.want || err != nil {
			t.Errorf("names of %s = %q, %v, want %q", c.prefix, got, err, c.want)
		}
	}
	_ = shapes.search(f.repo.Incarnation, func() error { clock = clock.Add(time.Second); return nil })
	if got, err := names(tips("changes/1")); !errors.Is(err, errSearchLater) {
		t.Errorf("names soon after a search = %q, %v, want %v", got, err, errSearchLater)
	}
	shapes.add(f.repo.Incarnation, &shape{names: []git.RefName{"refs/changes/1"}})
	if got, err := names(tips("changes/1")); got != "refs/changes/1 " || err != nil {
		t.Errorf("names of a known shape's ref = %q, %v, want that ref", got, err)
	}
	clock = clock.Add(searchShare*time.Second + 1)
	if got, err := names(tips("pull/1")); got != "refs/pull/1 " || err != nil {
		t.Errorf("names later = %q, %v, want refs/pull/1", got, err)
	}
	clock = clock.Add(time.Hour)
	if got, err := names([]git.ObjectID{git.RawObjectID(make([]byte, git.SHA1.Size()))}); got != "" || err != nil {
		t.Errorf("names of no tip = %q, %v, want none", got, err)
	}
}

// TestQuickShapes selects the shapes for whose packs the report of a push waits: the most popular ones that together
// take at most QuickWarmup.
func TestQuickShapes(t *testing.T) {
	t.Parallel()
	s := newShapes(time.Hour)
	for i, took := range []time.Duration{QuickWarmup / 2, QuickWarmup, 0, QuickWarmup / 4, QuickWarmup / 4, 1} {
		one := s.add("r", &shape{depth: i + 1})
		for range 10 - i {
			s.countRepeat(one)
		}
		s.setTook(one, took)
	}
	var got []int
	for _, one := range s.popular("r", 1) {
		if one.isQuick {
			got = append(got, one.depth)
		}
	}
	if want := []int{1, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("quick shapes have the depths %v, want %v", got, want)
	}
}

// fitting is a Warmer for packs up to a size.
type fitting int64

func (fitting) Warm(context.Context, *packsource.Spec) (int64, bool, error) { return 0, false, nil }
func (f fitting) Fits(bytes int64) bool                                     { return bytes <= int64(f) }

// TestReasonAgainstWarmup checks why packs are not made, and that a request makes an unused shape used.
func TestReasonAgainstWarmup(t *testing.T) {
	t.Parallel()
	w := &warmth{Warmup: Warmup{Packs: 2}, warmer: fitting(8 * largePack)}
	shapes := newShapes(time.Hour)
	large := shapes.add("r", &shape{})
	made := *large
	made.bytes, made.isUnused = 2*largePack, true
	shapes.advance("r", large, made)
	for _, c := range []struct {
		one  shape
		made int
		want string
	}{
		{shape{bytes: largePack, isUnused: true}, 1, ""}, {shape{}, 2, "limit"}, {shape{bytes: 9 * largePack}, 0, "large"},
		{*large, 0, "unused"},
	} {
		if got := w.reasonAgainst(&c.one, c.made); got != c.want {
			t.Errorf("reasonAgainst(%+v, %d) = %q, want %q", c.one, c.made, got, c.want)
		}
	}
	shapes.countRepeat(large)
	if got := w.reasonAgainst(large, 0); got != "" {
		t.Errorf("reason against a large pack after a request = %q, want none", got)
	}
	shapes.advance("r", large, made) // which was begun before the request
	if got := w.reasonAgainst(large, 0); got != "" {
		t.Errorf("reason against a large pack that was requested while it was made = %q, want none", got)
	}
}
