package storage

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
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
		if result, err = n.prepareMerge(ctx, path, &q); err != nil || result.Repeated || result.UpToDate ||
			result.Commit.IsZero() {
			return result, err
		}
		change := q.Change
		change.Build = func(_ context.Context, s write.State) (write.Plan, error) {
			for name, want := range map[git.RefName]git.ObjectID{q.Target: q.Head, q.Source.Ref: q.Source.RefID} {
				if name == "" {
					continue
				}
				if now, err := s.Ref(name); err != nil || now != want {
					return write.Plan{}, errors.Join(errBranchMoved, err)
				}
			}
			return write.Plan{Objects: result.Objects,
				Updates: []receivepack.Update{{Ref: q.Target, Old: q.Head, New: result.Commit}}}, nil
		}
		written, err := n.Write(ctx, path, change)
		if errors.Is(err, errBranchMoved) {
			continue
		}
		if !q.Change.DryRun {
			result.Version = written.Version
		}
		result.Messages = written.Messages
		return result, err
	}
	return result, fault.Retry(fault.Unavailable, fault.RetrySoon, "%s or the source changes faster than it can be merged",
		fault.Short(q.Target))
}

func errNoMerges() error { return fault.New(fault.Unavailable, "this node does not merge") }

// prepareMerge merges the present commits, and sets them in the request.
func (n *Node) prepareMerge(ctx context.Context, path git.RepoPath, q *MergeRequest) (result MergeResult, err error) {
	h, snap, version, err := n.snapshot(ctx, path)
	if err != nil {
		return result, err
	}
	defer n.release(h)
	done, err := h.Hold(ctx)
	if err != nil {
		return result, err
	}
	defer done()
	if err := h.Refresh(); err != nil {
		return result, err
	}
	result.Version = version
	s := observed{h.Repo, snap}
	if q.Head, err = s.Ref(q.Target); err != nil {
		return result, err
	} else if q.Head.IsZero() {
		return result, fault.InField("target", fault.New(fault.NotFound, "%s does not exist", fault.Short(q.Target)))
	}
	result.Commit, err = n.keys.Find(ctx, s, q.Target, q.Head, q.Header.Key)
	if result.Repeated = !result.Commit.IsZero(); err != nil {
		return result, err
	}
	if result.Repeated {
		_, data, err := s.Read(result.Commit, 0)
		if err != nil {
			return result, err
		}
		c, err := pack.ParseCommit(data, h.Format)
		result.Tree = c.Tree
		return result, err
	}
	if err := expect("target", string(q.Target), q.ExpectedTarget, q.Head); err != nil {
		return result, err
	}
	revisions := n.lookups.Revisions(ctx, h.Repo, snap)
	revisions.Own = true
	if err := resolveSource(h.Repo, revisions, &q.Request); err != nil {
		return result, fault.InField("source", err)
	}
	if q.Source.Ref != "" {
		if q.Source.RefID, err = s.Ref(q.Source.Ref); err != nil {
			return result, err
		}
	}
	if err := expect("source", q.Source.Text, q.ExpectedSource, q.Source.Commit); err != nil {
		return result, err
	}
	result.Result, err = n.merger.Prepare(ctx, h.Repo, &q.Request)
	return result, err
}

// observed is the state of a repository before a change. It implements write.State.
type observed struct {
	repo *repo.Repo
	snap *refs.Snapshot
}

func (o observed) Repo() *repo.Repo { return o.repo }

func (o observed) Ref(name git.RefName) (git.ObjectID, error) {
	ref, _, err := o.snap.Lookup(name)
	return ref.ID, err
}

func (o observed) Read(id git.ObjectID, limit int64) (git.ObjectType, []byte, error) {
	return o.repo.Objects.Read(id, limit)
}

// expect returns an error if a value is not the expected one.
func expect(field, name string, want, actual git.ObjectID) error {
	if want.IsZero() || want == actual {
		return nil
	}
	return &fault.Error{Kind: fault.Aborted, Field: field,
		Msg:        field + ": it is " + actual.String() + ", not " + want.String(),
		Mismatches: []fault.Mismatch{{Name: name, Expected: want.String(), Actual: actual.String()}}}
}

// resolveSource finds the commits of a source: a revision, or a range A..B.
func resolveSource(r *repo.Repo, revisions *lookup.Revisions, q *merge.Request) error {
	text, isRange := q.Source.Text, false
	if q.Method == merge.CherryPick || q.Method == merge.Revert {
		var after string
		if after, text, isRange = strings.Cut(text, ".."); isRange {
			var err error
			if q.Source.After, _, err = commitOf(r, revisions, after); err != nil {
				return err
			}
		} else {
			text = q.Source.Text
		}
	}
	if text == "" && !isRange {
		return fault.New(fault.Invalid, "it is empty")
	}
	var err error
	q.Source.Commit, q.Source.Ref, err = commitOf(r, revisions, text)
	return err
}

// commitOf finds the commit that a revision names, and the ref at the beginning of the revision.
func commitOf(r *repo.Repo, revisions *lookup.Revisions, text string) (id git.ObjectID, ref git.RefName, err error) {
	found, err := revisions.Resolve(text)
	if err != nil {
		return id, "", err
	}
	id, typ, err := r.Graph.Peel(found.ID)
	if err == nil && typ != git.Commit {
		err = fault.New(fault.Invalid, "revision %.200q is a %s, not a commit", text, typ)
	}
	return id, found.Ref, err
}

// MergePair is a merge to check.
type MergePair struct {
	Target, Source string // revisions
	AllowUnrelated bool
}

// MergeCheck is the result of the check of a pair.
type MergeCheck struct {
	merge.Check
	Target, Source git.ObjectID
	Err            error // why the pair cannot be merged
}

// CheckMerges calls each with the results of pairs, in their order, all in one state of the refs.
func (n *Node) CheckMerges(ctx context.Context, path git.RepoPath, pairs []MergePair,
	each func(i int, c MergeCheck) error) error {
	if n.merger == nil {
		return errNoMerges()
	}
	h, snap, _, err := n.snapshot(ctx, path)
	if err != nil {
		return err
	}
	defer n.release(h)
	done, err := h.Hold(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := h.Refresh(); err != nil {
		return err
	}
	revisions := n.lookups.Revisions(ctx, h.Repo, snap)
	revisions.Own = true
	checks, ready := make([]MergeCheck, len(pairs)), make([]chan struct{}, len(pairs))
	for i, p := range pairs {
		c := &checks[i]
		ready[i] = make(chan struct{})
		if c.Target, _, c.Err = commitOf(h.Repo, revisions, p.Target); c.Err != nil {
			c.Err = fault.InField("target", c.Err)
		} else if c.Source, _, c.Err = commitOf(h.Repo, revisions, p.Source); c.Err != nil {
			c.Err = fault.InField("source", c.Err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	var next atomic.Int64
	for range min(len(pairs), runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(pairs) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if c := &checks[i]; c.Err == nil {
					c.Check, c.Err = n.merger.Check(ctx, h.Repo, c.Target, c.Source, pairs[i].AllowUnrelated)
				}
				close(ready[i])
			}
		})
	}
	for i := range pairs {
		select {
		case <-ready[i]:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := each(i, checks[i]); err != nil {
			return err
		}
		checks[i] = MergeCheck{}
	}
	return nil
}
