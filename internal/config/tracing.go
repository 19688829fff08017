package config

import (
	"github.com/packhorse-git/packhorse/internal/observe/tracing"
)

// TracingConfig exports OpenTelemetry traces (docs/explanation/observability.md).
type TracingConfig struct {
	// Endpoint is the URL of the OTLP collector: "http://127.0.0.1:4318", or port 4317 for gRPC. Certificates are
	// verified with the authorities of the system. Empty means no tracing.
	Endpoint string `toml:"endpoint"`

	// Protocol is "http" (protobuf) or "grpc".
	Protocol string `toml:"protocol"`

	// Ratio is the share of requests that are traced, from 0 to 1. Nodes trace the requests that their gateways trace.
	Ratio float64 `toml:"ratio"`

	// Callers is the maximum number of requests in a second that are traced because their callers trace them (header
	// traceparent). 0 means none.
	Callers int `toml:"callers"`
}

const (
	otlpHTTP = "http"
	OtlpGRPC = "grpc"
)

func defaultTracing() TracingConfig {
	return TracingConfig{Protocol: otlpHTTP, Ratio: 0.01, Callers: 10}
}

func (c *TracingConfig) check(bad func(format string, args ...any)) {
	if c.Ratio < 0 || c.Ratio > 1 || c.Ratio != c.Ratio {
		bad("tracing.ratio is %v; it has to be from 0 to 1", c.Ratio)
	}
	if c.Endpoint == "" {
		return
	}
	if _, err := tracing.ParseEndpoint(c.Endpoint, c.Protocol == OtlpGRPC); err != nil {
		bad("tracing.endpoint: %w", err)
	}
}
