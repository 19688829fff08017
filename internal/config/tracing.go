package config

import (
	"github.com/packhorse-git/packhorse/internal/observe/tracing"
)

// TracingConfig is about OpenTelemetry traces (docs/explanation/observability.md): which requests are traced, and where their spans go.
type TracingConfig struct {
	// URL of the collector, which takes OTLP: "http://127.0.0.1:4318", or 4317 where it is gRPC. https is verified with the system's authorities. Empty means that nothing is traced.
	Endpoint string `toml:"endpoint"`

	// "http" (protobuf) or "grpc".
	Protocol string `toml:"protocol"`

	// The part of all requests that is traced, from 0 to 1. Nodes trace what their gateways trace.
	Ratio float64 `toml:"ratio"`

	// So many requests a second are traced because their callers say that they trace them, with a header traceparent. 0 leaves callers' traces alone.
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
