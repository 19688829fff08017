package remote

import (
	"context"
	"encoding/hex"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Archive sends an archive to the client.
func (n *Node) Archive(ctx context.Context, repo git.RepoPath, session node.Session, a node.Archive,
	w node.ResponseWriter) (o node.Outcome, err error) {
	if err := n.checkCredential(session); err != nil {
		return o, err
	}
	session.Stateless = true
	m := &internalv1.ArchiveStart{Request: &packhorsev1.ArchiveRequest{Revision: a.Revision, Paths: a.Paths,
		Prefix: a.Prefix, Format: a.Format}, IfNoneMatch: a.IfNoneMatch, Head: a.Head}
	return n.session(ctx, w, nil, &sessionCall{
		open: func(l *link) openSession { return l.sessions.Archive },
		start: &internalv1.SessionStart{Repository: repo.String(), Session: sessionMessage(session),
			Archive: m},
	})
}

// setArchive passes the header of an archive on to the client.
func (r *response) setArchive(m *packhorsev1.ArchiveHeader) error {
	h := node.ArchiveHeader{Commit: m.GetCommit(), Size: m.GetSize()}
	n, err := hex.Decode(h.SHA256[:], []byte(m.GetSha256()[:min(len(m.GetSha256()), 2*len(h.SHA256))]))
	if err != nil || n != len(h.SHA256) || h.Size < 0 || r.sent > 0 || r.bulk {
		return r.invalid("invalid or unexpected header of an archive")
	}
	if w, ok := r.w.(node.ArchiveWriter); ok {
		w.SetArchive(h)
	}
	return nil
}
