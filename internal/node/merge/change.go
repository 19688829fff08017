package merge

import (
	"context"
	"maps"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// Method is how commits get into a target.
type Method string

// The methods; see merge.proto.
const (
	Merge       Method = "MERGE"
	FastForward Method = "FF_ONLY"
	Squash      Method = "SQUASH"
	Rebase      Method = "REBASE"
	CherryPick  Method = "CHERRY_PICK"
	Revert      Method = "REVERT"
)

// MaxCommits is the maximum number of commits that one request makes again or reverts.
const MaxCommits = 1000

// Request describes a change of a branch.
type Request struct {
	Method         Method
	Target         git.RefName
	Head           git.ObjectID // the commit of the target
	Source         Source
	Mainline       int // the parent with which merges are compared, from 1; 0: they are refused
	NoFastForward  bool
	AllowUnrelated bool
	Header         edit.Header // of the new commits. An empty message is Git's usual one. The last commit has the key.
}

// Source is a revision.
type Source struct {
	Text   string       // as the caller named it
	Ref    git.RefName  // the ref at its beginning; "": none
	RefID  git.ObjectID // the value of the ref
	Commit git.ObjectID // the last commit of a range
	After  git.ObjectID // the commit before a range; zero: there is no range
}

// Result is a change that can be made, or conflicts. UpToDate means that there is nothing to change, FastForward that
// there is no new commit.
type Result struct {
	Check                    // Tree is that of the target; zero with conflicts
	Commit      git.ObjectID // of the target; zero with conflicts
	Commits     []git.ObjectID
	Objects     []*write.Object
	Conflicting git.ObjectID // the commit with the conflicts, of several ones
}

// change is the work on a Request.
type change struct {
	*Merger
	*Request
	ctx    context.Context
	view   *view
	steps  []step
	result Result // during a replay: the commit before the steps, and the tree after them
}

// Prepare makes the objects of a change, and writes nothing. The caller holds the repository. Errors: Invalid,
// Precondition if the method does not allow the change, and those of the repository and of Git.
func (m *Merger) Prepare(ctx context.Context, r *repo.Repo, q *Request) (Result, error) {
	v, err := newView(r)
	if err != nil {
		return Result{}, err
	}
	v.objects = make(map[git.ObjectID]*write.Object)
	c := change{Merger: m, Request: q, ctx: ctx, view: v}
	switch q.Method {
	case Rebase, CherryPick, Revert:
		err = c.replay()
	default:
		err = c.merge()
	}
	if err == nil && !c.result.Commit.IsZero() {
		c.result.Objects = slices.AppendSeq(c.result.Objects, maps.Values(c.view.objects))
	}
	return c.result, err
}

func (c *change) pair() Pair { return Pair{c.Head, c.Source.Commit, c.AllowUnrelated} }

// merge implements Merge, FastForward and Squash.
func (c *change) merge() error {
	var found Check
	var err error
	if c.Method == FastForward {
		found, _, err = c.view.relation(c.ctx, c.pair())
	} else {
		found, err = c.Merger.pair(c.ctx, c.view, c.pair())
	}
	if err != nil {
		return err
	}
	head, err := c.view.treeOf(c.ctx, c.Head)
	if err == nil && found.FastForward {
		found.Tree, err = c.view.treeOf(c.ctx, c.Source.Commit)
	}
	if err != nil {
		return err
	}
	isForward := found.FastForward && (c.Method == FastForward || c.Method == Merge && !c.NoFastForward)
	c.result.Check = found
	c.result.FastForward = isForward
	switch {
	case found.UpToDate, c.Method == Squash && found.Tree == head:
		c.result.UpToDate, c.result.Commit, c.result.Tree = true, c.Head, head
		return nil
	case isForward:
		c.result.Commit = c.Source.Commit
		return nil
	case c.Method == FastForward:
		return fault.InField("target", fault.New(fault.Precondition,
			"%s has commits that the source has not: it cannot be set to the source", c.Target))
	case found.Tree.IsZero():
		return nil
	}
	header, parents := c.Header, []git.ObjectID{c.Head}
	if c.Method == Merge {
		parents = append(parents, c.Source.Commit)
	}
	if len(header.Message) == 0 {
		if header.Message, err = c.mergeMessage(); err != nil {
			return err
		}
	}
	return c.commit(&header, found.Tree, parents...)
}

// commit adds a commit to the result.
func (c *change) commit(h *edit.Header, tree git.ObjectID, parents ...git.ObjectID) error {
	o, err := h.Commit(c.view.repo.Format, tree, parents...)
	if err != nil {
		return err
	}
	c.result.Commit, c.result.Tree = o.ID, tree
	c.result.Commits = append(c.result.Commits, o.ID)
	c.result.Objects = append(c.result.Objects, o)
	return nil
}

// step is a commit that is made again, or reverted.
type step struct {
	id      git.ObjectID
	data    []byte
	parents []git.ObjectID
	against git.ObjectID // the parent with which it is compared; zero: it has none
	tree    git.ObjectID // of the new commit
}

// replay implements Rebase, CherryPick and Revert. As in git rebase, a commit whose changes the target has already is
// left out, and one that had no changes is kept.
func (c *change) replay() error {
	ids, err := c.commitsToReplay()
	if err != nil {
		return err
	}
	if len(ids) > 1 && len(c.Header.Message) > 0 {
		return fault.InField("message", fault.New(fault.Invalid, "it is only for one commit, and the source has %d",
			len(ids)))
	}
	c.result.Commit = c.Head
	if c.result.Tree, err = c.view.treeOf(c.ctx, c.Head); err != nil {
		return err
	}
	for _, id := range ids {
		if err := c.step(id); err != nil || c.result.Commit.IsZero() {
			return err
		}
	}
	c.result.UpToDate = len(c.steps) == 0 && c.result.Commit == c.Head
	c.result.FastForward = len(c.steps) == 0 && c.result.Commit != c.Head
	for i := range c.steps {
		h, err := c.headerOf(&c.steps[i])
		if i < len(c.steps)-1 {
			h.Key = edit.Key{}
		}
		if err == nil {
			err = c.commit(&h, c.steps[i].tree, c.result.Commit)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// step merges the changes of a commit into the tree of the result. With conflicts, the result has no commit.
func (c *change) step(id git.ObjectID) error {
	commit, data, err := c.view.commit(c.ctx, id)
	if err != nil {
		return err
	}
	s := step{id: id, data: data, parents: commit.Parents}
	if c.view.shallow.Has(id) {
		s.parents = nil
	}
	switch n := len(s.parents); {
	case c.Method == Rebase && len(c.steps) == 0 && n == 1 && s.parents[0] == c.result.Commit:
		c.result.Commit, c.result.Tree = id, commit.Tree // it is on the target already
		return nil
	case n > 1 && c.Mainline == 0:
		return fault.InField("mainline", fault.New(fault.Invalid,
			"commit %s is a merge: set the number of the parent with which it is compared", id))
	case c.Mainline > max(n, 1):
		return fault.InField("mainline", fault.New(fault.Invalid, "commit %s has no parent %d", id, c.Mainline))
	case n > 0:
		s.against = s.parents[max(c.Mainline, 1)-1]
	}
	before, err := c.view.treeOf(c.ctx, s.against)
	if err != nil {
		return err
	}
	three := [3]git.ObjectID{before, c.result.Tree, commit.Tree}
	if c.Method == Revert {
		three[base], three[theirs] = three[theirs], three[base]
	}
	o, err := c.trees(c.ctx, c.view, request{three, c.Head, id, true})
	if err != nil {
		return err
	}
	c.result.RenameLimit = c.result.RenameLimit || o.RenameLimit
	switch {
	case o.Tree.IsZero():
		o.RenameLimit = c.result.RenameLimit
		c.result = Result{Check: o, Conflicting: id}
	case o.Tree != c.result.Tree, before == commit.Tree && c.Method != Revert:
		s.tree, c.result.Tree = o.Tree, o.Tree
		c.steps = append(c.steps, s)
	}
	return nil
}
