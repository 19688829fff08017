package roles

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/bulk"
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/credfile"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/remote"
	"github.com/packhorse-git/packhorse/internal/router"
	"github.com/packhorse-git/packhorse/internal/sidechannel"
)

// remoteNodes are the nodes that a gateway has connections to. They follow the configuration.
type remoteNodes struct {
	router   *router.Router
	metrics  *remote.Metrics
	channels *sidechannel.Metrics
	log      *slog.Logger
	pump     *bulk.Pump

	mu      sync.Mutex
	open    map[string]remoteNode // by name, those that the routes name now
	closing sync.WaitGroup        // nodes that are gone
}

// remoteNode is a node and what it was made from.
type remoteNode struct {
	config  config.NodeConfig
	node    *remote.Node
	replica *router.Replica
}

// apply puts the nodes and routes of a configuration in the place of those that there are. A node whose table did not
// change keeps its connections. After an error everything is as it was.
func (n *remoteNodes) apply(cfg config.Config) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	next := map[string]remoteNode{}
	var made []remoteNode
	undo := func(err error) error {
		for _, m := range made {
			err = errors.Join(err, m.node.Close())
		}
		return err
	}
	asked := cfg.AskedNodes()
	for _, c := range cfg.Node {
		if !asked[c.Name] {
			n.log.Warn("no route leads to a storage node: it is not asked", "node", c.Name)
			continue
		}
		if old, ok := n.open[c.Name]; ok && old.config == c {
			next[c.Name] = old
			continue
		}
		m, err := n.connect(c)
		if err != nil {
			return undo(err)
		}
		made = append(made, m)
		next[c.Name] = m
	}
	var all []*router.Replica // with those that no route names
	for _, node := range next {
		all = append(all, node.replica)
	}
	if err := n.router.Set(routesOf(&cfg, next), all...); err != nil {
		return undo(err)
	}
	for name, old := range n.open {
		if now, ok := next[name]; !ok || now.node != old.node {
			n.log.Info("a storage node is gone, or another one took its place", "node", name, "address", old.config.Address)
		}
	}
	for _, m := range made {
		n.log.Info("asking a storage node", "node", m.config.Name, "address", m.config.Address)
	}
	n.open = next
	return nil
}

// connect makes the connections to a node, as far as they are made before the first request.
func (n *remoteNodes) connect(c config.NodeConfig) (remoteNode, error) {
	trust, err := c.LoadTrust(n.log)
	if err != nil {
		return remoteNode{}, err
	}
	options := remote.Options{
		Name: c.Name, Address: c.Address, InBand: c.Transport == config.TransportInBand, NoFiles: !c.Files,
		Metrics: n.metrics, Log: n.log,
		Channels: n.channels, ChannelIdle: c.ChannelIdle.Duration, ChannelStall: c.Stall.Duration, Pump: n.pump,
	}
	if trust.Secret != nil {
		options.Secret = trust.Secret.Get
	}
	if trust.Authorities != nil {
		options.TLS = func() *tls.Config { return trust.ClientTLS(c.ServerName) }
	}
	node, err := remote.New(options)
	if err != nil {
		return remoteNode{}, err
	}
	gone := func() {
		n.closing.Go(func() {
			if err := node.Close(); err != nil {
				n.log.Warn("closing the connections to a storage node", "node", c.Name, "error", err)
			}
		})
	}
	return remoteNode{c, node, &router.Replica{
		Name: c.Name, Node: node, Revisions: node, Files: node, Weight: c.Weight, Ready: node.Ready, Usable: node.Reachable,
		Gone: gone,
	}}, nil
}

// routesOf are the routes of a configuration. Without any, every node has all repositories.
func routesOf(cfg *config.Config, nodes map[string]remoteNode) (routes []router.Route) {
	for _, r := range cfg.Route {
		prefix, _ := r.PathPrefix() // was checked
		route := router.Route{Prefix: prefix}
		for _, name := range r.Nodes {
			route.Replicas = append(route.Replicas, nodes[name].replica)
		}
		routes = append(routes, route)
	}
	if len(routes) == 0 {
		all := router.Route{}
		for _, c := range cfg.Node {
			all.Replicas = append(all.Replicas, nodes[c.Name].replica)
		}
		routes = append(routes, all)
	}
	return routes
}

// ready tells whether any node can be reached.
func (n *remoteNodes) ready() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.open {
		if m.node.Ready() == nil {
			return nil
		}
	}
	return fault.New(fault.Unavailable, "no storage node can be reached")
}

// close ends all connections. No request may be running.
func (n *remoteNodes) close() error {
	err := n.router.Set(nil)
	n.closing.Wait()
	return err
}

// ClientOptions is what a client of the control API shows, and whom it trusts.
func ClientOptions(t credfile.Trust, serverName string) (o client.Options) {
	if t.Secret != nil {
		o.Secret = t.Secret.Get
	}
	if t.Authorities != nil {
		o.TLS = t.ClientTLS(serverName)
	}
	return o
}
