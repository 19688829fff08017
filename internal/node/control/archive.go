package control

import (
	"cmp"
	"context"
	"encoding/hex"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/archive"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// archiveService serves ArchiveService.
type archiveService struct{ *Server }

var _ packhorsev1connect.ArchiveServiceHandler = (*archiveService)(nil)

// Archive streams an archive after it is complete.
func (s *archiveService) Archive(ctx context.Context, request *connect.Request[packhorsev1.ArchiveRequest],
	stream *connect.ServerStream[packhorsev1.ArchiveResponse]) error {
	w, err := s.begin(ctx, s.work, request)
	if err != nil {
		return err
	}
	defer w.end()
	opened, header, err := s.Node.OpenArchive(ctx, w.repository, archiveOf(request.Msg), balance.Caller(w.caller), nil)
	if err != nil {
		return err
	}
	defer opened.Close()
	buf := dataBuffers.Get().(*[maxData]byte)
	defer dataBuffers.Put(buf)
	send, answer := sendTo(w, stream), &packhorsev1.ArchiveResponse{Header: archiveHeader(&header)}
	for sent := int64(0); sent < opened.Size; {
		n, err := opened.File.ReadAt(buf[:min(maxData, opened.Size-sent)], sent)
		if n == 0 && err != nil {
			return fault.Wrap(fault.Unavailable, "the archive cannot be read", err)
		}
		answer.Data = buf[:n]
		if err := send(answer); err != nil {
			return err
		}
		sent += int64(n)
		answer = new(packhorsev1.ArchiveResponse)
	}
	return nil
}

// archiveOf converts a request for an archive.
func archiveOf(m *packhorsev1.ArchiveRequest) node.Archive {
	return node.Archive{Revision: m.GetRevision(), Paths: m.GetPaths(), Prefix: m.GetPrefix(),
		Format: cmp.Or(m.GetFormat(), archive.Tar)}
}

func archiveHeader(h *node.ArchiveHeader) *packhorsev1.ArchiveHeader {
	return &packhorsev1.ArchiveHeader{Commit: h.Commit, Size: h.Size, Sha256: hex.EncodeToString(h.SHA256[:])}
}

// maxCondition is the maximum length of the header If-None-Match in bytes.
const maxCondition = 8 << 10

// Archive sends an archive to a client of a gateway. It is in the cold lane until it is complete.
func (t *sessionService) Archive(ctx context.Context, stream *sessionStream) error {
	start, err := receiveStart(stream, protocol.UploadPack)
	if err != nil {
		return err
	}
	m := start.GetArchive()
	if len(m.GetIfNoneMatch()) > maxCondition {
		return fault.New(fault.Invalid, "If-None-Match longer than %d bytes", maxCondition)
	}
	a := archiveOf(m.GetRequest())
	a.IfNoneMatch, a.Head = m.GetIfNoneMatch(), m.GetHead()
	request := &request{last: true, memory: new(admit.Holding)}
	return t.serveStream(ctx, "archive", stream, start, request,
		func(ctx context.Context, x *sessionCall) (o node.Outcome, err error) {
			if err := x.response.seat.Move(t.Lanes.Cold); err != nil {
				return o, err
			}
			return t.Sessions.Archive(ctx, x.repo, x.session, a, x.response)
		})
}

// SetArchive implements node.ArchiveWriter.
func (r *responseStream) SetArchive(h node.ArchiveHeader) {
	_ = r.deliver(&internalv1.SessionResponse{Part: &internalv1.SessionResponse_Archive{Archive: archiveHeader(&h)}})
}
