package edit

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// MaxParents is the maximum number of further parents of a commit.
const MaxParents = 64

// Request is a request to make a commit from changes.
type Request struct {
	Target     Target
	Header     Header
	Changes    Changes
	Parents    []git.ObjectID // further ones
	AllowEmpty bool           // the commit may have the tree of its parent
}

// Made is the result of a Request.
type Made struct {
	Commit, Tree git.ObjectID
	ReappliedTo  git.ObjectID // the parent, if it is not the expected one
	Repeated     bool         // an earlier request with the same key made the commit
}

// Build returns the change that makes the commit. The change is empty if the commit was made before.
func (r *Request) Build(ctx context.Context, s write.State, keys *Keys) (write.Plan, Made, error) {
	if made, err := r.Repeated(ctx, s, keys); made.Repeated || err != nil {
		return write.Plan{}, made, err
	}
	at, err := r.Target.Resolve(s)
	if err != nil {
		return write.Plan{}, Made{}, err
	}
	made := Made{}
	var tree git.ObjectID
	if !at.Base.IsZero() {
		if tree, err = TreeOf(s, at.Base); err != nil {
			return write.Plan{}, Made{}, err
		}
	}
	if r.Target.Moved(at.Old) {
		made.ReappliedTo = at.Old
		before, err := TreeOf(s, r.Target.Expected)
		if fault.Is(err, fault.NotFound) { // nothing to compare with
			err = r.Target.mismatch(r.Target.Expected.String(), at.Old.String())
		}
		if err == nil {
			err = r.Changes.CheckMoved(s, before, tree)
		}
		if err != nil {
			return write.Plan{}, Made{}, err
		}
	}
	newTree, objects, err := r.Changes.Apply(s, tree)
	if err != nil {
		return write.Plan{}, Made{}, err
	}
	isEmpty := newTree == tree || tree.IsZero() && r.Changes.Len() == 0
	if isEmpty && !r.AllowEmpty && len(r.Parents) == 0 {
		return write.Plan{}, Made{}, fault.InField("changes", fault.New(fault.Invalid,
			"the commit would have the tree of its parent: set allow_empty to make it"))
	}
	var parents []git.ObjectID
	if !at.Base.IsZero() {
		parents = append(parents, at.Base)
	}
	commit, err := r.Header.Commit(s.Repo().Format, newTree, append(parents, r.Parents...)...)
	if err != nil {
		return write.Plan{}, Made{}, err
	}
	made.Commit, made.Tree = commit.ID, newTree
	return write.Plan{Updates: []receivepack.Update{{Ref: r.Target.Branch, Old: at.Old, New: commit.ID}},
		Objects: append(objects, commit)}, made, nil
}

// Repeated returns the commit that an earlier request with the same key made, if there is one.
func (r *Request) Repeated(ctx context.Context, s write.State, keys *Keys) (made Made, err error) {
	if r.Header.Key == (Key{}) {
		return Made{}, nil
	}
	head, err := s.Ref(r.Target.Branch)
	if err != nil {
		return Made{}, err
	}
	if made.Commit, err = keys.Find(ctx, s, r.Target.Branch, head, r.Header.Key); err != nil || made.Commit.IsZero() {
		return Made{}, err
	}
	made.Repeated = true
	made.Tree, err = TreeOf(s, made.Commit)
	return made, err
}

// TreeOf returns the tree of a commit. The error is NotFound if there is no such commit.
func TreeOf(s write.State, commit git.ObjectID) (git.ObjectID, error) {
	typ, data, err := s.Read(commit, 0)
	if err != nil {
		return git.ObjectID{}, err
	}
	if typ != git.Commit {
		return git.ObjectID{}, fault.New(fault.NotFound, "%s is not a commit", commit)
	}
	c, err := pack.ParseCommit(data, commit.Format())
	return c.Tree, err
}
