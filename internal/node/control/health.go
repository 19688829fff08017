package control

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/node"
	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
)

// healthService is the name of the service in gRPC. Its messages are in package healthv1.
const (
	healthService = "grpc.health.v1.Health"
	healthCheck   = "/" + healthService + "/Check"
	healthWatch   = "/" + healthService + "/Watch"
)

const shutdownReason = "it is shutting down; try again"

// health is gRPC's health service (github.com/grpc/grpc, doc/health-checking.md). The node and all its services have
// one state: SERVING, or NOT_SERVING while the node drains or its root cannot be read.
type health struct {
	services []string // full names; "" is the node
	ready    func() error
	store    string        // ID of the node's object store; "" without one
	interval time.Duration // between checks of the root for a watch
	// has room for one token: a root that hangs blocks one call, and the others end with their deadlines
	probing chan struct{}

	once     sync.Once
	draining chan struct{} // closed by drain
}

// newHealth creates the service. ready returns why requests cannot be served. Its calls do not overlap.
func newHealth(ready func() error, services ...string) *health {
	return &health{services: append([]string{""}, services...), ready: ready, interval: time.Second,
		probing: make(chan struct{}, 1), draining: make(chan struct{})}
}

// drain changes the state to NOT_SERVING and notifies watchers.
func (h *health) drain() { h.once.Do(func() { close(h.draining) }) }

// handler returns the handler and its path. Watches end with ctx and the code UNAVAILABLE.
func (h *health) handler(ctx context.Context, options ...connect.HandlerOption) (string, http.Handler) {
	options = append(options, connect.WithIdempotency(connect.IdempotencyNoSideEffects))
	mux := http.NewServeMux()
	mux.Handle(healthCheck, connect.NewUnaryHandler(healthCheck, h.check, options...))
	watch := func(call context.Context, r *connect.Request[healthv1.HealthCheckRequest],
		s *connect.ServerStream[healthv1.HealthCheckResponse]) error {
		call, cancel := context.WithCancel(call)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		err := h.watch(call, r.Msg.GetService(), s.Send)
		if ctx.Err() != nil {
			err = fault.New(fault.Unavailable, "the storage node is shutting down")
		}
		return faultrpc.Error(err)
	}
	mux.Handle(healthWatch, connect.NewServerStreamHandler(healthWatch, watch, options...))
	return "/" + healthService + "/", mux
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
	if h.store != "" {
		response.Header().Set(node.StoreHeader, h.store)
	}
	if reason != "" {
		response.Header().Set(node.NotReadyHeader, reason)
	}
	return response, nil
}

// watch sends the state of a service, and each change of it, until ctx ends.
func (h *health) watch(ctx context.Context, service string, send func(*healthv1.HealthCheckResponse) error) error {
	if !slices.Contains(h.services, service) {
		if err := send(&healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVICE_UNKNOWN}); err != nil {
			return err
		}
		<-ctx.Done() // services are never added
		return ctx.Err()
	}
	tick := time.NewTicker(h.interval)
	defer tick.Stop()
	draining := h.draining
	last := healthv1.HealthCheckResponse_UNKNOWN
	for {
		status, _, err := h.status(ctx)
		if err != nil {
			return err
		}
		if status != last {
			if err := send(&healthv1.HealthCheckResponse{Status: status}); err != nil {
				return err
			}
			last = status
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-draining:
			draining = nil // it stays closed
		case <-tick.C:
		}
	}
}

// status checks the root, unless the node drains. The reason, for clients, is why the node is not ready. The error is
// that of ctx.
func (h *health) status(ctx context.Context) (s healthv1.HealthCheckResponse_ServingStatus, reason string, err error) {
	select {
	case <-h.draining:
		return healthv1.HealthCheckResponse_NOT_SERVING, shutdownReason, nil
	default:
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
