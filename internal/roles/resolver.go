package roles

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/resolve"
	"github.com/packhorse-git/packhorse/internal/router"
)

// newTiers stacks what resolves revisions in a gateway: memory, over Redis if there is one, over the nodes. Nil: the nodes alone.
func newTiers(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, nodes *router.Router) (*resolve.Tiers, error) {
	if cfg.Resolver.Entries == 0 {
		return nil, nil
	}
	metrics := resolve.NewMetrics()
	redis, err := newRedis(&cfg.Resolver, metrics, log)
	if err != nil {
		return nil, err
	}
	register(reg, metrics)
	return resolve.New(resolve.Options{
		Node: nodes, Group: nodes.Home, Entries: cfg.Resolver.Entries, Watched: cfg.Resolver.Watched, Redis: redis,
		TTL: cfg.Resolver.TTL.Duration, MissingTTL: cfg.Resolver.MissingTTL.Duration, Metrics: metrics, Log: log,
	}), nil
}
