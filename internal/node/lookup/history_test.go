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
		var counts []string
		for _, a := range branches {
			for _, b := range branches {
				for _, p := range []Pair{{a, b}, {a + "~1", b}} {
					if count, err := r.Try("rev-list", "--left-right", "--count", p.Left+"..."+p.Right, "--"); err == nil {
						pairs, counts = append(pairs, p), append(counts, strings.TrimSpace(count))
					}
				}
			}
		}
		differences, err := l.AheadBehind(t.Context(), opened, pairs)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range pairs {
			if got := fmt.Sprintf("%d\t%d", differences[i].Ahead, differences[i].Behind); got != counts[i] {
				t.Errorf("%v: got %q; git says %q", p, got, counts[i])
			}
			if _, no := r.Try("merge-base", "--is-ancestor", p.Left, p.Right); (differences[i].Ahead == 0) != (no == nil) {
				t.Errorf("%v: got %d commits ahead, git says %v", p, differences[i].Ahead, no)
			}
		}
		for field, bad := range map[string][]Pair{
			"pairs[0].right": {{"main", "nothing"}},
			"pairs[1].left":  {{"main", "main"}, {"nothing", "main"}},
			"pairs[2].right": {{"main", "main"}, {"main", "main"}, {"main", "main^{tree}"}},
			"pairs":          make([]Pair, maxPairs+1),
		} {
			_, err := l.AheadBehind(t.Context(), opened, bad)
			if _, got := fieldOf(t, err); got != field {
				t.Errorf("%s: got %v", field, err)
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
					if got[i].Truncated || !slices.Equal(got[i].Refs, want) {
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
	for _, test := range []struct {
		field string
		q     ContainsRequest
	}{
		{"revisions[1]", ContainsRequest{Revisions: []string{"main", "feature/a"}}},
		{"revisions[0]", ContainsRequest{Revisions: []string{"main^{tree}"}}},
		{"revisions", ContainsRequest{Revisions: make([]string, 65)}},
		{"limit", ContainsRequest{Limit: -1}},
	} {
		_, err := l.Contains(t.Context(), opened, test.q)
		if _, got := fieldOf(t, err); got != test.field {
			t.Errorf("%s: got %v", test.field, err)
		}
	}
}
