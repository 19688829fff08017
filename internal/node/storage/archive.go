package storage

import (
	"context"
	"io"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/archive"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// Archive sends an archive to a client. The client can name objects by their IDs if it could fetch them.
func (n *Node) Archive(ctx context.Context, path git.RepoPath, session node.Session, a node.Archive,
	response node.ResponseWriter) (o node.Outcome, err error) {
	ctx, finish := n.traceStore(ctx, response)
	defer func() { finish(&o) }()
	o.Command = node.CommandArchive
	opened, header, err := n.OpenArchive(ctx, path, a, balance.Caller(session.Caller), &session)
	if err != nil {
		return o, err
	}
	defer opened.Close()
	o.Archive = string(opened.Result)
	if w, ok := response.(node.ArchiveWriter); ok {
		w.SetArchive(header)
	}
	if a.Head || a.IsKnown(&header) {
		return o, nil
	}
	if header.Size > minBulk {
		if err := response.StartBulk(false); err != nil { // it is complete
			return o, err
		}
	}
	response.SetLength(header.Size)
	section := &bulk.Section{File: opened.File, N: header.Size}
	_, err = io.Copy(response, section)
	switch {
	case err == nil:
		return o, nil
	case section.Err() != nil:
		return o, fault.Wrap(fault.Unavailable, "the archive cannot be read", err)
	}
	return o, &node.ClientConnError{Err: err}
}

// OpenArchive returns an archive, and its header. The caller closes it. The session is that of a client; nil: the
// caller is trusted.
func (n *Node) OpenArchive(ctx context.Context, path git.RepoPath, a node.Archive, caller balance.Caller,
	session *node.Session) (*archive.Opened, node.ArchiveHeader, error) {
	header := node.ArchiveHeader{}
	if n.archives == nil {
		return nil, header, fault.New(fault.Unavailable, "this node makes no archives")
	}
	if err := archive.Check(a.Paths, a.Prefix, a.Format); err != nil {
		return nil, header, err
	}
	spec, err := n.archiveSpec(ctx, path, a.Revision, session)
	if err != nil {
		return nil, header, err
	}
	spec.Paths, spec.Prefix, spec.Format, spec.Caller = a.Paths, a.Prefix, a.Format, caller
	opened, err := n.archives.Open(ctx, spec)
	if err != nil {
		return nil, header, err
	}
	return opened, node.ArchiveHeader{Commit: spec.Commit.String(), Size: opened.Size, SHA256: opened.SHA256}, nil
}

// archiveSpec resolves a revision.
func (n *Node) archiveSpec(ctx context.Context, path git.RepoPath, revision string, session *node.Session) (
	*archive.Spec, error) {
	h, snap, _, err := n.snapshot(ctx, path)
	if err != nil {
		return nil, err
	}
	defer n.release(h)
	done, err := h.Hold(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	revisions := n.lookups.Revisions(ctx, h.Repo, snap)
	revisions.Own = true
	found, err := revisions.Resolve(revision)
	if err != nil {
		return nil, fault.InField("revision", err)
	}
	if session != nil && found.Ref == "" {
		if may, err := n.server.MayFetch(ctx, h.Repo, *session, found.ID, n.walk(ctx, "")); err != nil {
			return nil, err
		} else if !may {
			return nil, fault.InField("revision", fault.New(fault.NotFound, "no revision %q in this repository",
				fault.Short(revision)))
		}
	}
	id, typ, err := h.Graph.Peel(found.ID)
	if err != nil {
		return nil, err
	}
	if typ != git.Commit {
		return nil, fault.InvalidField("revision", "%s is a %s, not a commit", id, typ)
	}
	return &archive.Spec{Commit: id, Repo: packsource.Repository{Objects: h.Objects.Dirs()[0], Format: h.Format,
		Incarnation: h.Incarnation, Hold: h.Hold}}, nil
}

// walk returns a function that waits for the turn of a caller's walk through history.
func (n *Node) walk(ctx context.Context, caller string) func() (release func(), err error) {
	return func() (release func(), err error) {
		release, _, err = n.walks.Acquire(ctx, balance.Caller(caller))
		return release, err
	}
}
