package roles

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/app"
	"github.com/packhorse-git/packhorse/internal/gateway/githttp"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// newApp makes the application proxy. It returns nil if the configuration has no application.
func newApp(d *deps) (*app.Proxy, error) {
	metrics := app.NewMetrics(d.reg)
	if !d.cfg.App.Enabled() {
		return nil, nil
	}
	o, err := d.cfg.App.Options(d.cfg)
	if err != nil {
		return nil, err
	}
	o.Metrics, o.Log = metrics, d.log
	o.Caller = func(from netip.Addr) balance.Caller {
		if !from.IsValid() {
			return d.lanes.CallerOf("", "")
		}
		return d.lanes.CallerAt(from)
	}
	proxy, err := app.New(o)
	if err != nil {
		return nil, fmt.Errorf("application: %w", err)
	}
	d.life.push("application", infallible(proxy.Close))
	d.life.onReload(func(cfg config.Config) error {
		_, err := cfg.App.Routing()
		return err
	}, func(cfg config.Config) error {
		next, err := cfg.App.Routing()
		if err != nil || !cfg.App.Enabled() {
			return err
		}
		return proxy.Set(next)
	})
	return proxy, nil
}

// application adapts the proxy to githttp.
type application struct{ *app.Proxy }

// Serve passes a request to the application.
func (a application) Serve(ctx context.Context, w http.ResponseWriter, r *http.Request,
	from clients.Source) githttp.Served {
	record := a.Proxy.Serve(ctx, w, r, from)
	served := githttp.Served{Status: record.Status, Bytes: record.Out, Err: record.Err, Cut: record.Cut,
		Took: record.Queue + record.Service}
	if !record.Upgraded {
		served.Class = inflight.ClassApp
	}
	attrs := make([]slog.Attr, 0, 6)
	if record.Pool != "" {
		attrs = append(attrs, slog.String("pool", record.Pool), milliseconds("queue_ms", record.Queue))
	}
	if record.Worker != "" {
		attrs = append(attrs, slog.String("worker", record.Worker), slog.String("reason", string(record.Reason)),
			milliseconds("service_ms", record.Service))
	}
	if record.In > 0 {
		attrs = append(attrs, slog.Int64("body_bytes", record.In), milliseconds("receive_ms", record.Receive))
	}
	if record.Tries > 1 {
		attrs = append(attrs, slog.Int("tries", record.Tries))
	}
	if record.Upgraded {
		attrs = append(attrs, slog.Bool("upgraded", true))
	}
	served.Attrs = attrs
	return served
}

// milliseconds returns a log field with a duration as a number, which log tools can sum.
func milliseconds(key string, d time.Duration) slog.Attr {
	return slog.Float64(key, float64(d.Microseconds())/1000)
}
