package control

import (
	"context"
	"strings"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// objectService serves ObjectService.
type objectService struct{ *Server }

var _ packhorsev1connect.ObjectServiceHandler = objectService{}

func pathIn(in *packhorsev1.RevisionPath) lookup.PathIn {
	return lookup.PathIn{Revision: in.GetRevision(), Path: rawPath(in)}
}

// rawPath returns the path in a message, which need not be UTF-8.
func rawPath(m interface {
	GetPath() string
	GetRawPath() []byte
}) string {
	if raw := m.GetRawPath(); len(raw) > 0 {
		return string(raw)
	}
	return m.GetPath()
}

func (o objectService) Blob(ctx context.Context, request *connect.Request[packhorsev1.BlobRequest],
	stream *connect.ServerStream[packhorsev1.BlobResponse]) error {
	repository, err := parsePath(request.Msg.GetRepository())
	if err != nil {
		return err
	}
	q := lookup.BlobRequest{In: pathIn(request.Msg.GetPath()), Offset: request.Msg.GetOffset(),
		Length: request.Msg.GetLength()}
	switch blob := request.Msg.GetBlob().(type) {
	case *packhorsev1.BlobRequest_Oid:
		if q.ID, err = commitID(blob.Oid); err != nil {
			return err
		}
	case nil:
		return fault.New(fault.Invalid, "set either the object ID or the path of the blob")
	}
	admission, err := o.enter()
	if err != nil {
		return err
	}
	defer admission.end()
	answer := new(packhorsev1.BlobResponse)
	head := func(h lookup.BlobHeader) error {
		answer.Header = &packhorsev1.BlobHeader{Oid: h.ID.String(), Size: h.Size, Mode: h.Mode}
		if n := h.Size - q.Offset; n > lookup.Piece && (q.Length == 0 || q.Length > lookup.Piece) {
			return admission.move()
		}
		return nil
	}
	err = o.Node.Blob(ctx, repository, q, head, func(data []byte) error {
		answer.Data = data
		err := stream.Send(answer)
		answer = new(packhorsev1.BlobResponse)
		return err
	})
	if err == nil && answer.Header != nil { // the blob is empty
		err = stream.Send(answer)
	}
	return err
}

func (o objectService) Tree(ctx context.Context, request *connect.Request[packhorsev1.TreeRequest]) (
	*connect.Response[packhorsev1.TreeResponse], error) {
	return respond(request.Msg, func(repository git.RepoPath) (*packhorsev1.TreeResponse, error) {
		page, err := o.Node.Tree(ctx, repository, lookup.TreeRequest{
			In: pathIn(request.Msg.GetPath()), Recursive: request.Msg.GetRecursive(),
			PageSize: int(request.Msg.GetPageSize()), Token: request.Msg.GetPageToken(), Sizes: request.Msg.GetSizes(),
		})
		if err == nil && request.Msg.GetPageToken() != "" && request.Header().Get(node.ReachableHeader) != "" {
			// a client could have made a token for a tree that it may not read
			first, err := o.Node.Tree(ctx, repository, lookup.TreeRequest{In: pathIn(request.Msg.GetPath()), PageSize: 1})
			if err != nil || first.ID != page.ID {
				return nil, fault.InvalidField("page_token", "it is of another directory")
			}
		}
		answer := &packhorsev1.TreeResponse{Oid: page.ID.String(), NextPageToken: page.Next,
			Entries: make([]*packhorsev1.TreeEntry, len(page.Entries))}
		for i, e := range page.Entries {
			answer.Entries[i] = &packhorsev1.TreeEntry{Path: e.Path, Mode: e.Mode, Type: e.Type().String(),
				Oid: e.ID.String(), Size: e.Size}
		}
		return answer, err
	})
}

func (o objectService) Commit(ctx context.Context, request *connect.Request[packhorsev1.CommitRequest]) (
	*connect.Response[packhorsev1.CommitResponse], error) {
	return respond(request.Msg, func(repository git.RepoPath) (*packhorsev1.CommitResponse, error) {
		commit, err := o.Node.Commit(ctx, repository, request.Msg.GetRevision())
		return &packhorsev1.CommitResponse{Commit: commitMessage(&commit)}, err
	})
}

func commitMessage(c *lookup.Commit) *packhorsev1.Commit {
	m := &packhorsev1.Commit{
		Oid: c.ID.String(), Tree: c.Tree.String(), Parents: make([]string, len(c.Parents)),
		Author: signatureMessage(&c.Author), Committer: signatureMessage(&c.Committer),
		Message: c.Message, Encoding: strings.ToValidUTF8(c.Encoding, "\ufffd"), Truncated: c.Truncated,
	}
	for i, parent := range c.Parents {
		m.Parents[i] = parent.String()
	}
	return m
}

func signatureMessage(s *lookup.Signature) *packhorsev1.Signature {
	return &packhorsev1.Signature{Name: s.Name, Email: s.Email, Seconds: s.Seconds, OffsetMinutes: s.Offset}
}

func (o objectService) Log(ctx context.Context, request *connect.Request[packhorsev1.LogRequest],
	stream *connect.ServerStream[packhorsev1.LogResponse]) error {
	w, err := o.begin(ctx, o.slots, request)
	if err != nil {
		return err
	}
	defer w.end()
	send := sendTo(w, stream)
	return o.Node.Log(ctx, w.repository, lookup.LogRequest{
		Revisions: request.Msg.GetRevisions(), Exclude: request.Msg.GetExclude(), Path: rawPath(request.Msg),
		FirstParent: request.Msg.GetFirstParent(), Limit: int(request.Msg.GetLimit()), Skip: int(request.Msg.GetSkip()),
		NoWalk: request.Msg.GetNoWalk(),
		Author: request.Msg.GetAuthor(), Message: request.Msg.GetMessage(),
	}, func(batch []lookup.Commit) error {
		answer := &packhorsev1.LogResponse{Commits: make([]*packhorsev1.Commit, len(batch))}
		for i := range batch {
			answer.Commits[i] = commitMessage(&batch[i])
		}
		return send(answer)
	})
}
