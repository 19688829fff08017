package control

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/merge"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// mergeService serves MergeService.
type mergeService struct {
	*Server
}

var _ packhorsev1connect.MergeServiceHandler = (*mergeService)(nil)

// Merge implements packhorsev1connect.MergeServiceHandler.
func (s *mergeService) Merge(ctx context.Context, r *connect.Request[packhorsev1.MergeRequest]) (
	*connect.Response[packhorsev1.MergeResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.MergeResponse, error) {
		q, err := s.mergeRequest(r.Msg, r.Header().Get(callerHeader))
		if err != nil {
			return nil, err
		}
		if q.Prepared, _, err = s.work.Acquire(ctx, balance.Caller(shareOf(r.Header()))); err != nil {
			return nil, err
		}
		defer q.Prepared()
		result, err := s.Node.Merge(ctx, path, q)
		if err != nil {
			return nil, err
		}
		m := &packhorsev1.MergeResponse{
			Commit: oid(result.Commit), Tree: oid(result.Tree), Version: version(result.Version),
			UpToDate: result.UpToDate, FastForward: result.FastForward, Conflicts: conflicts(result.Conflicts),
			MoreConflicts: result.More, ConflictingCommit: oid(result.Conflicting), RenameLimitReached: result.RenameLimit,
			Repeated: result.Repeated, Messages: result.Messages,
		}
		for _, id := range result.Commits {
			m.Commits = append(m.Commits, id.String())
		}
		return m, nil
	})
}

// mergeRequest checks a request.
func (s *mergeService) mergeRequest(m *packhorsev1.MergeRequest, caller string) (q storage.MergeRequest, err error) {
	q.Method, q.Source.Text = merge.Method(m.GetMethod()), m.GetSource()
	q.Mainline, q.NoFastForward, q.AllowUnrelated = int(m.GetMainline()), m.GetNoFastForward(), m.GetAllowUnrelated()
	isReplay := false
	switch q.Method {
	case "":
		q.Method = merge.Merge
	case merge.Merge, merge.FastForward, merge.Squash:
	case merge.Rebase, merge.CherryPick, merge.Revert:
		isReplay = true
	default:
		return q, fault.InField("method", fault.New(fault.Invalid,
			"got %.80q, want MERGE, FF_ONLY, SQUASH, REBASE, CHERRY_PICK or REVERT", m.GetMethod()))
	}
	switch {
	case q.Mainline < 0 || q.Mainline > 0 && (!isReplay || q.Method == merge.Rebase):
		return q, fault.InField("mainline", fault.New(fault.Invalid, "it is a number from 1, for CHERRY_PICK and REVERT"))
	case m.GetAuthor() != nil && isReplay && q.Method != merge.Revert:
		return q, fault.InField("author", fault.New(fault.Invalid, "%s keeps the authors of the commits", q.Method))
	case m.GetMessage() != "" && isReplay && q.Method != merge.Revert:
		return q, fault.InField("message", fault.New(fault.Invalid, "%s keeps the messages of the commits", q.Method))
	}
	if q.Target, err = edit.ParseBranch(m.GetTarget()); err != nil {
		return q, fault.InField("target", err)
	}
	if q.ExpectedTarget, err = expectedID("expected_target", m.GetExpectedTarget()); err != nil {
		return q, err
	}
	if q.ExpectedSource, err = expectedID("expected_source", m.GetExpectedSource()); err != nil {
		return q, err
	}
	if q.Change, err = changeOf(m, caller); err != nil {
		return q, err
	}
	q.Header, err = s.headerOf(m, q.Change.Pusher)
	return q, err
}

// conflicts converts conflicts.
func conflicts(list []merge.Conflict) []*packhorsev1.Conflict {
	result := make([]*packhorsev1.Conflict, len(list))
	stage := func(s merge.Stage) *packhorsev1.ConflictStage {
		if s.ID.IsZero() {
			return nil
		}
		return &packhorsev1.ConflictStage{Mode: s.Mode, Oid: s.ID.String()}
	}
	for i, c := range list {
		result[i] = &packhorsev1.Conflict{Path: []byte(c.Path), Kinds: c.Kinds, Base: stage(c.Stages[0]),
			Ours: stage(c.Stages[1]), Theirs: stage(c.Stages[2]), Message: printable(c.Message)}
	}
	return result
}

// maxPairs is the maximum number of pairs in one message of Check.
const maxPairs = 1000

// Check implements packhorsev1connect.MergeServiceHandler.
func (s *mergeService) Check(ctx context.Context,
	stream *connect.BidiStream[packhorsev1.CheckRequest, packhorsev1.CheckResponse]) error {
	var path git.RepoPath
	for isFirst := true; ; isFirst = false {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) && !isFirst {
			return nil
		} else if err != nil {
			return err
		}
		switch {
		case isFirst:
			path, err = parsePath(m.GetRepository())
		case m.GetRepository() != "":
			err = fault.InField("repository", fault.New(fault.Invalid, "it is only in the first message"))
		}
		if len(m.GetPairs()) > maxPairs {
			err = fault.InField("pairs", fault.New(fault.Invalid, "got %d in one message, the maximum is %d",
				len(m.GetPairs()), maxPairs))
		}
		if err == nil {
			err = s.check(ctx, stream, path, m.GetPairs())
		}
		if err != nil {
			return err
		}
	}
}

// check checks the pairs of a message.
func (s *mergeService) check(ctx context.Context,
	stream *connect.BidiStream[packhorsev1.CheckRequest, packhorsev1.CheckResponse], path git.RepoPath,
	list []*packhorsev1.MergePair) error {
	admission, err := s.enterWork(ctx, shareOf(stream.RequestHeader()))
	if err != nil {
		return err
	}
	defer admission.end()
	pairs := make([]storage.MergePair, len(list))
	for i, p := range list {
		pairs[i] = storage.MergePair{Target: p.GetTarget(), Source: p.GetSource(), AllowUnrelated: p.GetAllowUnrelated()}
	}
	return s.Node.CheckMerges(ctx, path, pairs, func(i int, c storage.MergeCheck) error {
		response := &packhorsev1.CheckResponse{Id: list[i].GetId(), Fault: faultrpc.Message(c.Err)}
		if c.Err == nil {
			response = &packhorsev1.CheckResponse{
				Id: list[i].GetId(), TargetOid: c.Target.String(), SourceOid: c.Source.String(), UpToDate: c.UpToDate,
				FastForward: c.FastForward, Tree: oid(c.Tree), Conflicts: conflicts(c.Conflicts), MoreConflicts: c.More,
				RenameLimitReached: c.RenameLimit,
			}
		}
		return admission.send(ctx, func() error { return stream.Send(response) })
	})
}
