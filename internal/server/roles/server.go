package roles

import (
	"context"
	"log/slog"
	"net"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/gateway/web/api"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node/control"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/operations/watchdog"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/server/adminapi"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// server is a process with a role. Parts that the role does not need are nil.
type server struct {
	*deps
	node    *nodeParts    // repositories
	gateway *gatewayParts // clients
	search  *search.Engine
	control *port // gateways
	admin   *port // commands, on the admin socket
	dumps   dumps
}

// build builds the parts of a role. life gets their closers, also those of the parts that exist before an error.
func build(role config.Role, cfg config.Config, log *slog.Logger, reg prometheus.Registerer, p Process,
	life *lifecycle) (*server, error) {
	d, err := newDeps(role, cfg, log, reg, p, life)
	if err != nil {
		return nil, err
	}
	reg.MustRegister(newCertificateMetric(&cfg, role))
	s := &server{deps: d}
	switch role {
	case config.RoleStorage:
		err = s.buildStorage()
	case config.RoleGateway:
		err = s.buildGateway()
	case config.RoleSearch:
		err = s.buildSearch()
	default:
		err = s.buildServe()
	}
	if err != nil {
		return nil, err
	}
	s.addAdmin()
	return s, nil
}

func newDeps(role config.Role, cfg config.Config, log *slog.Logger, reg prometheus.Registerer, p Process,
	life *lifecycle) (*deps, error) {
	d := &deps{role: role, cfg: cfg, log: log, reg: reg, process: p, life: life,
		origins: origins{metrics: origin.NewMetrics(reg)}}
	return d, d.addLanes()
}

// localNode is the name of the node in the gateway's own process.
const localNode = "local"

// buildServe builds a gateway and a storage node in one process.
func (s *server) buildServe() (err error) {
	if s.node, err = newNodeParts(s.deps); err != nil {
		return err
	}
	node := s.node.node
	o := gatewayOptions{routes: router.New(s.reg), access: newAccess(&s.cfg, s.node.store)}
	if m := s.node.mirrors; m != nil {
		o.mirrors, o.hooks, o.mirrorStates = m, m.hooks, m.states
	}
	if s.cfg.Search.Enabled {
		source := searchNode{node, s.lanes.Cold}
		s.search = newSearch(s.deps, source)
		node.OnChange(s.search.Touch)
		node.SetIndex(s.search)
		o.search = &api.APIOptions{Repositories: source, Searcher: s.search, Status: s.search.Status}
	}
	s.node.followStore(s.search)
	s.control = s.node.control
	replica := &router.Replica{Name: localNode, Node: s.node.called(s.deps), Revisions: storage.Resolver{Node: node}}
	if err := o.routes.Set([]router.Route{{Replicas: []*router.Replica{replica}}}); err != nil {
		return err
	}
	s.gateway, err = newGatewayParts(s.deps, o)
	return err
}

// buildStorage builds a storage node for gateways in other processes.
func (s *server) buildStorage() (err error) {
	// Rules and a hook are known if node and gateways have the same configuration file.
	s.lanes.reserveForKnown(sticky(s.cfg.Auth.KnowsCallers))
	if s.node, err = newNodeParts(s.deps); err != nil {
		return err
	}
	s.node.followStore(nil)
	s.control = s.node.control
	return nil
}

// buildGateway builds a gateway to storage nodes, and maybe a search process, in other processes.
func (s *server) buildGateway() (err error) {
	var o gatewayOptions
	if o.routes, err = newRemoteNodes(s.deps); err != nil {
		return err
	}
	o.access = newAccess(&s.cfg, &router.AccessLog{Router: o.routes})
	if o.tiers, err = newTiers(s.deps, o.routes); err != nil {
		return err
	}
	if o.search, err = newRemoteIndex(s.deps); err != nil {
		return err
	}
	if o.mirrors, err = newNodeMirrors(s.deps); err != nil {
		return err
	}
	s.gateway, err = newGatewayParts(s.deps, o)
	return err
}

// buildSearch builds a process that indexes the repositories of storage nodes and searches for gateways.
func (s *server) buildSearch() error {
	source, err := newSearchedNodes(s.deps)
	if err != nil {
		return err
	}
	s.search = newSearch(s.deps, source)
	s.life.check("search", s.checkSearch)
	trust, err := s.cfg.Search.LoadTrust(config.RoleSearch, s.log)
	if err != nil {
		return err
	}
	o := controlOptions(s.deps)
	o.Index, o.Ready = s.search, s.checkSearch
	_, s.control = newControl(s.deps, o, trust)
	return nil
}

// addAdmin adds the control API on the admin socket, with the work of commands.
func (s *server) addAdmin() {
	admin := &adminapi.Service{Drain: s.cfg.App.Drain.Duration, Origins: s.origins.status,
		Dump: func(ctx context.Context) (watchdog.Dump, error) { return s.dumps.write(ctx) }}
	o := control.Options{
		Admin: admin, Pump: s.lanes.pump, Lanes: s.lanes.Lanes, Memory: s.lanes.memory,
		Log: s.log, Board: s.lanes.board, MaxRequest: int64(s.cfg.HTTP.MaxBody),
		Ready: func() error { return nil }, Mentions: s.mentionsOf,
	}
	if s.gateway != nil {
		admin.App, o.Access = s.gateway.app, s.gateway.access
	} else if s.node != nil {
		o.Access = s.node.access(s.deps)
	}
	switch {
	case s.node != nil:
		admin.Node, o.Node, o.Events = s.node.node, s.node.node, s.node.events()
		o.Webhooks = s.node.hooks
		if s.node.mirrors != nil {
			admin.Mirrors = s.node.mirrors.Mirrors
		}
	case s.gateway != nil:
		admin.Router = s.gateway.routes
	}
	if s.search != nil {
		o.Index, o.Ready = s.search, s.checkSearch
	}
	api := control.New(o)
	s.admin = newPort(api.HTTPServer(), func(l net.Listener) net.Listener {
		return bulk.Listen(l, s.lanes.pump, api.Stall)
	})
}

// ports returns the ports of the server with their listeners.
func (s *server) ports(l listeners) []servedPort {
	all := []servedPort{{s.control, l.node}, {s.admin, l.admin}}
	if s.gateway != nil {
		all = append(all, servedPort{s.gateway.public, l.public}, servedPort{s.gateway.ssh, l.ssh})
	}
	return slices.DeleteFunc(all, func(p servedPort) bool { return p.port == nil || p.listener == nil })
}
