package roles

import (
	"iter"
	"log/slog"
	"sync"

	"github.com/packhorse-git/packhorse/internal/server/config"
)

// nodeTable has a connection of type C to each storage node of the configuration. Safe for concurrent use.
type nodeTable[C comparable] struct {
	log *slog.Logger

	mu    sync.Mutex
	nodes map[string]connectedNode[C] // by name
}

// connectedNode is a connection and the configuration that it was made from.
type connectedNode[C comparable] struct {
	config     config.NodeConfig
	connection C
}

// nodeRoute is a route of the configuration with the connections to its nodes.
type nodeRoute[C comparable] struct {
	prefix string
	nodes  []C
}

// apply connects to the nodes of a configuration and passes its routes to set. A node whose table did not change keeps
// its connection. It returns the connections that are not in use any more. After an error the table is as before, and
// the new connections are passed to discard.
func (t *nodeTable[C]) apply(cfg config.Config, connect func(config.NodeConfig) (C, error), discard func(C),
	set func([]nodeRoute[C]) error) (unused []C, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := make(map[string]connectedNode[C], len(cfg.Node))
	var added []connectedNode[C]
	defer func() {
		for _, one := range added {
			if err != nil {
				discard(one.connection)
			} else {
				t.log.Info("storage node added", "node", one.config.Name, "address", one.config.Address)
			}
		}
	}()
	routed := cfg.AskedNodes()
	for _, c := range cfg.Node {
		old, ok := t.nodes[c.Name]
		switch {
		case !routed[c.Name]:
			t.log.Warn("storage node without a route ignored", "node", c.Name)
		case ok && old.config == c:
			next[c.Name] = old
		default:
			connection, err := connect(c)
			if err != nil {
				return nil, err
			}
			next[c.Name] = connectedNode[C]{c, connection}
			added = append(added, next[c.Name])
		}
	}
	if err := set(routesTo(&cfg, next)); err != nil {
		return nil, err
	}
	for name, old := range t.nodes {
		if next[name].connection != old.connection {
			t.log.Info("storage node removed", "node", name, "address", old.config.Address)
			unused = append(unused, old.connection)
		}
	}
	t.nodes = next
	return unused, nil
}

// routesTo returns the routes of a configuration. Without any, every node has all repositories.
func routesTo[C comparable](cfg *config.Config, nodes map[string]connectedNode[C]) (routes []nodeRoute[C]) {
	for _, r := range cfg.Route {
		prefix, _ := r.PathPrefix() // cannot fail: the configuration was checked
		route := nodeRoute[C]{prefix: prefix}
		for _, name := range r.Nodes {
			route.nodes = append(route.nodes, nodes[name].connection)
		}
		routes = append(routes, route)
	}
	if len(routes) == 0 {
		route := nodeRoute[C]{}
		for _, c := range cfg.Node {
			route.nodes = append(route.nodes, nodes[c.Name].connection)
		}
		routes = append(routes, route)
	}
	return routes
}

// all yields the current connections.
func (t *nodeTable[C]) all() iter.Seq[C] {
	return func(yield func(C) bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, one := range t.nodes {
			if !yield(one.connection) {
				return
			}
		}
	}
}
