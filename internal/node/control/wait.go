package control

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
)

// maxWait is the timeout of Wait.
const maxWait = 10 * time.Minute

func (s nodeService) Wait(ctx context.Context,
	r *connect.Request[internalv1.WaitRequest]) (*connect.Response[internalv1.WaitResponse], error) {
	path, err := parsePath(r.Msg.GetRepository())
	if err != nil {
		return nil, err
	}
	if err := checkCaller(r.Msg.GetCaller()); err != nil {
		return nil, err
	}
	condition := node.WaitCondition{Epoch: r.Msg.GetEpoch(), Generation: r.Msg.GetGeneration(), Caller: r.Msg.GetCaller()}
	if text := r.Msg.GetOid(); text != "" {
		if condition.ID, err = git.ParseObjectID(text); err != nil {
			return nil, fault.Wrap(fault.Invalid, "invalid object ID", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	reached, err := s.Node.Wait(ctx, path, condition)
	if err != nil && s.ending.Err() != nil {
		err = fault.New(fault.Unavailable, "the storage node is shutting down")
	}
	return responseOf(&internalv1.WaitResponse{Version: version(reached)}, err)
}
