package remote

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/inflight"
)

// takeUsage counts what git used on the node for the request that a call belongs to. Sessions tell it in their outcome.
func takeUsage(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		response, err := next(ctx, request)
		if err == nil {
			inflight.From(ctx).Told(response.Header().Get(inflight.UsageHeader))
		} else if answer, ok := errors.AsType[*connect.Error](err); ok {
			inflight.From(ctx).Told(answer.Meta().Get(inflight.UsageHeader))
		}
		return response, err
	}
}
