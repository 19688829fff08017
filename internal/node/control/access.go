package control

import (
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// Access answers the calls of TokenService and RuleService. It is safe for concurrent use.
type Access interface {
	packhorsev1connect.TokenServiceHandler
	packhorsev1connect.RuleServiceHandler
}

// accessService gives gateways in other processes the log of tokens and rules.
type accessService struct{ *Server }

func (s accessService) log() (node.AccessLog, error) {
	log, ok := s.Store.(node.AccessLog)
	if !ok {
		return nil, fault.New(fault.Precondition, "this storage node has no store, so that gateways cannot share tokens and "+
			"rules (auth.shared)")
	}
	return log, nil
}

func (s accessService) Read(ctx context.Context, r *connect.Request[internalv1.AccessServiceReadRequest]) (
	*connect.Response[internalv1.AccessServiceReadResponse], error) {
	log, err := s.log()
	if err != nil {
		return nil, err
	}
	found, err := log.ReadAccess(ctx, r.Msg.GetAfter())
	return responseOf(&internalv1.AccessServiceReadResponse{Checkpoint: found.Checkpoint, At: found.At,
		Changes: found.Changes}, err)
}

func (s accessService) Append(ctx context.Context, r *connect.Request[internalv1.AccessServiceAppendRequest]) (
	*connect.Response[internalv1.AccessServiceAppendResponse], error) {
	log, err := s.log()
	if err != nil {
		return nil, err
	}
	var checkpoint []byte
	if len(r.Msg.GetCheckpoint()) > 0 {
		checkpoint = r.Msg.GetCheckpoint()
	}
	won, err := log.AppendAccess(ctx, r.Msg.GetHead(), r.Msg.GetChange(), checkpoint)
	return responseOf(&internalv1.AccessServiceAppendResponse{Appended: won}, err)
}
