package control

import (
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/inspect"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// maxPatch is the maximum size of a patch in bytes.
const maxPatch = 8 << 20

// ApplyPatch implements packhorsev1connect.CommitServiceHandler.
func (s *commitService) ApplyPatch(ctx context.Context, r *connect.Request[packhorsev1.ApplyPatchRequest]) (
	*connect.Response[packhorsev1.ApplyPatchResponse], error) {
	return respond(r.Msg, func(path git.RepoPath) (*packhorsev1.ApplyPatchResponse, error) {
		c, q, err := s.patchOf(r.Msg, shareOf(r.Header()))
		if err != nil {
			return nil, err
		}
		if c.Prepared, _, err = s.work.Acquire(ctx, q.Caller); err != nil {
			return nil, err
		}
		defer c.Prepared()
		result, err := s.Node.ApplyPatch(ctx, path, c, q)
		if err != nil {
			return nil, err
		}
		m := &packhorsev1.ApplyPatchResponse{Conflicts: conflicts(result.Conflicts)}
		for _, id := range result.Commits {
			m.Commits = append(m.Commits, id.String())
		}
		if len(m.Commits) > 0 {
			m.Created = createdMessage(result.Made, result.Write)
		}
		return m, nil
	})
}

// patchOf checks a request.
func (s *Server) patchOf(m *packhorsev1.ApplyPatchRequest, caller string) (c storage.NewCommit, q inspect.ApplyRequest,
	err error) {
	q = inspect.ApplyRequest{Patch: m.GetPatch(), HasCommitter: m.GetCommitter() != nil, Caller: balance.Caller(caller)}
	if len(q.Patch) == 0 {
		q.Patch = []byte(m.GetText())
	} else if m.GetText() != "" {
		return c, q, fault.InvalidField("patch", "set either text or patch")
	}
	if n := len(q.Patch); n == 0 || n > maxPatch {
		return c, q, fault.InvalidField("patch", "it has %d bytes, want 1 to %d", n, maxPatch)
	}
	c.Start = m.GetStart()
	if c.Change, err = changeOf(m, caller); err != nil {
		return c, q, err
	}
	if c.Target, err = targetOf(m); err != nil {
		return c, q, err
	}
	c.Header, err = s.headerOf(m, c.Change.Pusher)
	q.Header = c.Header
	return c, q, err
}
