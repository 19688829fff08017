package config

import "github.com/packhorse-git/packhorse/internal/operations/observe"

// OpsConfig is the private listener for metrics, health and profiles.
type OpsConfig struct {
	// Address is the host and port of the private listener. Empty means none. All processes that can connect to it can
	// read profiles.
	Address string `toml:"address" default:"127.0.0.1:9090"`

	// Expose allows an address that other machines can reach. Set it only if the network is trusted.
	Expose bool `toml:"expose"`
}

// LogConfig is the log on standard error.
type LogConfig struct {
	// Level is the least severe level that is logged: "debug", "info", "warn" or "error".
	Level string `toml:"level" default:"info" values:"debug info warn error"`

	// Format is "json", "text" (key=value), "terminal" (short lines for people) or "auto": terminal on a terminal, JSON
	// elsewhere. Lines on a terminal are colored unless NO_COLOR is set or TERM is "dumb".
	Format string `toml:"format" default:"auto" values:"auto terminal text json"`
}

// SLIConfig sets the time limits by which requests count as fast (docs/explanation/observability.md).
type SLIConfig struct {
	// Scale multiplies the limits of all classes: 2 is for disks or networks that take twice as long.
	Scale float64 `toml:"scale" default:"1" range:">0..100"`
}

// WatchdogConfig sets the watchdog, which writes a dump when the process is stalled (docs/explanation/watchdog.md). A
// dump has stacks and profiles. It is in STATE/dumps.
type WatchdogConfig struct {
	// Enabled starts the watchdog. It also writes a dump at SIGQUIT and for "packhorse debug dump". Without it SIGQUIT
	// ends the process.
	Enabled bool `toml:"enabled" default:"true"`

	// Stall is how long a stall must last before a dump is written. Between two automatic dumps is at least sixty times as
	// long.
	Stall Duration `toml:"stall" default:"10s" range:"100ms.."`
}

// TracingConfig exports OpenTelemetry traces (docs/explanation/observability.md).
type TracingConfig struct {
	// Endpoint is the URL of the OTLP collector: "http://127.0.0.1:4318", or port 4317 for gRPC. Headers for it, such as
	// "api-key=secret", are in the environment variable OTEL_EXPORTER_OTLP_HEADERS. Empty means no tracing.
	Endpoint string `toml:"endpoint"`

	// Protocol is "http" (protobuf) or "grpc".
	Protocol string `toml:"protocol" default:"http" values:"http grpc"`

	// Ratio is the share of requests that are traced. Nodes trace the requests that their gateways trace.
	Ratio float64 `toml:"ratio" default:"0.01" range:"0..1"`
}

// OtlpGRPC is the value of tracing.protocol for gRPC.
const OtlpGRPC = "grpc"

func (c *TracingConfig) check(f *Findings) {
	if c.Endpoint == "" {
		return
	}
	if _, err := observe.ParseCollector(c.Endpoint, c.Protocol == OtlpGRPC); err != nil {
		f.bad("tracing.endpoint: %w", err)
	}
}
