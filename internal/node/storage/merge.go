package storage

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/merge"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// MergeRequest is a change of a branch. Of the merge's Request, Merge sets the commits.
type MergeRequest struct {
	merge.Request
	Change                         write.Change // without Build
	ExpectedTarget, ExpectedSource git.ObjectID // zero: any
	Prepared                       func()       // called, perhaps repeatedly, before the change can wait; may be nil
}

// MergeResult is the result of a merge.
type MergeResult struct {
	merge.Result
	Version  git.Version
	Repeated bool // an earlier call with the same key made the commit
	Messages []string
}

// maxMergeTries is how often a merge is made because its branches have changed meanwhile.
const maxMergeTries = 5

// errBranchMoved ends a Build whose merge is not one of the present commits.
var errBranchMoved = errors.New("a branch was changed meanwhile")

// Merge merges into a branch; see package merge. A result with conflicts is not an error. Errors: those of
// merge.Prepare and of Write; Aborted if a branch has another value than expected.
func (n *Node) Merge(ctx context.Context, path git.RepoPath, q MergeRequest) (result MergeResult, err error) {
	if n.merger == nil {
		return result, errNoMerges()
	}
	for range maxMergeTries {
		result = MergeResult{}
		err = n.withState(ctx, path, func(s *writeState) error { return n.prepareMerge(ctx, s, &q, &result) })
		if err != nil {
			return result, err
		}
		if result.Repeated || result.UpToDate || result.Commit.IsZero() {
			result.Version = n.versionOf(ctx, path)
			return result, nil
		}
		if q.Prepared != nil {
			q.Prepared()
		}
		q.Change.Build = func(_ context.Context, s write.State) (write.Plan, error) {
			for name, want := range map[git.RefName]git.ObjectID{q.Target: q.Head, q.Source.Ref: q.Source.RefID} {
				if now, err := s.Ref(name); name != "" && (err != nil || now != want) {
					return write.Plan{}, errors.Join(errBranchMoved, err)
				}
			}
			return write.Plan{Objects: result.Objects,
				Updates: []receivepack.Update{{Ref: q.Target, Old: q.Head, New: result.Commit}}}, nil
		}
		written, err := n.Write(ctx, path, q.Change)
		if !errors.Is(err, errBranchMoved) {
			result.Version, result.Messages = written.Version, written.Messages
			return result, err
		}
	}
	return result, fault.Retry(fault.Unavailable, fault.RetrySoon, "%s or the source changes faster than it can be merged",
		fault.Short(q.Target))
}

func errNoMerges() error { return fault.New(fault.Unavailable, "this node does not merge") }

// prepareMerge merges the present commits, and sets them in the request.
func (n *Node) prepareMerge(ctx context.Context, s *writeState, q *MergeRequest, result *MergeResult) (err error) {
	if q.Head, err = s.Ref(q.Target); err != nil {
		return err
	} else if q.Head.IsZero() {
		return fault.InField("target", fault.New(fault.NotFound, "%s does not exist", fault.Short(q.Target)))
	}
	earlier := edit.Request{Target: edit.Target{Branch: q.Target}, Header: q.Header}
	if made, err := earlier.Repeated(ctx, s, n.keys); err != nil || made.Repeated {
		result.Repeated, result.Commit, result.Tree = made.Repeated, made.Commit, made.Tree
		return err
	}
	if err := expect("target", string(q.Target), q.ExpectedTarget, q.Head); err != nil {
		return err
	}
	if err := resolveSource(n.revisions(ctx, s), &q.Request); err != nil {
		return fault.InField("source", err)
	}
	if q.Source.Ref != "" {
		if q.Source.RefID, err = s.Ref(q.Source.Ref); err != nil {
			return err
		}
	}
	if err := expect("source", q.Source.Text, q.ExpectedSource, q.Source.Commit); err != nil {
		return err
	}
	result.Result, err = n.merger.Prepare(ctx, s.repo, &q.Request)
	return err
}

// revisions resolves the revisions of a caller.
func (n *Node) revisions(ctx context.Context, s *writeState) *lookup.Revisions {
	r := n.lookups.Revisions(ctx, s.repo, s.snap)
	r.Own = true
	return r
}

// expect returns an error if a value is not the expected one.
func expect(field, name string, want, actual git.ObjectID) error {
	if want.IsZero() || want == actual {
		return nil
	}
	return edit.Mismatch(field, name, want.String(), actual.String())
}

// resolveSource finds the commits of a source: a revision, or for picks and reverts also a range A..B.
func resolveSource(revisions *lookup.Revisions, q *merge.Request) error {
	text := q.Source.Text
	if text == "" {
		return fault.New(fault.Invalid, "it is empty")
	}
	after, last, isRange := strings.Cut(text, "..")
	if isRange && (q.Method == merge.CherryPick || q.Method == merge.Revert) {
		found, err := commitOf(revisions, after)
		if err != nil {
			return err
		}
		q.Source.After, text = found.ID, last
	}
	found, err := commitOf(revisions, text)
	q.Source.Commit, q.Source.Ref = found.ID, found.Ref
	return err
}

// commitOf finds the commit that a revision names; "" is HEAD.
func commitOf(revisions *lookup.Revisions, text string) (lookup.Revision, error) {
	return revisions.Resolve(cmp.Or(text, string(git.HEAD)) + "^{commit}")
}

// MergePair is a merge to check.
type MergePair struct {
	Target, Source string // revisions
	AllowUnrelated bool
}

// MergeCheck is the result of the check of a pair.
type MergeCheck struct {
	merge.Pair
	merge.Check
	Err error // why the pair cannot be merged
}

// CheckMerges calls each with the results of pairs, in their order, all in one state of the refs.
func (n *Node) CheckMerges(ctx context.Context, path git.RepoPath, pairs []MergePair,
	each func(i int, c MergeCheck) error) error {
	if n.merger == nil {
		return errNoMerges()
	}
	return n.withState(ctx, path, func(s *writeState) error {
		revisions := n.revisions(ctx, s)
		check, err := n.merger.Checker(s.repo)
		if err != nil {
			return err
		}
		for i, p := range pairs {
			c := checkMerge(ctx, check, revisions, p)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := each(i, c); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkMerge checks a pair.
func checkMerge(ctx context.Context, check func(context.Context, merge.Pair) (merge.Check, error),
	revisions *lookup.Revisions, p MergePair) (c MergeCheck) {
	target, err := commitOf(revisions, p.Target)
	if err != nil {
		return MergeCheck{Err: fault.InField("target", err)}
	}
	source, err := commitOf(revisions, p.Source)
	if err != nil {
		return MergeCheck{Err: fault.InField("source", err)}
	}
	c.Pair = merge.Pair{Target: target.ID, Source: source.ID, AllowUnrelated: p.AllowUnrelated}
	c.Check, c.Err = check(ctx, c.Pair)
	return c
}
