package graph

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// sameAt compares trees at one path.
func sameAt(t *testing.T, s *pack.Store, path string) func(a, b git.ObjectID) (bool, error) {
	at := func(tree git.ObjectID) string {
		if tree.IsZero() {
			return ""
		}
		id, mode, err := s.Resolve(tree, path)
		if fault.Is(err, fault.NotFound) {
			return ""
		}
		if err != nil {
			t.Error(err)
		}
		return fmt.Sprint(id, mode)
	}
	return func(a, b git.ObjectID) (bool, error) { return at(a) == at(b), nil }
}

func TestLogIsGits(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		shape := gittest.Shape{Commits: 60, Merge: 0.3, Skew: seed%2 == 1}
		if seed%3 == 2 {
			shape.Format = "sha256"
		}
		variant := variants[int(seed)%len(variants)]
		t.Run(fmt.Sprintf("seed %d %s", seed, variant), func(t *testing.T) {
			t.Parallel()
			r := gittest.Random(t, seed, shape)
			writeGraph(r, variant)
			g := openGraph(t, r, Options{})
			store := openStore(t, r, g.format)
			commits := strings.Fields(r.Git("rev-list", "--all"))
			rnd := rand.New(rand.NewPCG(seed, 1))
			pick := func(n int) (ids []git.ObjectID) {
				for range n {
					ids = append(ids, git.MustParseObjectID(commits[rnd.IntN(len(commits))]))
				}
				return ids
			}
			for range 25 {
				starts, o := pick(1+rnd.IntN(2)), LogOptions{Limit: 1 + rnd.IntN(80), Skip: rnd.IntN(3), MaxVisited: 1000}
				args := []string{"--literal-pathspecs", "log", "--format=%H", fmt.Sprint("-", o.Limit),
					fmt.Sprint("--skip=", o.Skip)}
				if o.Exclude = pick(rnd.IntN(3)); len(o.Exclude) > 0 && shape.Skew {
					o.Exclude = o.Exclude[:1]
				}
				for _, id := range o.Exclude {
					args = append(args, "^"+id.String())
				}
				for _, id := range starts {
					args = append(args, id.String())
				}
				if o.FirstParent = rnd.IntN(3) == 0; o.FirstParent {
					args = append(args, "--first-parent")
				}
				if path := []string{"", "dir", "README", "dir/sub/z", "nowhere"}[rnd.IntN(5)]; path != "" {
					o.Same = sameAt(t, store, path)
					args = append(args, "--", path)
				}
				ids, err := g.Log(context.Background(), starts, nil, o)
				if err != nil {
					t.Fatal(err)
				}
				if want := strings.Fields(r.Git(args...)); fmt.Sprint(want) != fmt.Sprint(ids) {
					t.Errorf("git %s\nhave %v\nwant %v", strings.Join(args, " "), ids, want)
				}
			}
		})
	}
}

func TestLogEndsAtShallowCommitsAndBounds(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	ids := []git.ObjectID{r.Commit("0")}
	for i := range 5 {
		ids = append(ids, r.Commit(fmt.Sprint(i+1), ids[i]))
	}
	g := openGraph(t, r, Options{})
	have, err := g.Log(context.Background(), ids[5:], NewCommits(ids[3]), LogOptions{Limit: 10, MaxVisited: 10})
	if err != nil || fmt.Sprint(have) != fmt.Sprint([]git.ObjectID{ids[5], ids[4], ids[3]}) {
		t.Errorf("a shallow history is %v, %v", have, err)
	}
	if _, err := g.Log(context.Background(), ids[5:], nil, LogOptions{Limit: 10, MaxVisited: 5}); !fault.Is(err,
		fault.Invalid) {
		t.Errorf("a walk beyond its bound gave %v", err)
	}
	if have, err := g.Log(context.Background(), ids[5:], nil, LogOptions{Limit: 5, MaxVisited: 5}); err != nil ||
		len(have) != 5 {
		t.Errorf("a walk within its bound gave %v, %v", have, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := openGraph(t, r, Options{}).Log(ctx, ids[5:], nil, LogOptions{Limit: 5, MaxVisited: 5}); !fault.Is(err,
		fault.Cancelled) {
		t.Errorf("a cancelled walk gave %v", err)
	}
}
