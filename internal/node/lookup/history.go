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
	maxPairs      = 1000 // of AheadBehind and IsAncestor
	maxContained  = 100  // commits
	usualContains = 100  // refs for a commit
	maxContains   = 10_000
	checkEvery    = 1000 // refs between two checks of the context
)

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
	ids := make([]git.ObjectID, len(revisions))
	for i, revision := range revisions {
		if ids[i], err = c.commitOf(revision); err != nil {
			return nil, fault.InField(fmt.Sprintf("revisions[%d]", i), err)
		}
	}
	return r.Graph.MergeBases(ctx, ids[0], ids[1:], shallow)
}

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

// Pair is two revisions.
type Pair struct{ Left, Right string }

// PairResult is the result for one pair. Err is about one of its revisions.
type PairResult struct {
	Ahead, Behind int  // of AheadBehind: commits that only the left one reaches, and that only the right one reaches
	IsAncestor    bool // of IsAncestor: the right one reaches the left one
	Err           error
}

// pair is a pair of commits.
type pair struct{ left, right git.ObjectID }

// pairs finds the commits of pairs. Results have the errors.
func (c *operation) pairs(pairs []Pair) (found []pair, results []PairResult, err error) {
	if len(pairs) > maxPairs {
		return nil, nil, fault.InField("pairs", fault.New(fault.Invalid, "%d are more than %d", len(pairs), maxPairs))
	}
	found, results = make([]pair, len(pairs)), make([]PairResult, len(pairs))
	for i, p := range pairs {
		if found[i].left, err = c.commitOf(p.Left); err != nil {
			err = fault.InField(fmt.Sprintf("pairs[%d].left", i), err)
		} else if found[i].right, err = c.commitOf(p.Right); err != nil {
			err = fault.InField(fmt.Sprintf("pairs[%d].right", i), err)
		}
		if c.ctx.Err() != nil {
			return nil, nil, c.ctx.Err()
		}
		results[i].Err = err
	}
	return found, results, nil
}

// AheadBehind counts the commits that only one of a pair reaches, for up to 1,000 pairs, in their order. All pairs
// together may visit 2,000,000 commits; the others have an error of kind Invalid.
func (l *Reader) AheadBehind(ctx context.Context, r *repo.Repo, pairs []Pair) ([]PairResult, error) {
	c, shallow, err := l.beginHistory(ctx, r)
	if err != nil {
		return nil, err
	}
	defer c.end()
	found, results, err := c.pairs(pairs)
	if err != nil {
		return nil, err
	}
	limit := maxVisited
	for i, p := range found {
		if results[i].Err != nil {
			continue
		}
		ahead, behind, visited, err := r.Graph.AheadBehind(ctx, p.left, p.right, shallow, limit)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		limit = max(0, limit-visited)
		results[i] = PairResult{Ahead: ahead, Behind: behind, Err: err}
	}
	return results, nil
}

// IsAncestor reports whether the right one of a pair reaches the left one, for up to 1,000 pairs, in their order.
func (l *Reader) IsAncestor(ctx context.Context, r *repo.Repo, pairs []Pair) ([]PairResult, error) {
	c, shallow, err := l.beginHistory(ctx, r)
	if err != nil {
		return nil, err
	}
	defer c.end()
	found, results, err := c.pairs(pairs)
	if err != nil {
		return nil, err
	}
	lefts := make(map[git.ObjectID][]git.ObjectID) // by the right commit, whose walk they share
	for i, p := range found {
		if results[i].Err == nil {
			lefts[p.right] = append(lefts[p.right], p.left)
		}
	}
	unreachable := make(map[git.ObjectID]graph.Commits, len(lefts))
	for right, targets := range lefts {
		if unreachable[right], err = r.Graph.Unreachable(ctx, []git.ObjectID{right}, targets, shallow); err != nil {
			return nil, err
		}
	}
	for i, p := range found {
		results[i].IsAncestor = results[i].Err == nil && !unreachable[p.right].Has(p.left)
	}
	return results, nil
}

// ContainsRequest requests the refs that reach commits.
type ContainsRequest struct {
	Revisions []string
	Prefix    string // of the full names of refs; empty: refs/heads/ and refs/tags/
	Limit     int    // maximum number of refs for each commit, up to 10,000; 0: 100
}

// Containing are the refs that reach a commit, in the order of their names. Err is about the revision.
type Containing struct {
	Refs      []git.RefName
	Truncated bool // there are more
	Err       error
}

// Contains lists the visible refs that reach each of up to 100 commits, in the order of the revisions. It is an error
// of kind Invalid to visit more than 2,000,000 commits.
func (l *Reader) Contains(ctx context.Context, r *repo.Repo, q ContainsRequest) ([]Containing, error) {
	if len(q.Revisions) > maxContained {
		return nil, fault.InField("revisions", fault.New(fault.Invalid, "%d are more than %d", len(q.Revisions),
			maxContained))
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
	s := containsSearch{ctx: ctx, limit: cmp.Or(q.Limit, usualContains), results: make([]Containing, len(q.Revisions))}
	targets := make([]git.ObjectID, len(q.Revisions))
	for i, revision := range q.Revisions {
		if targets[i], err = c.commitOf(revision); err != nil {
			s.results[i].Err = fault.InField(fmt.Sprintf("revisions[%d]", i), err)
			targets[i] = git.ObjectID{}
		}
	}
	prefixes := []string{"refs/heads/", "refs/tags/"}
	if q.Prefix != "" {
		prefixes = []string{q.Prefix}
	}
	err = r.Graph.Contains(ctx, targets, shallow, maxVisited, func(reached graph.Reached) error {
		s.reset()
		for _, prefix := range prefixes {
			if err := snapshot.Each(prefix, func(ref refs.Ref) error { return s.add(ref, reached) }); err != nil {
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
	limit   int
	results []Containing
	open    int // results that are not truncated
	visited int // refs
}

func (s *containsSearch) reset() {
	s.open = 0
	for i := range s.results {
		s.results[i] = Containing{Err: s.results[i].Err}
		if s.results[i].Err == nil {
			s.open++
		}
	}
}

func (s *containsSearch) add(ref refs.Ref, reached graph.Reached) error {
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
	found, err := reached(id)
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
