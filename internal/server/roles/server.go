package roles

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/gateway/app"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/search"
	searchremote "github.com/packhorse-git/packhorse/internal/search/remote"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/store"
)

// server has the parts of a process with a role. The function of the role (buildServe, buildStorage, buildGateway,
// buildSearch) builds them in order. Parts that the role does not need are nil.
type server struct {
	role    config.Role
	cfg     config.Config // of the start
	log     *slog.Logger
	reg     prometheus.Registerer
	process Process
	lanes   lanes

	public  *port // git clients, HTTP
	ssh     *port // git clients, SSH
	control *port // gateways
	admin   *port // commands, on the admin socket

	router      *router.Router // of a gateway
	packs       *packSources
	store       *store.Store // nil: the repositories are those below the root
	node        *storage.Node
	mirrors     *mirrors        // nil: there are none
	origins     *origin.Metrics // see originMetrics
	originLists []func() []*origin.Origin
	search      *search.Engine
	remoteIndex *searchremote.Index // in another process
	app         *app.Proxy

	hostKeys []string // fingerprints of the SSH host keys, each after its kind
	dumps    dumps
	checks   []observe.Check   // readiness needs all of them
	notes    []func() []string // lines for the response of /readyz
	drains   []func()          // announce the shutdown to clients and gateways
	reloads  []reloadStep      // in the order in which they are applied
	closers  *closers
}

// reloadStep applies a part of a reloaded configuration.
type reloadStep struct {
	check func(config.Config) error // must not change anything; may be nil
	apply func(config.Config) error
}

// build builds the parts of a role and pushes their closers, also those of the parts that exist before an error.
func build(role config.Role, cfg config.Config, log *slog.Logger, reg prometheus.Registerer, p Process,
	c *closers) (*server, error) {
	s := &server{role: role, cfg: cfg, log: log, reg: reg, process: p, closers: c}
	if err := s.addLanes(); err != nil {
		return nil, err
	}
	reg.MustRegister(newCertificateMetric(&cfg, role))
	switch role {
	case config.RoleStorage:
		return s, s.buildStorage()
	case config.RoleGateway:
		return s, s.buildGateway()
	case config.RoleSearch:
		return s, s.buildSearch()
	}
	return s, s.buildServe()
}

// reload applies a reloaded configuration. After an error of a check, or of the first step, nothing has changed.
func (s *server) reload(cfg config.Config) error {
	for _, step := range s.reloads {
		if step.check != nil {
			if err := step.check(cfg); err != nil {
				return err
			}
		}
	}
	for _, step := range s.reloads {
		if err := step.apply(cfg); err != nil {
			return err
		}
	}
	return nil
}

// ports returns the ports of the server with their listeners.
func (s *server) ports(l listeners) []servedPort {
	var list []servedPort
	for _, one := range []servedPort{{s.public, l.public}, {s.ssh, l.ssh}, {s.control, l.node}, {s.admin, l.admin}} {
		if one.port != nil && one.listener != nil {
			list = append(list, one)
		}
	}
	return list
}
