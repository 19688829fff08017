package roles

import (
	"log/slog"
	"sync"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/config"
	searchremote "github.com/packhorse-git/packhorse/internal/search/remote"
)

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

// apply puts the nodes and routes of a configuration in the place of those that there are. A node whose table did not
// change keeps its connections. After an error everything is as it was.
func (n *searchNodes) apply(cfg config.Config) error {
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
