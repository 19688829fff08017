package roles

import (
	"log/slog"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/inflight"
	"github.com/packhorse-git/packhorse/internal/observe/tracing"
)

// tracer makes what traces; nil if nothing does.
func newTracer(c *config.TracingConfig, role config.Role, log *slog.Logger, version string) (*tracing.Exporter, *inflight.Tracer, error) {
	if c.Endpoint == "" {
		return nil, nil, nil
	}
	e, err := tracing.New(tracing.Options{Endpoint: c.Endpoint, GRPC: c.Protocol == config.OtlpGRPC, Role: string(role), Version: version, Log: log})
	if err != nil {
		return nil, nil, err
	}
	return e, inflight.NewTracer(e.Tracer(), c.Ratio, c.Callers), nil
}
