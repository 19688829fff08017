package control

import (
	"bytes"
	"cmp"
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

const (
	maxFiles   = 1000   // files, or lines, of one message
	maxBehind  = 10_000 // commits
	usualGrep  = 1000   // lines
	fileFields = 96     // bytes of a file's fields beside path and content, about
)

// nodeService serves the look-ups of search processes.
type nodeService struct{ *Server }

var _ internalv1connect.NodeServiceHandler = nodeService{}

// commitID reads the ID of a commit.
func commitID(text string) (git.ObjectID, error) {
	id, err := git.ParseObjectID(text)
	if err != nil || id.IsZero() {
		return id, fault.New(fault.Invalid, "invalid object ID %.80q", text)
	}
	return id, nil
}

func (o nodeService) Files(ctx context.Context, request *connect.Request[internalv1.FilesRequest],
	stream *connect.ServerStream[internalv1.FilesResponse]) error {
	q := lookup.FilesRequest{Limit: request.Msg.GetLimit()}
	var err error
	if q.Commit, err = commitID(request.Msg.GetCommit()); err != nil {
		return err
	}
	if base := request.Msg.GetBase(); base != "" {
		if q.Base, err = commitID(base); err != nil {
			return err
		}
	}
	w, err := o.begin(ctx, o.slots, request)
	if err != nil {
		return err
	}
	defer w.end()
	send := sendTo(w, stream)
	files := batch[*internalv1.File]{items: maxFiles, bytes: maxPart, send: func(list []*internalv1.File) error {
		return send(&internalv1.FilesResponse{Files: list})
	}}
	err = o.Node.Files(ctx, w.repository, q, func(f *lookup.File) error { return addFile(&files, f) })
	if err != nil {
		return err
	}
	return files.flush()
}

// addFile adds a file to messages, in several parts if it is long. It takes over the content.
func addFile(files *batch[*internalv1.File], f *lookup.File) error {
	m := &internalv1.File{Path: bytes.Clone(f.Path), Mode: f.Mode, Size: f.Size, Deleted: f.Gone,
		HasContent: f.Content != nil}
	if !f.Gone {
		m.Oid = f.ID.String()
	}
	for rest := f.Content; ; m = new(internalv1.File) {
		n := min(len(rest), maxPart)
		m.Content, rest = rest[:n], rest[n:]
		m.Continued = len(rest) > 0
		if err := files.add(m, len(m.GetPath())+n+fileFields); err != nil || len(rest) == 0 {
			return err
		}
	}
}

// batch groups the elements of a list into messages.
type batch[T any] struct {
	items, bytes int // maximum numbers in a message; items may be 0: any number
	send         func(list []T) error

	list []T
	size int // bytes
}

// add adds an element with some bytes. It sends the others first if the message would be too long.
func (b *batch[T]) add(item T, size int) error {
	if len(b.list) > 0 && (len(b.list) == b.items || b.size+size > b.bytes) {
		if err := b.flush(); err != nil {
			return err
		}
	}
	b.list, b.size = append(b.list, item), b.size+size
	return nil
}

// flush sends the elements, if there are any.
func (b *batch[T]) flush() error {
	if len(b.list) == 0 {
		return nil
	}
	err := b.send(b.list)
	clear(b.list)
	b.list, b.size = b.list[:0], 0
	return err
}

func (o nodeService) CountCommits(ctx context.Context,
	request *connect.Request[internalv1.CountCommitsRequest]) (*connect.Response[internalv1.CountCommitsResponse], error) {
	return respond(request.Msg, func(repository git.RepoPath) (*internalv1.CountCommitsResponse, error) {
		older, err := commitID(request.Msg.GetOld())
		if err != nil {
			return nil, err
		}
		newer, err := commitID(request.Msg.GetNew())
		if err != nil {
			return nil, err
		}
		limit := cmp.Or(int(request.Msg.GetLimit()), maxBehind)
		n, err := o.Node.Behind(ctx, repository, older, newer, limit)
		return &internalv1.CountCommitsResponse{Commits: int32(n)}, err
	})
}

// Grep runs in the cold lane, because it starts Git.
func (o nodeService) Grep(ctx context.Context, request *connect.Request[internalv1.GrepRequest],
	stream *connect.ServerStream[internalv1.GrepResponse]) error {
	repository, err := parsePath(request.Msg.GetRepository())
	if err != nil {
		return err
	}
	caller := balance.Caller(request.Header().Get(callerHeader))
	q := storage.GrepQuery{
		Pattern: request.Msg.GetPattern(), Regexp: request.Msg.GetRegexp(), IgnoreCase: request.Msg.GetIgnoreCase(),
		Limit: cmp.Or(int(request.Msg.GetLimit()), usualGrep), Caller: caller,
	}
	if q.Commit, err = commitID(request.Msg.GetCommit()); err != nil {
		return err
	}
	seat, err := o.Lanes.Cold.Enter(caller)
	if err != nil {
		return err
	}
	defer seat.Leave()
	hits := batch[*internalv1.GrepHit]{items: maxFiles, bytes: maxPart, send: func(list []*internalv1.GrepHit) error {
		return stream.Send(&internalv1.GrepResponse{Hits: list})
	}}
	limitHit, err := o.Node.Grep(ctx, repository, q, func(h *storage.GrepHit) error {
		hit := &internalv1.GrepHit{Path: bytes.Clone(h.Path), Line: int32(h.Line), Column: int32(h.Column),
			Text: bytes.Clone(h.Text), Truncated: h.Cut}
		return hits.add(hit, len(h.Path)+len(h.Text)+fileFields)
	})
	if err != nil {
		return err
	}
	return stream.Send(&internalv1.GrepResponse{Hits: hits.list, LimitHit: limitHit})
}
