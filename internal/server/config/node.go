package config

import (
	"log/slog"

	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// NodeConfig is a storage node of a gateway. Each node is a separate table. The flag --node NAME=ADDRESS,WEIGHT adds
// a node, or replaces address and weight of the node with that name. SIGHUP reads the tables again.
type NodeConfig struct {
	// Name is the name of the node for routes, commands and metrics: letters, digits, ".", "_" and "-".
	Name string `toml:"name"`

	// Address is the address of the node: "HOST:PORT" or "unix:PATH". A node on another machine needs tls_ca or
	// secret_file.
	Address string `toml:"address"`

	// Weight is the share of requests among the nodes of a route, from 1 to 1000. A node with weight 2 gets twice as
	// many requests as one with 1.
	Weight int `toml:"weight" default:"1" range:"1..1000"`

	// Transport is how packs come from the node: "channel" uses separate connections; "inband" uses the control
	// call, for a proxy in between that supports nothing else. "inband" costs several times the CPU.
	Transport string `toml:"transport" default:"channel" values:"channel inband"`

	// SecretFile is the file with the secret of the node; see storage.secret_file.
	SecretFile string `toml:"secret_file" path:"yes"`

	// TLSCA is the PEM file with the certificates of the authorities that sign the node's certificate. With it the
	// gateway uses TLS.
	TLSCA string `toml:"tls_ca" path:"yes"`

	// TLSCert is the PEM file with the certificate and chain that the gateway shows to the node.
	TLSCert string `toml:"tls_cert" path:"yes"`

	// TLSKey is the PEM file with the private key of tls_cert.
	TLSKey string `toml:"tls_key" path:"yes"`

	// ServerName is the name in the node's certificate, if it is not the host of the address.
	ServerName string `toml:"server_name"`
}

// RouteConfig names the nodes that have the repositories below a path. Each route is a separate table. Without routes
// every node has all repositories. SIGHUP reads the tables again.
type RouteConfig struct {
	// Prefix selects the repositories whose paths begin with it, by whole path components: "team" includes team/app and
	// not teams/app. Empty means all. The longest matching prefix wins.
	Prefix string `toml:"prefix"`

	// Nodes lists the names of the nodes that have these repositories. Several nodes share an object store, or have
	// copies that their operator keeps equal; pushes to copies are refused. A request goes to another node if it fails
	// before the first byte.
	Nodes []string `toml:"nodes"`
}

// TransportInBand is the value of node.transport for packs within the control call.
const TransportInBand = "inband"

// LoadTrust loads the secret and the certificates of the connection to the node.
func (n *NodeConfig) LoadTrust(log *slog.Logger) (credfile.Trust, error) {
	return credfile.LoadTrust(n.SecretFile, n.TLSCert, n.TLSKey, n.TLSCA, log)
}

// AskedNodes returns the names of the nodes that get requests: those with a route, or all if there is no route.
func (c *Config) AskedNodes() map[string]bool {
	asked := map[string]bool{}
	for _, r := range c.Route {
		for _, name := range r.Nodes {
			asked[name] = true
		}
	}
	for _, n := range c.Node {
		if len(c.Route) == 0 {
			asked[n.Name] = true
		}
	}
	return asked
}
