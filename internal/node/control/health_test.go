package control

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	healthv1 "github.com/packhorse-git/packhorse/proto/packhorse/health/v1"
)

// healthClient serves h, and calls it.
func healthClient(t *testing.T, h *health) *connect.Client[healthv1.HealthCheckRequest,
	healthv1.HealthCheckResponse] {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(h.handler())
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return connect.NewClient[healthv1.HealthCheckRequest, healthv1.HealthCheckResponse](server.Client(),
		server.URL+healthCheck)
}

func about(service string) *connect.Request[healthv1.HealthCheckRequest] {
	return connect.NewRequest(&healthv1.HealthCheckRequest{Service: service})
}

func TestHealthCheck(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	h := newHealth(func() error {
		if broken.Load() {
			return fault.Wrap(fault.Unavailable, "no root", errors.New("secret"))
		}
		return nil
	}, "packhorse.v1.RefService")
	client := healthClient(t, h)
	want := func(service string, status healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		response, err := client.CallUnary(t.Context(), about(service))
		if err != nil {
			t.Fatalf("check %q: %v", service, err)
		}
		if got := response.Msg.GetStatus(); got != status {
			t.Errorf("check %q: %v instead of %v", service, got, status)
		}
		reason := response.Header().Get(node.NotReadyHeader)
		if status == healthv1.HealthCheckResponse_NOT_SERVING && reason != "no root" && reason != shutdownReason ||
			status == healthv1.HealthCheckResponse_SERVING && reason != "" {
			t.Errorf("check %q: the reason of %v is %q", service, status, reason)
		}
	}
	for _, service := range []string{"", "packhorse.v1.RefService"} {
		broken.Store(false)
		want(service, healthv1.HealthCheckResponse_SERVING)
		broken.Store(true)
		want(service, healthv1.HealthCheckResponse_NOT_SERVING)
	}
	if _, err := client.CallUnary(t.Context(),
		about("packhorse.v1.Nothing")); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a service that does not exist: %v", err)
	}
	broken.Store(false)
	h.draining.Store(true)
	want("", healthv1.HealthCheckResponse_NOT_SERVING)
}

// A root that hangs must not collect goroutines that hang.
func TestHealthOfAHangingRoot(t *testing.T) {
	t.Parallel()
	hang, hangs := make(chan struct{}), make(chan struct{})
	h := newHealth(func() error {
		close(hangs)
		<-hang
		return nil
	})
	first := make(chan error)
	go func() {
		_, err := h.check(t.Context(), about(""))
		first <- err
	}()
	<-hangs
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.check(ctx, about("")); connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("a check beside one that hangs: %v", err)
	}
	close(hang)
	if err := <-first; err != nil {
		t.Error(err)
	}
}
