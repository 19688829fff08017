package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/gateway/resolve"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// StorageConfig is the port of a storage node: the control API and the side channels of gateways.
type StorageConfig struct {
	// Listen is the address for gateways: "HOST:PORT", or "unix:PATH" for gateways on the same machine. Empty means
	// none, which only "packhorse serve" allows. An address that other machines can reach needs client_ca or
	// secret_file.
	Listen string `toml:"listen"`

	// SocketMode is the file mode of the socket of "unix:PATH". With "0660" processes of its group may connect too.
	SocketMode FileMode `toml:"socket_mode" default:"0600"`

	// SecretFile is the file with the secret that callers must know: one word of at least 16 bytes, as from "openssl
	// rand -hex 32". Only its owner may read the file (mode 0600). Changes apply at once.
	SecretFile string `toml:"secret_file" path:"yes"`

	// TLSCert is the PEM file with the TLS certificate of the node and its chain. With it the port only accepts TLS.
	// Changes of the TLS files apply at once.
	TLSCert string `toml:"tls_cert" path:"yes" needs:"tls_key"`

	// TLSKey is the PEM file with the private key of tls_cert.
	TLSKey string `toml:"tls_key" path:"yes" needs:"tls_cert"`

	// ClientCA is the PEM file with the authorities of the certificates of gateways. With it callers without such a
	// certificate are refused.
	ClientCA string `toml:"client_ca" path:"yes" needs:"tls_cert"`
}

// LoadTrust loads the secret and the certificates that authenticate callers.
func (s *StorageConfig) LoadTrust(log *slog.Logger) (credfile.Trust, error) {
	return credfile.LoadTrust(s.SecretFile, s.TLSCert, s.TLSKey, s.ClientCA, log)
}

// NodeConfig is a storage node of a gateway. Each node is a separate table. The flag --node NAME=ADDRESS,WEIGHT adds
// a node, or replaces address and weight of the node with that name. SIGHUP reads the tables again.
type NodeConfig struct {
	// Name is the name of the node for routes, commands and metrics: letters, digits, ".", "_" and "-".
	Name string `toml:"name"`

	// Address is the address of the node: "HOST:PORT" or "unix:PATH". A node on another machine needs tls_ca or
	// secret_file.
	Address string `toml:"address"`

	// Weight is the share of requests among the nodes of a route. A node with weight 2 gets twice as many requests as one
	// with 1.
	Weight int `toml:"weight" default:"1" range:"1..1000"`

	// Transport is how packs come from the node: "channel" uses separate connections. "inband" uses the control call, for
	// a proxy in between that supports nothing else, and costs several times the CPU.
	Transport string `toml:"transport" default:"channel" values:"channel inband"`

	// SecretFile is the file with the secret of the node; see storage.secret_file.
	SecretFile string `toml:"secret_file" path:"yes"`

	// TLSCA is the PEM file with the authorities of the node's certificate. With it the gateway uses TLS.
	TLSCA string `toml:"tls_ca" path:"yes"`

	// TLSCert is the PEM file with the certificate and chain that the gateway shows to the node.
	TLSCert string `toml:"tls_cert" path:"yes" needs:"tls_key tls_ca"`

	// TLSKey is the PEM file with the private key of tls_cert.
	TLSKey string `toml:"tls_key" path:"yes" needs:"tls_cert"`

	// ServerName is the name in the node's certificate, if it is not the host of the address.
	ServerName string `toml:"server_name" needs:"tls_ca"`
}

// RouteConfig names the nodes that have the repositories below a path. Each route is a separate table. Without routes
// every node has all repositories. SIGHUP reads the tables again.
type RouteConfig struct {
	// Prefix selects the repositories whose paths begin with it, by whole path components: "team" includes team/app and
	// not teams/app. Empty means all. The longest matching prefix wins.
	Prefix string `toml:"prefix"`

	// Nodes lists the names of the nodes that have these repositories. Several nodes share an object store, or have
	// copies that their operator keeps equal; pushes to copies are refused.
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

// nodeFlags are the --node flags: NAME=ADDRESS or NAME=ADDRESS,WEIGHT. A weight of 0 stands for a flag without one.
type nodeFlags []NodeConfig

// Set, String and Type make the flags a pflag.Value.
func (f *nodeFlags) Set(text string) error {
	name, address, ok := strings.Cut(text, "=")
	n := NodeConfig{Name: name, Address: address}
	if i := strings.LastIndexByte(address, ','); i >= 0 {
		weight, err := strconv.Atoi(address[i+1:])
		if err != nil || weight == 0 {
			return fmt.Errorf("%q is not a weight, a number from 1 to %d", address[i+1:], maxWeight)
		}
		n.Address, n.Weight = address[:i], weight
	}
	if !ok || n.Name == "" || n.Address == "" {
		return errors.New("write NAME=ADDRESS or NAME=ADDRESS,WEIGHT, as in a=10.0.0.7:9100 or " +
			"b=unix:/run/packhorse/node.sock,2")
	}
	if slices.ContainsFunc(*f, func(other NodeConfig) bool { return other.Name == name }) {
		return fmt.Errorf("there are two nodes %q", name)
	}
	*f = append(*f, n)
	return nil
}

func (f *nodeFlags) String() string { return "" }
func (f *nodeFlags) Type() string   { return "node" }

// addTo applies the flags to the nodes of a file: they change nodes with the same names and add others.
func (f nodeFlags) addTo(cfg *Config, from Origins) {
	for _, flag := range f {
		i := slices.IndexFunc(cfg.Node, func(n NodeConfig) bool { return n.Name == flag.Name })
		isNew := i < 0
		if isNew {
			i = len(cfg.Node)
			cfg.Node = append(cfg.Node, newTables[NodeConfig]()...)
		}
		table := fmt.Sprintf("node[%d].", i)
		if isNew {
			from.setDefaults(table, reflect.ValueOf(&cfg.Node[i]).Elem())
			cfg.Node[i].Name, from[table+"name"] = flag.Name, "--node"
		}
		cfg.Node[i].Address, from[table+"address"] = flag.Address, "--node"
		if flag.Weight != 0 {
			cfg.Node[i].Weight, from[table+"weight"] = flag.Weight, "--node"
		}
	}
}

const (
	maxWeight = 1000
	maxNodes  = 1000
)

// A node's name is a metric label.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// checkListen checks the address at which gateways reach a process. authentic reports whether the process authenticates
// them. Without that others could do harm.
func checkListen(key, address string, authentic bool, harm string, f *Findings) {
	if address == "" {
		return
	}
	table, _, _ := strings.Cut(key, ".")
	local, err := splitNodeAddress(address)
	if err != nil {
		f.bad("%s: %w", key, err)
	} else if !local && !authentic {
		f.bad("%s %q is reachable from other machines, which could %s every repository: set %s.client_ca (mutual TLS) or "+
			"%[4]s.secret_file, or listen on 127.0.0.1 or unix:PATH", key, address, harm, table)
	}
}

// checkAddress checks the address of another process, which a gateway authenticates with a secret or a certificate.
func checkAddress(key, subject, address, secret, authorities, serverName string, f *Findings) {
	if local, err := splitNodeAddress(address); err != nil {
		f.at(key, "%s: address: %w", subject, err)
	} else if !local && secret == "" && authorities == "" {
		f.at(key, "%s is on another machine (%s) without authentication: set its tls_ca (and tls_cert and tls_key) or its "+
			"secret_file", subject, address)
	}
	if authorities != "" && serverName == "" && strings.HasPrefix(address, UnixPrefix) {
		f.at(key, "%s: a socket has no name to compare with the certificate: set server_name, or remove tls_ca", subject)
	}
}

// checkNodes checks nodes and routes.
func (c *Config) checkNodes(f *Findings) {
	if len(c.Node) > maxNodes {
		f.at("node", "there are %d nodes; a gateway has at most %d", len(c.Node), maxNodes)
	}
	known := map[string]bool{}
	for i := range c.Node {
		n, table := &c.Node[i], fmt.Sprintf("node[%d]", i)
		if !nodeName.MatchString(n.Name) {
			f.at(table+".name", "node %q needs a name of letters, digits, \".\", \"_\" and \"-\"", n.Name)
			continue
		}
		if known[n.Name] {
			f.at(table+".name", "there are two nodes %q", n.Name)
		}
		known[n.Name] = true
		checkAddress(table+".address", fmt.Sprintf("node %q", n.Name), n.Address, n.SecretFile, n.TLSCA, n.ServerName, f)
		if local, err := splitNodeAddress(n.Address); err == nil && !local && n.TLSCA == "" && c.mirrorsAskOrigin() {
			f.at(table+".tls_ca", "node %q is reached without TLS, but a mirror with auth = \"origin\" sends it callers' "+
				"credentials: set tls_ca", n.Name)
		}
	}
	prefixes := map[string]bool{}
	for i := range c.Route {
		r, table := &c.Route[i], fmt.Sprintf("route[%d]", i)
		prefix, err := r.PathPrefix()
		if err != nil {
			f.at(table+".prefix", "route %q: %w", r.Prefix, err)
		} else if prefixes[prefix] {
			f.at(table+".prefix", "there are two routes for %q; name all its nodes in one", cmp.Or(prefix, "/"))
		}
		prefixes[prefix] = true
		if len(r.Nodes) == 0 {
			f.at(table+".nodes", "route %q has no nodes: name them with nodes = [\"NAME\"]", r.Prefix)
		}
		for j, name := range r.Nodes {
			if !known[name] {
				f.at(table+".nodes", "route %q names the node %q, which does not exist", r.Prefix, name)
			}
			if slices.Contains(r.Nodes[:j], name) {
				f.at(table+".nodes", "route %q names the node %q twice", r.Prefix, name)
			}
		}
	}
}

// PathPrefix returns the prefix of the route in canonical form, without slashes around it.
func (r *RouteConfig) PathPrefix() (string, error) {
	trimmed := strings.TrimSuffix(strings.Trim(r.Prefix, "/"), ".git")
	if trimmed == "" {
		return "", nil
	}
	_, err := git.ParseRepoPath(trimmed)
	return trimmed, err
}

// UnixPrefix is the beginning of addresses that are Unix sockets.
const UnixPrefix = "unix:"

// maxSocketPath is the longest path of a Unix socket in bytes (unix(7); some systems have less room than Linux).
const maxSocketPath = 103

// splitNodeAddress reports whether an address, HOST:PORT or unix:PATH, is only reachable from this machine.
func splitNodeAddress(address string) (local bool, err error) {
	file, isUnix := strings.CutPrefix(address, UnixPrefix)
	switch {
	case !isUnix:
		host, err := SplitAddress(address)
		if err != nil {
			return false, fmt.Errorf("%q is neither HOST:PORT, as in 127.0.0.1:9100, nor unix:PATH", address)
		}
		return IsLoopback(host), nil
	case file == "" || path.Base(file) == ".":
		return true, fmt.Errorf("%q does not name a socket: write unix:PATH, as in unix:/run/packhorse/node.sock", address)
	}
	return true, CheckSocketPath(file)
}

// CheckSocketPath returns an error if a path is too long for a Unix socket.
func CheckSocketPath(file string) error {
	if len(file) > maxSocketPath {
		return fmt.Errorf("%s: too long for a socket, whose path has at most %d bytes", file, maxSocketPath)
	}
	return nil
}

// SplitAddress returns the host of HOST:PORT. The port may be a name.
func SplitAddress(address string) (host string, err error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return "", fmt.Errorf("%q is not HOST:PORT, as in 127.0.0.1:8080", address)
	}
	return host, nil
}

// IsLoopback reports whether the host is only reachable from this machine. An empty host is every address of the
// machine. The only name that counts is localhost, because the addresses of other names may change.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// ResolverConfig caches revisions that a gateway has resolved (docs/explanation/resolver.md). In serve the node is in
// the same process and needs no cache.
type ResolverConfig struct {
	// Redis is the URL of a Redis for answers that gateways share: "redis://[USER@]HOST[:PORT][/DB]", "rediss://..."
	// for TLS, or "unix:///PATH". Empty means none. While Redis fails it is bypassed, and no request fails.
	Redis string `toml:"redis"`

	// RedisCA is the PEM file with the authorities of the certificate of Redis. Empty means those of the system.
	RedisCA string `toml:"redis_ca" path:"yes"`

	// RedisPasswordFile is the file with the password of Redis; see storage.secret_file.
	RedisPasswordFile string `toml:"redis_password_file" path:"secret"`

	// RedisSecretFile is the file with a secret that authenticates the values in Redis, the same for all gateways; see
	// storage.secret_file. With it, values that others wrote are ignored. It is read at the start.
	RedisSecretFile string `toml:"redis_secret_file" path:"secret"`

	// RedisTimeout is how long a request may wait for Redis. Then Redis is bypassed.
	RedisTimeout Duration `toml:"redis_timeout" default:"50ms" range:">0s"`
}

func (c *ResolverConfig) check(f *Findings) {
	if c.Redis == "" {
		return
	}
	if _, err := resolve.ParseRedisURL(c.Redis); err != nil {
		f.bad("resolver.redis: %w", err)
	}
	if c.RedisCA != "" && !strings.HasPrefix(c.Redis, "rediss://") {
		f.bad("resolver.redis_ca is for a Redis that uses TLS: resolver.redis has to begin with rediss://")
	}
}
