package control

import (
	"context"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Access answers the calls of TokenService and RuleService. It is safe for concurrent use.
type Access interface {
	Mint(context.Context, *packhorsev1.MintRequest) (*packhorsev1.MintResponse, error)
	List(context.Context, *packhorsev1.TokenServiceListRequest) (*packhorsev1.TokenServiceListResponse, error)
	Revoke(context.Context, *packhorsev1.RevokeRequest) (*packhorsev1.RevokeResponse, error)
	Get(context.Context, *packhorsev1.RuleServiceGetRequest) (*packhorsev1.RuleServiceGetResponse, error)
	Set(context.Context, *packhorsev1.RuleServiceSetRequest) (*packhorsev1.RuleServiceSetResponse, error)
	Test(context.Context, *packhorsev1.RuleServiceTestRequest) (*packhorsev1.RuleServiceTestResponse, error)
	Forget(context.Context, *packhorsev1.ForgetRequest) (*packhorsev1.ForgetResponse, error)
}

// unary makes a method of a service of a function of Access.
func unary[Q, R any](ctx context.Context, r *connect.Request[Q], call func(context.Context, *Q) (*R, error)) (
	*connect.Response[R], error) {
	return responseOf(call(ctx, r.Msg))
}

type tokenService struct{ Access }

func (s tokenService) Mint(ctx context.Context, r *connect.Request[packhorsev1.MintRequest]) (
	*connect.Response[packhorsev1.MintResponse], error) {
	return unary(ctx, r, s.Access.Mint)
}

func (s tokenService) List(ctx context.Context, r *connect.Request[packhorsev1.TokenServiceListRequest]) (
	*connect.Response[packhorsev1.TokenServiceListResponse], error) {
	return unary(ctx, r, s.Access.List)
}

func (s tokenService) Revoke(ctx context.Context, r *connect.Request[packhorsev1.RevokeRequest]) (
	*connect.Response[packhorsev1.RevokeResponse], error) {
	return unary(ctx, r, s.Access.Revoke)
}

type ruleService struct{ Access }

func (s ruleService) Get(ctx context.Context, r *connect.Request[packhorsev1.RuleServiceGetRequest]) (
	*connect.Response[packhorsev1.RuleServiceGetResponse], error) {
	return unary(ctx, r, s.Access.Get)
}

func (s ruleService) Set(ctx context.Context, r *connect.Request[packhorsev1.RuleServiceSetRequest]) (
	*connect.Response[packhorsev1.RuleServiceSetResponse], error) {
	return unary(ctx, r, s.Access.Set)
}

func (s ruleService) Test(ctx context.Context, r *connect.Request[packhorsev1.RuleServiceTestRequest]) (
	*connect.Response[packhorsev1.RuleServiceTestResponse], error) {
	return unary(ctx, r, s.Access.Test)
}

func (s ruleService) Forget(ctx context.Context, r *connect.Request[packhorsev1.ForgetRequest]) (
	*connect.Response[packhorsev1.ForgetResponse], error) {
	return unary(ctx, r, s.Access.Forget)
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
