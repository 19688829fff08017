package storage

import (
	"context"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// MirrorMarks returns the marks of the repository at a path. The errors are those of opening it.
func (n *Node) MirrorMarks(path git.RepoPath) (places.MirrorMarks, error) {
	h, err := n.acquireAny(context.Background(), path)
	if err != nil {
		return places.MirrorMarks{}, err
	}
	defer n.release(h)
	return h.place.MirrorMarks(), nil
}

// HasMirrorMark reports whether the repository at a path on disk below the root, as in a list, has a mark.
func (n *Node) HasMirrorMark(below string) bool {
	marks, err := places.FindMirrorMarks(filepath.Join(n.root, filepath.FromSlash(below)), n.options)
	return err == nil && marks.Any()
}

// ServeMirrors lets the node serve mirrors that a check accepts. It is called for each use of a repository with a mark.
// A node without a check refuses all mirrors, because it knows no origin that decides about their readers.
func (n *Node) ServeMirrors(check places.MirrorCheck) { n.mirrors.Store(&check) }

// checkMirror returns an error if a repository with these marks must not be read. The first time it is logged.
func (n *Node) checkMirror(path git.RepoPath, marks places.MirrorMarks) error {
	if !marks.Any() {
		return nil
	}
	err := fault.New(fault.NotFound, "it is a mirror, and this server has no [[mirror]] table")
	if check := n.mirrors.Load(); check != nil {
		err = (*check)(path, marks)
	}
	if err == nil {
		n.refusedMirrors.Delete(marks.Dir)
		return nil
	}
	if _, known := n.refusedMirrors.LoadOrStore(marks.Dir, true); !known {
		n.log.Error("refused the repository of a mirror", "repository", path.String(), "error", err)
	}
	if fault.Is(err, fault.NotFound) { // the message is that of a missing repository
		return fault.Wrap(fault.NotFound, "no repository "+path.String()+" here", err)
	}
	return err
}

// SetMirrorKey sets or removes places.MirrorKey of the repository in a directory.
func (n *Node) SetMirrorKey(ctx context.Context, dir string, isMirror bool) error {
	return places.SetMirrorKey(ctx, n.runner, dir, isMirror)
}
