package remote

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/activity"
)

// takeUsage counts what git used on the node for the request that a call belongs to. Sessions tell it in their outcome.
func takeUsage(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		response, err := next(ctx, request)
		if err == nil {
			activity.From(ctx).Told(response.Header().Get(activity.UsageHeader))
		} else if answer, ok := errors.AsType[*connect.Error](err); ok {
			activity.From(ctx).Told(answer.Meta().Get(activity.UsageHeader))
		}
		return response, err
	}
}
