package config

import (
	"log/slog"
	"time"

	"github.com/packhorse-git/packhorse/internal/credfile"
)

// NodeConfig is one storage node that a gateway asks; each has a table of its own. The flag --node NAME=ADDRESS,WEIGHT adds one, or goes over
// the address and the weight of the one with that name. SIGHUP reads the tables again.
type NodeConfig struct {
	// What routes, commands and metrics call the node: letters, digits, ".", "_" and "-".
	Name string `toml:"name"`

	// Where the node listens: "HOST:PORT" or "unix:PATH". One on another machine needs tls_ca or secret_file.
	Address string `toml:"address"`

	// The node's share of the requests among the nodes of its route, 1 to 1000: with 2 it is given twice as many as one with 1.
	Weight int `toml:"weight"`

	// How packs come from the node: by "channel", connections of their own, or "inband", within the control call, where a proxy in between
	// knows nothing else. It costs several times the CPU.
	Transport string `toml:"transport"`

	// By a Unix socket the node hands the gateway the files of packs, and the gateway sends them: that halves the CPU time of a clone. Each takes an open
	// file of the gateway's. With false, by TCP, or where the socket is forwarded, the packs' bytes come through it.
	Files bool `toml:"files"`

	// How long a side channel to the node is kept for the next transfer, and no longer than half of the node's storage.channel_idle.
	ChannelIdle Duration `toml:"channel_idle"`

	// How long the node may keep the gateway waiting in the middle of a transfer on a side channel before the channel is cut.
	Stall Duration `toml:"stall"`

	// File with the secret that the node wants; see storage.secret_file.
	SecretFile string `toml:"secret_file"`

	// File with the certificates (PEM) of those who sign the node's certificate. With it the gateway speaks TLS with the node.
	TLSCA string `toml:"tls_ca"`

	// File with the certificate and its chain (PEM) that the gateway shows the node.
	TLSCert string `toml:"tls_cert"`

	// File with the private key of tls_cert (PEM).
	TLSKey string `toml:"tls_key"`

	// The name in the node's certificate, where it is not the host of its address.
	ServerName string `toml:"server_name"`
}

// RouteConfig says which nodes have the repositories below a path; each has a table of its own. Without any, every node has all
// repositories. SIGHUP reads them again.
type RouteConfig struct {
	// The repositories whose paths begin with it, by whole components: "team" is for team/app and not for teams/app. Empty: all. The longest
	// prefix holds.
	Prefix string `toml:"prefix"`

	// Names of the nodes that have these repositories. Several are replicas, which whoever operates them keeps alike: the least busy one that is
	// up is asked, and another one if it fails before the first byte.
	Nodes []string `toml:"nodes"`
}

// Values of node.transport.
const (
	TransportChannel = "channel"
	TransportInBand  = "inband"
)

func defaultNode() NodeConfig {
	return NodeConfig{Weight: 1, Transport: TransportChannel, Files: true, ChannelIdle: Duration{10 * time.Second}, Stall: Duration{time.Minute}}
}

func (n *NodeConfig) LoadTrust(log *slog.Logger) (credfile.Trust, error) {
	return credfile.LoadTrust(n.SecretFile, n.TLSCert, n.TLSKey, n.TLSCA, log)
}

// AskedNodes are the names of the nodes that are asked for any repository.
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
