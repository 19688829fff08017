package storage

import (
	"context"
	"errors"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// Signer returns the key that signs commits; nil: there is none.
func (n *Node) Signer() *edit.Signer { return n.signer }

// Scratch returns the directory for temporary files, which may not exist.
func (n *Node) Scratch() string { return n.scratch }

// MaxChange returns the maximum size of the content of a change in bytes; 0: no limit.
func (n *Node) MaxChange() int64 {
	if n.pushes == nil {
		return 0
	}
	return n.pushes.MaxSize()
}

// Format returns the object format of a repository.
func (n *Node) Format(ctx context.Context, path git.RepoPath) (git.ObjectFormat, error) {
	h, err := n.acquire(ctx, path)
	if err != nil {
		return 0, err
	}
	defer n.release(h)
	return h.Repo.Format, nil
}

// NewCommit is a commit to make.
type NewCommit struct {
	edit.Request
	Change write.Change   // without Build
	Start  string         // the revision at which a new branch starts; "": it has no commit
	Blobs  []git.ObjectID // that changes put, and that are not new

	// Prepared is called before the change can wait for hooks. It may be nil.
	Prepared func()

	// build replaces Request.Build. It may be nil. Unless mayWork is set it does nothing that takes long, and returns
	// errBranchMoved instead.
	build func(ctx context.Context, r *edit.Request, s write.State, mayWork bool) (write.Plan, edit.Made, error)
}

// MakeCommit makes a commit from changes. Errors are those of Write and edit.Request.Build, and NotFound for revisions
// and objects that no visible ref reaches.
func (n *Node) MakeCommit(ctx context.Context, path git.RepoPath, c NewCommit) (made edit.Made, result write.Result,
	err error) {
	tries := 0
	c.Change.Build = func(ctx context.Context, s write.State) (plan write.Plan, err error) {
		if c.build != nil {
			plan, made, err = c.build(ctx, &c.Request, s, tries == maxMergeTries)
		} else {
			plan, made, err = c.Build(ctx, s, n.keys)
		}
		return plan, err
	}
	for {
		tries++
		if err = n.prepareCommit(ctx, path, &c); err != nil {
			return made, result, err
		}
		if c.Prepared != nil {
			c.Prepared()
		}
		if result, err = n.Write(ctx, path, c.Change); !errors.Is(err, errBranchMoved) {
			return made, result, err
		}
	}
}

// withState calls fn with the present state of a repository.
func (n *Node) withState(ctx context.Context, path git.RepoPath, fn func(*writeState) error) error {
	h, err := n.acquireCurrent(ctx, path)
	if err != nil {
		return err
	}
	defer n.release(h)
	s, err := newWriteState(ctx, receivepack.Target{Repo: h.Repo}, nil)
	if err != nil {
		return err
	}
	defer s.done()
	if err := h.Repo.Refresh(); err != nil {
		return err
	}
	return fn(s)
}

// prepareCommit does the part that takes long, before other changes have to wait. It resolves the revision at which the
// branch starts, checks that the caller can reach the objects, and reads the keys of the branch.
func (n *Node) prepareCommit(ctx context.Context, path git.RepoPath, c *NewCommit) error {
	if c.Start == "" && len(c.Parents) == 0 && len(c.Blobs) == 0 && c.Header.Key == (edit.Key{}) && c.build == nil &&
		!c.Target.Reapply {
		return nil
	}
	return n.withState(ctx, path, func(s *writeState) error {
		if made, err := c.Repeated(ctx, s, n.keys); err != nil || made.Repeated {
			return err
		}
		if err := n.resolveStart(ctx, s, c); err != nil {
			return fault.InField("start", err)
		}
		if err := n.checkObjects(ctx, s, c.Parents, git.Commit); err != nil {
			return fault.InField("parents", err)
		}
		if c.Target.Reapply { // an error would show the objects of the expected commit
			err := n.checkObjects(ctx, s, []git.ObjectID{c.Target.Expected}, git.Commit)
			if c.Target.Reapply = err == nil; err != nil && !fault.Is(err, fault.NotFound) {
				return fault.InField("expected_head", err)
			}
		}
		if err := n.checkObjects(ctx, s, c.Blobs, git.Blob); err != nil || c.build == nil {
			return fault.InField("changes", err)
		}
		_, _, err := c.build(ctx, &c.Request, s, true)
		return err
	})
}

// resolveStart resolves the revision at which a new branch starts.
func (n *Node) resolveStart(ctx context.Context, s *writeState, c *NewCommit) error {
	if c.Start == "" {
		return nil
	}
	found, err := commitOf(n.revisions(ctx, s), c.Start)
	if err != nil {
		return err
	}
	c.Target.Start, c.Target.StartRef = found.ID, ""
	if found.Ref == "" {
		return n.checkObjects(ctx, s, []git.ObjectID{found.ID}, git.Commit)
	}
	if strings.HasPrefix(string(found.Ref), places.BranchPrefix) && !strings.ContainsAny(c.Start, "~^") {
		c.Target.StartRef = found.Ref
	}
	return nil
}

// checkObjects returns an error unless visible refs reach all objects, and they have a type.
func (n *Node) checkObjects(ctx context.Context, s *writeState, ids []git.ObjectID, typ git.ObjectType) error {
	if len(ids) == 0 {
		return nil
	}
	for _, id := range ids {
		switch found, _, err := s.repo.Objects.Header(id); {
		case fault.Is(err, fault.NotFound) || err == nil && found != typ:
			return fault.New(fault.NotFound, "no ref reaches a %s %s", typ, id)
		case err != nil:
			return err
		}
	}
	visible, err := n.server.Visible(ctx, s.repo, n.walk(ctx, ""), ids...)
	if err == nil && !visible {
		err = fault.New(fault.NotFound, "no ref reaches the %s %s", typ, ids[0])
		if len(ids) > 1 {
			err = fault.New(fault.NotFound, "there is a %s that no ref reaches", typ)
		}
	}
	return err
}
