package roles

import (
	"log/slog"
	"slices"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/gateway/resolve"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/gateway/web/api"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	searchremote "github.com/packhorse-git/packhorse/internal/search/remote"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
)

// buildGateway builds a gateway to storage nodes in other processes.
func (s *server) buildGateway() error {
	routes := router.New(s.reg)
	nodes := &remoteNodes{
		router: routes, channels: sidechannel.NewMetrics(s.reg), log: s.log, pump: s.lanes.pump,
		table: nodeTable[remoteNode]{log: s.log},
	}
	s.closers.push("connections to storage nodes", nodes.close)
	if err := nodes.apply(s.cfg); err != nil {
		return err
	}
	nodes.waitForFirst()
	s.checks = append(s.checks, observe.Check{Name: "nodes", Look: nodes.ready})
	s.reloads = append(s.reloads, reloadStep{apply: nodes.apply})
	s.notes = append(s.notes, func() []string { return refusedPushes(routes) })
	s.router = routes
	tiers, err := s.newTiers(routes)
	if err != nil {
		return err
	}
	s.closers.push("resolver", tiers.Close)
	s.reloads = append(s.reloads, reloadStep{apply: func(config.Config) error {
		tiers.Forget() // nodes and routes may have changed
		return nil
	}})
	searchAPI, err := s.addRemoteIndex()
	if err != nil {
		return err
	}
	if err := s.addGateway(routes, tiers, searchAPI); err != nil {
		return err
	}
	s.addAdmin()
	return nil
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
func (s *server) newTiers(nodes *router.Router) (*resolve.Tiers, error) {
	metrics := resolve.NewMetrics(s.reg)
	redis, err := newRedis(&s.cfg.Resolver, metrics, s.log)
	if err != nil {
		return nil, err
	}
	return resolve.New(resolve.Options{
		Node: nodes, Group: nodes.Home, Redis: redis, Metrics: metrics, Log: s.log,
	}), nil
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

// addRemoteIndex connects to the configured search process and returns its API, or nil if search.address is empty.
func (s *server) addRemoteIndex() (*api.API, error) {
	cfg := s.cfg.Search
	if cfg.Address == "" {
		return nil, nil
	}
	trust, err := cfg.LoadTrust(config.RoleGateway, s.log)
	if err != nil {
		return nil, err
	}
	c, err := client.New(cfg.Address, ClientOptions(trust, cfg.ServerName))
	if err != nil {
		return nil, err
	}
	s.closers.push("connection to the search process", infallible(c.Close))
	s.remoteIndex = searchremote.NewIndex(c)
	return s.newSearchAPI(api.APIOptions{Searcher: s.remoteIndex, Repositories: s.remoteIndex,
		Status: s.remoteIndex.Status})
}
