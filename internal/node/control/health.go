package control

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/node"
	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
)

// healthCheck is the method of gRPC's health service. Its messages are in package healthv1. There is no Watch: gRPC's
// clients take UNIMPLEMENTED for a server without it.
const healthCheck = "/grpc.health.v1.Health/Check"

const shutdownReason = "it is shutting down; try again"

// health is gRPC's health service (github.com/grpc/grpc, doc/health-checking.md). The node and all its services have
// one state: SERVING, or NOT_SERVING while the node drains or its root cannot be read.
type health struct {
	services []string // full names; "" is the node
	ready    func() error
	store    string // ID of the node's object store; "" without one
	// has room for one token: a root that hangs blocks one call, and the others end with their deadlines
	probing  chan struct{}
	draining atomic.Bool // the state is NOT_SERVING
}

// newHealth creates the service. ready returns why requests cannot be served. Its calls do not overlap.
func newHealth(ready func() error, services ...string) *health {
	return &health{services: append([]string{""}, services...), ready: ready, probing: make(chan struct{}, 1)}
}

// handler returns the path of the handler, and the handler.
func (h *health) handler(options ...connect.HandlerOption) (string, http.Handler) {
	options = append(options, connect.WithIdempotency(connect.IdempotencyNoSideEffects))
	return healthCheck, connect.NewUnaryHandler(healthCheck, h.check, options...)
}

func (h *health) check(ctx context.Context, r *connect.Request[healthv1.HealthCheckRequest]) (
	*connect.Response[healthv1.HealthCheckResponse], error) {
	if !slices.Contains(h.services, r.Msg.GetService()) {
		return nil, faultrpc.Error(fault.New(fault.NotFound, "no such service"))
	}
	status, reason, err := h.status(ctx)
	if err != nil {
		return nil, faultrpc.Error(err)
	}
	response := connect.NewResponse(&healthv1.HealthCheckResponse{Status: status})
	response.Header().Set(node.RulesHeader, "1")
	if h.store != "" {
		response.Header().Set(node.StoreHeader, h.store)
	}
	if reason != "" {
		response.Header().Set(node.NotReadyHeader, reason)
	}
	return response, nil
}

// status checks the root, unless the node drains. The reason, for clients, is why the node is not ready. The error is
// that of ctx.
func (h *health) status(ctx context.Context) (s healthv1.HealthCheckResponse_ServingStatus, reason string, err error) {
	if h.draining.Load() {
		return healthv1.HealthCheckResponse_NOT_SERVING, shutdownReason, nil
	}
	select {
	case h.probing <- struct{}{}:
		defer func() { <-h.probing }()
	case <-ctx.Done():
		return healthv1.HealthCheckResponse_UNKNOWN, "", ctx.Err()
	}
	if err := h.ready(); err != nil {
		return healthv1.HealthCheckResponse_NOT_SERVING, fault.Message(err), nil
	}
	return healthv1.HealthCheckResponse_SERVING, "", nil
}
