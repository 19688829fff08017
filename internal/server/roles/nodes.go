package roles

import (
	"crypto/tls"
	"log/slog"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/remote"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
	"github.com/packhorse-git/packhorse/internal/transport/sidechannel"
)

// remoteNodes connects a gateway to its storage nodes. They follow the configuration.
type remoteNodes struct {
	router   *router.Router
	channels *sidechannel.Metrics
	log      *slog.Logger
	pump     *bulk.Pump

	table   nodeTable[remoteNode]
	closing sync.WaitGroup // nodes that the router released
}

// remoteNode is a node and its place in the router.
type remoteNode struct {
	*remote.Node
	replica *router.Replica
}

// apply connects to the nodes of a configuration and applies its routes. After an error the previous ones stay in use.
func (n *remoteNodes) apply(cfg config.Config) error {
	_, err := n.table.apply(cfg, n.connect, func(c remoteNode) { c.replica.Gone() },
		func(to []nodeRoute[remoteNode]) error {
			routes := make([]router.Route, len(to))
			for i, r := range to {
				routes[i].Prefix = r.prefix
				for _, node := range r.nodes {
					routes[i].Replicas = append(routes[i].Replicas, node.replica)
				}
			}
			return n.router.Set(routes)
		})
	return err
}

// Times of waitForFirst.
const (
	firstLimit    = time.Second
	firstInterval = 10 * time.Millisecond
)

// waitForFirst waits for the first health check of each node, but not for one that takes long. Until then a route of
// several nodes does not know its object store, and takes no requests.
func (n *remoteNodes) waitForFirst() {
	for end := time.Now().Add(firstLimit); time.Now().Before(end); time.Sleep(firstInterval) {
		isChecked := true
		for node := range n.table.all() {
			_, isKnown := node.Store()
			isChecked = isChecked && (isKnown || node.Ready() != nil)
		}
		if isChecked {
			return
		}
	}
}

// connect makes a client of a node.
func (n *remoteNodes) connect(c config.NodeConfig) (remoteNode, error) {
	trust, err := c.LoadTrust(n.log)
	if err != nil {
		return remoteNode{}, err
	}
	options := remote.Options{
		Name: c.Name, Address: c.Address, InBand: c.Transport == config.TransportInBand,
		Log: n.log, Channels: n.channels, Pump: n.pump,
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
	return remoteNode{node, &router.Replica{
		Name: c.Name, Node: node, Revisions: node, Weight: c.Weight, Ready: node.Ready, Usable: node.Reachable,
		Store: node.Store, Hint: node.Hint, Gone: gone,
	}}, nil
}

// ready returns an error if no node can be reached. Nodes of an object store that cannot be reached still answer
// fetches of repositories that they have on their disks.
func (n *remoteNodes) ready() error {
	for node := range n.table.all() {
		if id, _ := node.Store(); node.Ready() == nil || id != "" && node.Reachable() {
			return nil
		}
	}
	return fault.New(fault.Unavailable, "no storage node can be reached")
}

// close closes all connections. No request may be running.
func (n *remoteNodes) close() error {
	err := n.router.Set(nil)
	n.closing.Wait()
	return err
}

// ClientOptions returns the credentials of a client of the control API, and the authorities that it trusts.
func ClientOptions(t credfile.Trust, serverName string) (o client.Options) {
	if t.Secret != nil {
		o.Secret = t.Secret.Get
	}
	if t.Authorities != nil {
		o.TLS = t.ClientTLS(serverName)
	}
	return o
}
