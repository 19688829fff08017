package lookup

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

const (
	maxPairs      = 1000 // of AheadBehind
	usualContains = 100  // refs for a commit
	maxContains   = 10_000
	checkEvery    = 1000 // refs between two checks of the context
)

// beginHistory is begin with the shallow commits.
func (l *Reader) beginHistory(ctx context.Context, r *repo.Repo) (*operation, graph.Commits, error) {
	c, err := l.begin(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	shallow, err := r.ShallowSet()
	if err != nil {
		c.end()
		return nil, nil, err
	}
	return c, shallow, nil
}

// MergeBase finds the best common ancestors of the first revision and a merge of the others, as git merge-base --all
// does. There is none if the histories are unrelated. Two to 1,000 revisions are valid.
func (l *Reader) MergeBase(ctx context.Context, r *repo.Repo, revisions []string) ([]git.ObjectID, error) {
	if len(revisions) < 2 || len(revisions) > maxRevisions {
		return nil, fault.InField("revisions", fault.New(fault.Invalid, "got %d, want 2 to %d", len(revisions),
			maxRevisions))
	}
	c, shallow, err := l.beginHistory(ctx, r)
	if err != nil {
		return nil, err
	}
	defer c.end()
	ids, err := c.commitsOf("revisions", revisions)
	if err != nil {
		return nil, err
	}
	return r.Graph.MergeBases(ctx, ids[0], ids[1:], shallow)
}

// Pair is two revisions.
type Pair struct{ Left, Right string }

// Difference has the numbers of commits that only the left one of a pair reaches, and that only the right one reaches.
type Difference struct{ Ahead, Behind int }

// AheadBehind counts the commits that only one of a pair reaches, for up to 1,000 pairs, in their order. It is an error
// of kind Invalid to visit more than 2,000,000 commits.
func (l *Reader) AheadBehind(ctx context.Context, r *repo.Repo, pairs []Pair) ([]Difference, error) {
	if len(pairs) > maxPairs {
		return nil, fault.InField("pairs", fault.New(fault.Invalid, "%d are more than %d", len(pairs), maxPairs))
	}
	c, shallow, err := l.beginHistory(ctx, r)
	if err != nil {
		return nil, err
	}
	defer c.end()
	results, limit := make([]Difference, len(pairs)), maxVisited
	for i, p := range pairs {
		left, err := c.commitOf(p.Left)
		if err != nil {
			return nil, fault.InField(fmt.Sprintf("pairs[%d].left", i), err)
		}
		right, err := c.commitOf(p.Right)
		if err != nil {
			return nil, fault.InField(fmt.Sprintf("pairs[%d].right", i), err)
		}
		ahead, behind, visited, err := r.Graph.AheadBehind(ctx, left, right, shallow, limit)
		if err != nil {
			return nil, fault.InField(fmt.Sprintf("pairs[%d]", i), err)
		}
		results[i], limit = Difference{ahead, behind}, limit-visited
	}
	return results, nil
}

// ContainsRequest requests the refs that reach commits.
type ContainsRequest struct {
	Revisions []string
	Prefix    string // of the full names of refs; empty: refs/heads/ and refs/tags/
	Limit     int    // maximum number of refs for each commit, up to 10,000; 0: 100
}

// Containing are the refs that reach a commit, in the order of their names.
type Containing struct {
	Refs      []git.RefName
	Truncated bool // there are more
}

// Contains lists the visible refs that reach each of up to 64 commits, in the order of the revisions. It is an error
// of kind Invalid to visit more than 2,000,000 commits.
func (l *Reader) Contains(ctx context.Context, r *repo.Repo, q ContainsRequest) ([]Containing, error) {
	if len(q.Revisions) > graph.MaxTargets {
		return nil, fault.InField("revisions", fault.New(fault.Invalid, "%d are more than %d", len(q.Revisions),
			graph.MaxTargets))
	}
	if q.Limit < 0 || q.Limit > maxContains {
		return nil, fault.InField("limit", fault.New(fault.Invalid, "%d is not from 0 to %d", q.Limit, maxContains))
	}
	c, shallow, err := l.beginHistory(ctx, r)
	if err != nil {
		return nil, err
	}
	defer c.end()
	snapshot, err := c.readRefs()
	if err != nil {
		return nil, err
	}
	c.revisions = &Revisions{operation: c, snapshot: snapshot}
	targets, err := c.commitsOf("revisions", q.Revisions)
	if err != nil {
		return nil, err
	}
	prefixes := []string{"refs/heads/", "refs/tags/"}
	if q.Prefix != "" {
		prefixes = []string{q.Prefix}
	}
	var s containsSearch
	err = r.Graph.Contains(ctx, targets, shallow, maxVisited,
		func(reached func(git.ObjectID) (graph.Targets, error)) error {
			s = containsSearch{ctx: ctx, reached: reached, limit: cmp.Or(q.Limit, usualContains),
				results: make([]Containing, len(targets)), open: len(targets)}
			for _, prefix := range prefixes {
				if err := snapshot.Each(prefix, s.add); err != nil {
					return err
				}
			}
			return nil
		})
	return s.results, err
}

// containsSearch collects the results of Contains.
type containsSearch struct {
	ctx     context.Context
	reached func(tip git.ObjectID) (graph.Targets, error)
	limit   int
	results []Containing
	open    int // results that are not truncated
	visited int // refs
}

func (s *containsSearch) add(ref refs.Ref) error {
	if s.open == 0 {
		return refs.ErrStop
	}
	if s.visited++; s.visited%checkEvery == 0 && s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	id := ref.ID
	if ref.PeelKnown && !ref.Peeled.IsZero() {
		id = ref.Peeled
	}
	found, err := s.reached(id)
	if err != nil {
		return err
	}
	for i := range s.results {
		result := &s.results[i]
		switch {
		case !found.Has(i) || result.Truncated:
		case len(result.Refs) == s.limit:
			result.Truncated = true
			s.open--
		default:
			result.Refs = append(result.Refs, git.RefName(strings.Clone(string(ref.Name))))
		}
	}
	return nil
}
