package config

import (
	"github.com/packhorse-git/packhorse/internal/operations/tracing"
)

// TracingConfig exports OpenTelemetry traces (docs/explanation/observability.md).
type TracingConfig struct {
	// Endpoint is the URL of the OTLP collector: "http://127.0.0.1:4318", or port 4317 for gRPC. Certificates are
	// verified with the authorities of the system. Headers with credentials for the collector are in the environment
	// variable OTEL_EXPORTER_OTLP_HEADERS, as in "api-key=secret". Empty means no tracing.
	Endpoint string `toml:"endpoint"`

	// Protocol is "http" (protobuf) or "grpc".
	Protocol string `toml:"protocol" default:"http" values:"http grpc"`

	// Ratio is the share of requests that are traced, from 0 to 1. Nodes trace the requests that their gateways trace.
	Ratio float64 `toml:"ratio" default:"0.01" range:"0..1"`
}

// OtlpGRPC is the value of tracing.protocol for gRPC.
const OtlpGRPC = "grpc"

func (c *TracingConfig) check(bad func(format string, args ...any)) {
	if c.Endpoint == "" {
		return
	}
	if _, err := tracing.ParseEndpoint(c.Endpoint, c.Protocol == OtlpGRPC); err != nil {
		bad("tracing.endpoint: %w", err)
	}
}
