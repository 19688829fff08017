package lookup

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// fieldOf returns the kind and the field of an error.
func fieldOf(t *testing.T, err error) (fault.Kind, string) {
	t.Helper()
	e, ok := err.(*fault.Error)
	if !ok {
		t.Fatalf("got %v, want a fault", err)
	}
	return e.Kind, e.Field
}

func TestMergeBase(t *testing.T) {
	t.Parallel()
	everyHome(t, func(t *testing.T, r *gittest.Repo) {
		opened, l := openRepo(t, r), New(Options{})
		branches := strings.Fields(r.Git("for-each-ref", "--format=%(refname)", "refs/heads"))
		for _, a := range branches {
			for _, b := range branches {
				revisions := []string{a, b, "v1^{}"}
				out, _ := r.Try("merge-base", "--all", a, b, "v1")
				got, err := l.MergeBase(t.Context(), opened, revisions)
				var names []string
				for _, id := range got {
					names = append(names, id.String())
				}
				want := strings.Fields(out)
				slices.Sort(names)
				slices.Sort(want)
				if err != nil || !slices.Equal(names, want) {
					t.Errorf("bases of %v: got %v, %v; want %v", revisions, names, err, want)
				}
			}
		}
		for _, test := range []struct {
			revisions []string
			kind      fault.Kind
			field     string
		}{
			{nil, fault.Invalid, "revisions"}, {[]string{"main"}, fault.Invalid, "revisions"},
			{make([]string, 1001), fault.Invalid, "revisions"},
			{[]string{"main", "nothing"}, fault.NotFound, "revisions[1]"},
			{[]string{"main^{tree}", "main"}, fault.Invalid, "revisions[0]"},
			{[]string{"main", "--all"}, fault.NotFound, "revisions[1]"},
		} {
			_, err := l.MergeBase(t.Context(), opened, test.revisions)
			if kind, field := fieldOf(t, err); kind != test.kind || field != test.field {
				t.Errorf("%.40v: got %v, want kind %v, field %s", test.revisions, err, test.kind, test.field)
			}
		}
	})
}

func TestPairs(t *testing.T) {
	t.Parallel()
	everyHome(t, func(t *testing.T, r *gittest.Repo) {
		opened, l := openRepo(t, r), New(Options{})
		branches := strings.Fields(r.Git("for-each-ref", "--format=%(refname)", "refs/heads"))
		var pairs []Pair
		for _, a := range branches {
			for _, b := range branches {
				pairs = append(pairs, Pair{a, b}, Pair{a + "~1", b})
			}
		}
		ahead, err := l.AheadBehind(t.Context(), opened, pairs)
		if err != nil {
			t.Fatal(err)
		}
		ancestors, err := l.IsAncestor(t.Context(), opened, pairs)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range pairs {
			counts, wrong := r.Try("rev-list", "--left-right", "--count", p.Left+"..."+p.Right, "--")
			if wrong != nil {
				if ahead[i].Err == nil || ancestors[i].Err == nil {
					t.Errorf("%v: no error, git says %v", p, wrong)
				}
				continue
			}
			if got := fmt.Sprintf("%d\t%d", ahead[i].Ahead, ahead[i].Behind); got != strings.TrimSpace(counts) ||
				ahead[i].Err != nil {
				t.Errorf("%v: got %q, %v; git says %q", p, got, ahead[i].Err, counts)
			}
			_, no := r.Try("merge-base", "--is-ancestor", p.Left, p.Right)
			if ancestors[i].Err != nil || ancestors[i].IsAncestor != (no == nil) {
				t.Errorf("%v: got %v, git says %v", p, ancestors[i], no)
			}
		}
		bad := []Pair{{"main", "nothing"}, {"nothing", "main"}, {"main", "main^{tree}"}, {"main", "main"}}
		for name, call := range map[string]func([]Pair) ([]PairResult, error){
			"AheadBehind": func(p []Pair) ([]PairResult, error) { return l.AheadBehind(t.Context(), opened, p) },
			"IsAncestor":  func(p []Pair) ([]PairResult, error) { return l.IsAncestor(t.Context(), opened, p) },
		} {
			got, err := call(bad)
			if err != nil || len(got) != len(bad) || got[3].Err != nil {
				t.Fatalf("%s: got %v, %v", name, got, err)
			}
			for i, want := range []string{"pairs[0].right", "pairs[1].left", "pairs[2].right"} {
				if _, field := fieldOf(t, got[i].Err); field != want {
					t.Errorf("%s: error of %q, want %q", name, field, want)
				}
			}
			_, err = call(make([]Pair, maxPairs+1))
			if _, field := fieldOf(t, err); field != "pairs" {
				t.Errorf("%s of too many pairs: %v", name, err)
			}
		}
	})
}

func TestContains(t *testing.T) {
	t.Parallel()
	for seed, write := range graphs {
		t.Run(write.name, func(t *testing.T) {
			t.Parallel()
			r := gittest.Random(t, uint64(seed), gittest.Shape{Commits: 80, Branches: 8, Merge: 0.3, Skew: seed%2 == 0})
			r.Git("update-ref", "refs/pull/1/head", r.ID("main").String())
			write.write(r)
			r.Git("config", "transfer.hideRefs", "refs/heads/feature")
			opened, l, rnd := openRepo(t, r), New(Options{}), rand.New(rand.NewPCG(uint64(seed), 2))
			all := strings.Fields(r.Git("rev-list", "--branches"))
			rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			all = all[:12]
			refs := make([][]string, len(all)) // git's
			for i, id := range all {
				refs[i] = strings.Fields(r.Git("for-each-ref", "--format=%(refname)", "--contains", id))
			}
			for _, prefix := range []string{"", "refs/", "refs/heads/r", "refs/tags/v1", "nothing"} {
				got, err := l.Contains(t.Context(), opened, ContainsRequest{Revisions: all, Prefix: prefix, Limit: 1000})
				few, fewErr := l.Contains(t.Context(), opened, ContainsRequest{Revisions: all, Prefix: prefix, Limit: 2})
				if err != nil || fewErr != nil {
					t.Fatal(err, fewErr)
				}
				for i, id := range all {
					var want []git.RefName
					for _, name := range refs[i] {
						isAsked := strings.HasPrefix(name, prefix)
						if prefix == "" {
							isAsked = strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/")
						}
						if isAsked && !strings.HasPrefix(name, "refs/heads/feature/") {
							want = append(want, git.RefName(name))
						}
					}
					if got[i].Err != nil || got[i].Truncated || !slices.Equal(got[i].Refs, want) {
						t.Fatalf("%s in %q: got %v, want %v", id, prefix, got[i], want)
					}
					if f := few[i]; !slices.Equal(f.Refs, want[:min(2, len(want))]) || f.Truncated != (len(want) > 2) {
						t.Fatalf("%s in %q: got %v of %v", id, prefix, f, want)
					}
				}
			}
		})
	}
}

func TestContainsErrors(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 1, gittest.Shape{})
	r.Git("config", "transfer.hideRefs", "refs/heads/feature")
	opened, l := openRepo(t, r), New(Options{})
	got, err := l.Contains(t.Context(), opened, ContainsRequest{Revisions: []string{"main", "feature/a", "main^{tree}"}})
	if err != nil || got[0].Err != nil || len(got[0].Refs) == 0 || got[1].Refs != nil {
		t.Fatalf("got %v, %v", got, err)
	}
	for i := 1; i < 3; i++ {
		if _, field := fieldOf(t, got[i].Err); field != fmt.Sprintf("revisions[%d]", i) {
			t.Errorf("revision %d: got %v", i, got[i].Err)
		}
	}
	for field, q := range map[string]ContainsRequest{
		"revisions": {Revisions: make([]string, 101)}, "limit": {Limit: -1},
	} {
		_, err := l.Contains(t.Context(), opened, q)
		if kind, got := fieldOf(t, err); kind != fault.Invalid || got != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
}
