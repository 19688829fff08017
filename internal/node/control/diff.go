package control

import (
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/inspect"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// diffService serves DiffService.
type diffService struct {
	*Server
}

var _ packhorsev1connect.DiffServiceHandler = (*diffService)(nil)

// streamCall is a call whose response is a stream.
type streamCall struct {
	*admission
	ctx        context.Context
	repository git.RepoPath
}

// begin admits a call to a slot: of s.slots for a look-up, or of s.work. The caller has to call end.
func (s *Server) begin(ctx context.Context, slots *balance.Slots, request connect.AnyRequest) (*streamCall, error) {
	path, err := parsePath(request.Any().(interface{ GetRepository() string }).GetRepository())
	if err != nil {
		return nil, err
	}
	admission, err := s.enterWith(ctx, slots, shareOf(request.Header()))
	return &streamCall{admission, ctx, path}, err
}

// sendTo returns a function that sends messages.
func sendTo[M any](w *streamCall, stream *connect.ServerStream[M]) func(*M) error {
	return func(m *M) error { return w.send(w.ctx, func() error { return stream.Send(m) }) }
}

// inspectFor answers a request by a method of inspect.Call.
func inspectFor[Q, M any](ctx context.Context, s *Server, request *connect.Request[Q], stream *connect.ServerStream[M],
	method func(c *inspect.Call, q *Q, send func(*M) error) error) error {
	w, err := s.begin(ctx, s.work, request)
	if err != nil {
		return err
	}
	defer w.end()
	return s.Node.Inspect(ctx, w.repository, balance.Caller(w.caller), func(c *inspect.Call) error {
		return method(c, request.Msg, sendTo(w, stream))
	})
}

func (s *diffService) Patch(ctx context.Context, request *connect.Request[packhorsev1.PatchRequest],
	stream *connect.ServerStream[packhorsev1.PatchResponse]) error {
	return inspectFor(ctx, s.Server, request, stream, (*inspect.Call).Patch)
}

func (s *diffService) FormatPatch(ctx context.Context, request *connect.Request[packhorsev1.FormatPatchRequest],
	stream *connect.ServerStream[packhorsev1.FormatPatchResponse]) error {
	return inspectFor(ctx, s.Server, request, stream, (*inspect.Call).FormatPatch)
}

func (s *diffService) RangeDiff(ctx context.Context, request *connect.Request[packhorsev1.RangeDiffRequest],
	stream *connect.ServerStream[packhorsev1.RangeDiffResponse]) error {
	return inspectFor(ctx, s.Server, request, stream, (*inspect.Call).RangeDiff)
}

func (s *historyService) Blame(ctx context.Context, request *connect.Request[packhorsev1.BlameRequest],
	stream *connect.ServerStream[packhorsev1.BlameResponse]) error {
	return inspectFor(ctx, s.Server, request, stream, (*inspect.Call).Blame)
}
