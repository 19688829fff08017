package graph

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// bases computes merge bases in the plainest way.
func (m *model) bases(shallow Commits, one git.ObjectID, others []git.ObjectID) []git.ObjectID {
	common, theirs := m.reach(shallow, one), m.reach(shallow, others...)
	maps.DeleteFunc(common, func(id git.ObjectID, _ struct{}) bool { return !theirs.Has(id) })
	var best []git.ObjectID
	for id := range common {
		behind := false
		for other := range common {
			behind = behind || other != id && m.reach(shallow, other).Has(id)
		}
		if !behind {
			best = append(best, id)
		}
	}
	return sorted(best)
}

func checkBasesOf(t *testing.T, g *Graph, m *model, one git.ObjectID, others []git.ObjectID, shallow Commits) {
	t.Helper()
	got, err := g.MergeBases(t.Context(), one, others, shallow)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSortedFunc(got, func(a, b git.ObjectID) int { return int(m.dates[b] - m.dates[a]) }) {
		t.Errorf("bases %v are not sorted by date", got)
	}
	if want := m.bases(shallow, one, others); !slices.Equal(sorted(got), want) {
		t.Fatalf("bases of %v and %v, shallow %v:\ngot  %v\nwant %v", one, others, shallow.IDs(), got, want)
	}
}

// someIDs picks up to n commits.
func (f *fixture) someIDs(n int) []git.ObjectID {
	var ids []git.ObjectID
	for range 1 + f.rnd.IntN(n) {
		ids = append(ids, f.ids[f.rnd.IntN(len(f.ids))])
	}
	return ids
}

func checkMergeBases(t *testing.T, f fixture) {
	for range 40 {
		checkBasesOf(t, f.g, f.model, f.someIDs(1)[0], f.someIDs(3), f.someCommits(f.rnd, 3).With(maps.Keys(f.server)))
	}
	for range 10 {
		one, others := f.someIDs(1)[0], f.someIDs(2)
		args := []string{"merge-base", "--all", one.String()}
		for _, id := range others {
			args = append(args, id.String())
		}
		out, _ := f.Try(args...) // it fails if there is no base
		got, err := f.g.MergeBases(t.Context(), one, others, f.server)
		if want := sorted(parseIDs(strings.Fields(out))); err != nil || !slices.Equal(sorted(got), want) {
			t.Fatalf("git %v:\ngot  %v, %v\nwant %v", args, got, err, want)
		}
	}
	if _, err := f.g.MergeBases(t.Context(), f.ID("HEAD^{tree}"), f.ids[:1], nil); !fault.Is(err, fault.Invalid) {
		t.Errorf("bases of a tree: got %v, want Invalid", err)
	}
}

func checkAheadBehind(t *testing.T, f fixture) {
	for range 40 {
		left, right, shallow := f.someIDs(1)[0], f.someIDs(1)[0], f.someCommits(f.rnd, 3).With(maps.Keys(f.server))
		lefts, rights := f.reach(shallow, left), f.reach(shallow, right)
		common := 0
		for id := range lefts {
			if rights.Has(id) {
				common++
			}
		}
		ahead, behind, visited, err := f.g.AheadBehind(t.Context(), left, right, shallow, math.MaxInt)
		if err != nil || ahead != len(lefts)-common || behind != len(rights)-common {
			t.Fatalf("%s...%s, shallow %v: got %d, %d, %v; want %d, %d", left, right, shallow.IDs(), ahead, behind, err,
				len(lefts)-common, len(rights)-common)
		}
		if _, _, _, err = f.g.AheadBehind(t.Context(), left, right, shallow, visited-1); visited > 0 &&
			!fault.Is(err, fault.Invalid) {
			t.Fatalf("with a limit of %d: got %v, want Invalid", visited-1, err)
		}
	}
	for range 10 {
		left, right := f.someIDs(1)[0], f.someIDs(1)[0]
		counts := strings.Fields(f.Git("rev-list", "--left-right", "--count", left.String()+"..."+right.String()))
		ahead, behind, _, err := f.g.AheadBehind(t.Context(), left, right, f.server, math.MaxInt)
		if got := []string{strconv.Itoa(ahead), strconv.Itoa(behind)}; err != nil || !slices.Equal(got, counts) {
			t.Fatalf("%s...%s: got %v, %v; git says %v", left, right, got, err, counts)
		}
	}
}

// TestCrissCross has branches that merged each other, several times, and merge bases of the same date.
func TestCrissCross(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	root := r.Commit("root")
	a, b := r.Commit("a", root), r.Commit("b", root)
	for i := range 4 {
		a, b = r.Commit("a"+strconv.Itoa(i), a, b), r.Commit("b"+strconv.Itoa(i), b, a)
	}
	r.Git("update-ref", "refs/heads/a", a.String())
	r.Git("update-ref", "refs/heads/b", b.String())
	alone := r.Commit("unrelated")
	r.Git("update-ref", "refs/heads/alone", alone.String())
	for _, variant := range []string{"none", "partial", "full", "levels"} {
		writeGraph(r, variant)
		m, g := newModel(r), openGraph(t, r, Options{})
		for _, ends := range [][2]git.ObjectID{{a, b}, {b, a}, {a, a}, {a, root}, {a, alone}} {
			checkBasesOf(t, g, m, ends[0], ends[1:], nil)
		}
		if got, _ := g.MergeBases(t.Context(), a, []git.ObjectID{b}, nil); len(got) != 2 {
			t.Errorf("%s: got %d bases, want 2", variant, len(got))
		}
	}
}
