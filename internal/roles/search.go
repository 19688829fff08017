package roles

import (
	"cmp"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/control"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/observe"
	searchremote "github.com/packhorse-git/packhorse/internal/search/remote"
	"github.com/packhorse-git/packhorse/internal/top"
	"github.com/packhorse-git/packhorse/internal/web/api"
)

// newSearchServer wires a search process: nodes elsewhere, the engine, and its port.
func newSearchServer(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, version, program string) (*server, error) {
	if program == "" {
		return nil, errors.New("this program does not know where its file is, and cannot start the processes that index and search")
	}
	n := &searchNodes{source: searchremote.NewSource(nil), log: log}
	if err := n.take(cfg); err != nil {
		return nil, err
	}
	lanes, err := newLanes(config.RoleSearch, cfg, log, reg, version)
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	s := &server{board: lanes.board, tracing: lanes.tracing, shown: top.Sources{Lanes: lanes.metrics}, reload: n.take, close: n.close}
	s.addSearch(cfg, log, reg, lanes, program, n.source)
	s.checks = []observe.Check{{Name: "search", Look: s.searching}}
	s.addLocal(cfg, log, lanes)
	trust, err := cfg.Search.LoadTrust(config.RoleSearch, log)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	metrics := control.NewMetrics()
	register(reg, metrics)
	handler := control.New(control.Options{
		Index: s.search, Ready: s.searching, Pump: lanes.pump, Lanes: lanes.Lanes, Memory: lanes.memory, Trust: controlTrust(trust), Metrics: metrics, Log: log,
		Board: lanes.board, SLI: lanes.sli, Tracer: lanes.tracer, Stall: cfg.Storage.Stall.Duration,
	})
	s.drain = handler.Drain
	s.control = newPort(handler.HTTPServer(), func(l net.Listener) net.Listener {
		l = bulk.Listen(l, lanes.pump, cfg.Storage.Stall.Duration)
		if trust.Certificate != nil {
			l = tls.NewListener(l, trust.ServerTLS())
		}
		return l
	})
	return s, nil
}

// searching tells whether searches can be answered.
func (s *server) searching() error {
	if status := s.search.Status(nil); !status.Searching {
		return fault.New(fault.Unavailable, "the process that searches does not run: %s", cmp.Or(status.Error, "it is being started"))
	}
	return nil
}

// askElsewhere has a gateway ask a search process, if the configuration names one.
func (s *server) askElsewhere(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, version string) error {
	if cfg.Search.Address == "" {
		return nil
	}
	c, err := searchClient(&cfg.Search, log)
	if err != nil {
		return err
	}
	below := s.close
	s.close = func() error {
		c.Close()
		return below()
	}
	index := searchremote.NewIndex(c)
	s.elsewhere = index
	s.pages, err = newPages(reg, api.APIOptions{Version: version, Searcher: index, Repositories: index, Status: index.Status})
	return err
}

// searchNodes are the nodes that a search process has connections to. They follow the configuration.
type searchNodes struct {
	source *searchremote.Source
	log    *slog.Logger

	mu   sync.Mutex
	open map[string]searchedNode // by name
}

// searchedNode is a node and what it was made from.
type searchedNode struct {
	config config.NodeConfig
	node   searchremote.Node
}

// take puts the nodes and routes of a configuration in the place of those that there are. A node whose table did not change keeps its connections.
// After an error everything is as it was.
func (n *searchNodes) take(cfg config.Config) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	next := make(map[string]searchedNode, len(cfg.Node))
	var all searchremote.Route
	for _, c := range cfg.Node {
		known, ok := n.open[c.Name]
		if !ok || known.config != c {
			trust, err := c.LoadTrust(n.log)
			if err != nil {
				return err
			}
			asked, err := client.New(c.Address, ClientOptions(trust, c.ServerName))
			if err != nil {
				return err
			}
			known = searchedNode{c, searchremote.Node{Name: c.Name, Client: asked}}
			n.log.Info("asking a storage node", "node", c.Name, "address", c.Address)
		}
		next[c.Name] = known
		all.Nodes = append(all.Nodes, known.node)
	}
	var routes []searchremote.Route
	for _, r := range cfg.Route {
		prefix, _ := r.PathPrefix() // was checked
		route := searchremote.Route{Prefix: prefix}
		for _, name := range r.Nodes {
			route.Nodes = append(route.Nodes, next[name].node)
		}
		routes = append(routes, route)
	}
	if len(routes) == 0 {
		routes = []searchremote.Route{all}
	}
	n.source.Set(routes)
	for name, old := range n.open {
		if next[name].node != old.node {
			n.log.Info("a storage node is gone, or another one took its place", "node", name, "address", old.config.Address)
			old.node.Client.Close()
		}
	}
	n.open = next
	return nil
}

// close closes the connections.
func (n *searchNodes) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.open {
		m.node.Client.Close()
	}
	return nil
}
