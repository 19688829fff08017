package node

import (
	"context"
	"io"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
)

// Sessions answers requests of Git and Git LFS: a storage node, one around it that keeps mirrors up to date, or the
// client of one. Errors have a fault kind.
type Sessions interface {
	LFS
	// Advertise begins a session: it sends the server's capabilities and, before version 2, the refs.
	Advertise(ctx context.Context, repo git.RepoPath, session Session, response ResponseWriter) (Outcome, error)
	// UploadPack answers one request of a session. It may read more than the request needs, but nothing after it has
	// returned.
	UploadPack(ctx context.Context, repo git.RepoPath, session Session, request io.Reader,
		response ResponseWriter) (Outcome, error)
	// ReceivePack takes a push and answers with git's report. The request of a session with state does not end by
	// itself: the push is over when the method returns.
	ReceivePack(ctx context.Context, repo git.RepoPath, session Session, pusher Pusher, request io.Reader,
		response ResponseWriter) (Outcome, error)
	// Archive sends an archive, or a part of it, after it is complete. A response that is an ArchiveWriter gets the header
	// first.
	Archive(ctx context.Context, repo git.RepoPath, session Session, request Archive, response ResponseWriter) (Outcome,
		error)
}

// LFS has the objects and locks of Git LFS.
type LFS interface {
	// LFSBatch returns the states of objects, in their order.
	LFSBatch(ctx context.Context, repo git.RepoPath, session Session, batch lfs.Batch) ([]lfs.Status, Outcome, error)
	// LFSDownload sends an object or a part of it.
	LFSDownload(ctx context.Context, repo git.RepoPath, session Session, download lfs.Download,
		response ResponseWriter) (Outcome, error)
	// LFSUpload takes an object, and returns how many bytes of it are stored now. After an error it may have kept what has
	// arrived.
	LFSUpload(ctx context.Context, repo git.RepoPath, session Session, upload lfs.Upload, content io.Reader) (size int64,
		outcome Outcome, err error)
	// LFSPart returns how many bytes of an object have arrived; all of them if the repository has the object.
	LFSPart(ctx context.Context, repo git.RepoPath, session Session, object lfs.Object) (size int64, outcome Outcome,
		err error)
	// LFSLocks creates, lists or removes locks.
	LFSLocks(ctx context.Context, repo git.RepoPath, session Session, request lfs.LockRequest) (lfs.LockAnswer,
		Outcome, error)
}
