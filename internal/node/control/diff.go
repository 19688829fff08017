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
	packhorsev1connect.UnimplementedDiffServiceHandler
}

// usualContext is the number of lines of context in git diff.
const usualContext = 3

// workCall is a call with a stream that computes.
type workCall struct {
	*admission
	ctx        context.Context
	repository git.RepoPath
	caller     balance.Caller
}

// beginWork admits a call. The caller has to call end.
func (s *Server) beginWork(ctx context.Context, request connect.AnyRequest) (*workCall, error) {
	path, err := parsePath(request.Any().(interface{ GetRepository() string }).GetRepository())
	if err != nil {
		return nil, err
	}
	caller := request.Header().Get(callerHeader)
	admission, err := s.enterWork(ctx, caller)
	if err != nil {
		return nil, err
	}
	return &workCall{admission, ctx, path, balance.Caller(caller)}, nil
}

// sendTo returns a function that sends messages.
func sendTo[M any](w *workCall, stream *connect.ServerStream[M]) func(*M) error {
	return func(m *M) error { return w.send(w.ctx, func() error { return stream.Send(m) }) }
}

func (s *diffService) Patch(ctx context.Context, request *connect.Request[packhorsev1.PatchRequest],
	stream *connect.ServerStream[packhorsev1.PatchResponse]) error {
	w, err := s.beginWork(ctx, request)
	if err != nil {
		return err
	}
	defer w.end()
	m := request.Msg
	q := inspect.PatchRequest{From: m.GetFrom(), To: m.GetTo(), MergeBase: m.GetMergeBase(), Paths: m.GetPaths(),
		Context: usualContext, Whitespace: m.GetIgnoreWhitespace(), NoRenames: m.GetNoRenames(),
		NamesOnly: m.GetNamesOnly(), MaxFiles: int(m.GetMaxFiles()), MaxFileBytes: int(m.GetMaxFileBytes()),
		MaxBytes: m.GetMaxBytes(), Caller: w.caller}
	if m.Context != nil {
		q.Context = int(m.GetContext())
	}
	send := sendTo(w, stream)
	sum, err := s.Node.Patch(ctx, w.repository, q, func(f *inspect.File) error { return sendFile(f, send) })
	if err != nil {
		return err
	}
	return send(&packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_Summary{Summary: &packhorsev1.PatchSummary{
		Files: int32(sum.Files), Additions: sum.Additions, Deletions: sum.Deletions, Truncated: sum.Truncated,
		RenameLimitReached: sum.RenameLimit, FromOid: sum.From.String(), ToOid: sum.To.String()}}})
}

// sendFile sends a file, in several messages if its patch is long.
func sendFile(f *inspect.File, send func(*packhorsev1.PatchResponse) error) error {
	patch := f.Patch
	next := func() []byte {
		part := patch[:min(len(patch), maxData)]
		patch = patch[len(part):]
		return part
	}
	text := func(id git.ObjectID) string {
		if id.IsZero() {
			return ""
		}
		return id.String()
	}
	err := send(&packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_File{File: &packhorsev1.FileDiff{
		Path: f.Path, OldPath: f.OldPath, Status: string(f.Status), Similarity: int32(f.Similarity), OldMode: f.OldMode,
		Mode: f.Mode, OldOid: text(f.OldID), Oid: text(f.ID), Binary: f.Binary, Additions: int32(f.Additions),
		Deletions: int32(f.Deletions), Patch: next(), Truncated: f.Truncated}}})
	for err == nil && len(patch) > 0 {
		err = send(&packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_Patch{Patch: next()}})
	}
	return err
}

func (s *diffService) FormatPatch(ctx context.Context, request *connect.Request[packhorsev1.FormatPatchRequest],
	stream *connect.ServerStream[packhorsev1.FormatPatchResponse]) error {
	w, err := s.beginWork(ctx, request)
	if err != nil {
		return err
	}
	defer w.end()
	send := sendTo(w, stream)
	q := inspect.SeriesRequest{From: request.Msg.GetFrom(), To: request.Msg.GetTo(),
		MaxCommits: int(request.Msg.GetMaxCommits()), Caller: w.caller}
	return s.Node.FormatPatch(ctx, w.repository, q, func(data []byte) error {
		return send(&packhorsev1.FormatPatchResponse{Data: data})
	})
}

func (s *diffService) RangeDiff(ctx context.Context, request *connect.Request[packhorsev1.RangeDiffRequest],
	stream *connect.ServerStream[packhorsev1.RangeDiffResponse]) error {
	w, err := s.beginWork(ctx, request)
	if err != nil {
		return err
	}
	defer w.end()
	send, m := sendTo(w, stream), request.Msg
	q := inspect.RangeRequest{OldBase: m.GetOldBase(), OldTip: m.GetOldTip(), NewBase: m.GetNewBase(),
		NewTip: m.GetNewTip(), Caller: w.caller}
	return s.Node.RangeDiff(ctx, w.repository, q, func(data []byte) error {
		return send(&packhorsev1.RangeDiffResponse{Data: data})
	})
}
