package roles

import (
	"log/slog"
	"slices"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/gateway/resolve"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/gateway/web/api"
	searchremote "github.com/packhorse-git/packhorse/internal/search/remote"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
)

// newRemoteNodes connects a gateway to storage nodes in other processes. They follow the configuration.
func newRemoteNodes(d *deps) (*router.Router, error) {
	routes := router.New(d.reg)
	nodes := &remoteNodes{
		router: routes, channels: sidechannel.NewMetrics(d.reg), log: d.log, pump: d.lanes.pump,
		table: nodeTable[remoteNode]{log: d.log},
	}
	d.life.push("connections to storage nodes", nodes.close)
	if err := nodes.apply(d.cfg); err != nil {
		return nil, err
	}
	nodes.waitForFirst()
	d.life.check("nodes", nodes.ready)
	d.life.onReload(nil, nodes.apply)
	d.life.notes = append(d.life.notes, func() []string { return refusedPushes(routes) })
	return routes, nil
}

// refusedPushes returns a line for each reason why pushes to a route with an object store are refused.
func refusedPushes(routes *router.Router) (lines []string) {
	for _, s := range routes.Status() {
		line := "warning: pushes are refused: " + s.Refused + ": " + router.AllowPushes
		if s.Refused != "" && s.Store != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// newTiers makes the resolver of a gateway: memory over Redis, if it is configured, over the nodes.
func newTiers(d *deps, nodes *router.Router) (*resolve.Tiers, error) {
	metrics := resolve.NewMetrics(d.reg)
	redis, err := newRedis(&d.cfg.Resolver, metrics, d.log)
	if err != nil {
		return nil, err
	}
	tiers := resolve.New(resolve.Options{
		Node: nodes, Group: nodes.Home, Redis: redis, Metrics: metrics, Log: d.log,
	})
	d.life.push("resolver", tiers.Close)
	d.life.onReload(nil, func(config.Config) error {
		tiers.Forget() // nodes and routes may have changed
		return nil
	})
	return tiers, nil
}

// newRedis returns nil if no Redis is configured.
func newRedis(c *config.ResolverConfig, metrics *resolve.Metrics, log *slog.Logger) (*resolve.Redis, error) {
	if c.Redis == "" {
		return nil, nil
	}
	o := resolve.RedisOptions{URL: c.Redis, Timeout: c.RedisTimeout.Duration, Metrics: metrics, Log: log}
	if c.RedisCA != "" {
		authorities, err := credfile.LoadAuthorities(c.RedisCA, log)
		if err != nil {
			return nil, err
		}
		o.Authorities = authorities.Pool()
	}
	if c.RedisPasswordFile != "" {
		password, err := credfile.LoadSecret(c.RedisPasswordFile, log)
		if err != nil {
			return nil, err
		}
		o.Password = password.Get
	}
	if c.RedisSecretFile != "" {
		secret, err := credfile.LoadSecret(c.RedisSecretFile, log)
		if err != nil {
			return nil, err
		}
		o.Secret = []byte(secret.Get())
	}
	return resolve.NewRedis(o)
}

// newRemoteIndex connects to the configured search process. It returns nil if search.address is empty.
func newRemoteIndex(d *deps) (*api.APIOptions, error) {
	cfg := d.cfg.Search
	if cfg.Address == "" {
		return nil, nil
	}
	trust, err := cfg.LoadTrust(config.RoleGateway, d.log)
	if err != nil {
		return nil, err
	}
	c, err := client.New(cfg.Address, ClientOptions(trust, cfg.ServerName))
	if err != nil {
		return nil, err
	}
	d.life.push("connection to the search process", infallible(c.Close))
	index := searchremote.NewIndex(c)
	return &api.APIOptions{Searcher: index, Repositories: index, Status: index.Status}, nil
}
