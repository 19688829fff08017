package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
)

// nodeFlags are the --node flags: NAME=ADDRESS or NAME=ADDRESS,WEIGHT.
type nodeFlags []nodeFlag

type nodeFlag struct {
	name, address string
	weight        int // 0 if the flag has none
}

// Set, String and Type make the flags a pflag.Value.
func (f *nodeFlags) Set(text string) error {
	name, address, ok := strings.Cut(text, "=")
	n := nodeFlag{name: name, address: address}
	if i := strings.LastIndexByte(address, ','); i >= 0 {
		weight, err := strconv.Atoi(address[i+1:])
		if err != nil || weight == 0 {
			return fmt.Errorf("%q is not a weight, a number from 1 to %d", address[i+1:], maxWeight)
		}
		n.address, n.weight = address[:i], weight
	}
	if !ok || n.name == "" || n.address == "" {
		return errors.New("write NAME=ADDRESS or NAME=ADDRESS,WEIGHT, as in a=10.0.0.7:9100 or " +
			"b=unix:/run/packhorse/node.sock,2")
	}
	if slices.ContainsFunc(*f, func(other nodeFlag) bool { return other.name == name }) {
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
		i := slices.IndexFunc(cfg.Node, func(n NodeConfig) bool { return n.Name == flag.name })
		if i < 0 {
			i = len(cfg.Node)
			n := NodeConfig{Name: flag.name}
			setDefaults(&n)
			cfg.Node = append(cfg.Node, n)
			for _, s := range Settings(cfg) {
				if strings.HasPrefix(s.Key, fmt.Sprintf("node[%d].", i)) {
					from[s.Key] = "default"
				}
			}
			from[fmt.Sprintf("node[%d].name", i)] = "--node"
		}
		cfg.Node[i].Address = flag.address
		from[fmt.Sprintf("node[%d].address", i)] = "--node"
		if flag.weight != 0 {
			cfg.Node[i].Weight = flag.weight
			from[fmt.Sprintf("node[%d].weight", i)] = "--node"
		}
	}
}

const (
	maxWeight = 1000
	maxNodes  = 1000
)

// A node's name is a metric label.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// checkStorage checks the port of a node.
func (c *Config) checkStorage(bad func(format string, args ...any)) {
	s := &c.Storage
	if (s.TLSCert == "") != (s.TLSKey == "") {
		bad("storage.tls_cert and storage.tls_key need each other")
	}
	if s.ClientCA != "" && s.TLSCert == "" {
		bad("storage.client_ca needs storage.tls_cert and storage.tls_key: gateways present their certificates only with TLS")
	}
	if s.Listen == "" {
		return
	}
	local, err := splitNodeAddress(s.Listen)
	if err != nil {
		bad("storage.listen: %w", err)
	} else if !local && s.ClientCA == "" && s.SecretFile == "" {
		bad("storage.listen %q is reachable from other machines, which could read and delete every repository: set "+
			"storage.client_ca (mutual TLS) or storage.secret_file, or listen on 127.0.0.1 or unix:PATH", s.Listen)
	}
}

// checkNodes checks nodes and routes.
func (c *Config) checkNodes(f *Findings) {
	if len(c.Node) > maxNodes {
		f.at("node")("there are %d nodes; a gateway has at most %d", len(c.Node), maxNodes)
	}
	known := map[string]bool{}
	for i := range c.Node {
		n, table := &c.Node[i], fmt.Sprintf("node[%d]", i)
		if !nodeName.MatchString(n.Name) {
			f.at(table+".name")("node %q needs a name of letters, digits, \".\", \"_\" and \"-\"", n.Name)
			continue
		}
		if known[n.Name] {
			f.at(table+".name")("there are two nodes %q", n.Name)
		}
		known[n.Name] = true
		n.check(table, f)
		if local, err := splitNodeAddress(n.Address); err == nil && !local && n.TLSCA == "" && c.mirrorsAskOrigin() {
			f.at(table+".tls_ca")("node %q is reached without TLS, but a mirror with auth = \"origin\" sends it callers' "+
				"credentials: set tls_ca", n.Name)
		}
	}
	prefixes := map[string]bool{}
	for i := range c.Route {
		r, table := &c.Route[i], fmt.Sprintf("route[%d]", i)
		prefix, err := r.PathPrefix()
		if err != nil {
			f.at(table+".prefix")("route %q: %w", r.Prefix, err)
		} else if prefixes[prefix] {
			f.at(table+".prefix")("there are two routes for %q; name all its nodes in one", cmp.Or(prefix, "/"))
		}
		prefixes[prefix] = true
		if len(r.Nodes) == 0 {
			f.at(table+".nodes")("route %q has no nodes: name them with nodes = [\"NAME\"]", r.Prefix)
		}
		for j, name := range r.Nodes {
			if !known[name] {
				f.at(table+".nodes")("route %q names the node %q, which does not exist", r.Prefix, name)
			}
			if slices.Contains(r.Nodes[:j], name) {
				f.at(table+".nodes")("route %q names the node %q twice", r.Prefix, name)
			}
		}
	}
}

func (n *NodeConfig) check(table string, f *Findings) {
	local, err := splitNodeAddress(n.Address)
	if err != nil {
		f.at(table+".address")("node %q: address: %w", n.Name, err)
	} else if !local && n.SecretFile == "" && n.TLSCA == "" {
		f.at(table+".address")("node %q is on another machine (%s) without authentication: set its tls_ca (and tls_cert "+
			"and tls_key) or its secret_file in a [[node]] table", n.Name, n.Address)
	}
	if (n.TLSCert == "") != (n.TLSKey == "") {
		f.at(table+".tls_cert")("node %q: tls_cert and tls_key need each other", n.Name)
	}
	if n.TLSCA != "" && n.ServerName == "" && strings.HasPrefix(n.Address, UnixPrefix) {
		f.at(table+".tls_ca")("node %q: a socket has no name to compare with the certificate: set server_name, or "+
			"remove tls_ca", n.Name)
	}
	if n.TLSCA == "" && (n.TLSCert != "" || n.ServerName != "") {
		f.at(table+".tls_cert")("node %q: tls_cert and server_name need tls_ca, which turns TLS on", n.Name)
	}
}

// PathPrefix returns the prefix of the route in canonical form, without slashes around it.
func (r *RouteConfig) PathPrefix() (string, error) {
	trimmed := strings.TrimSuffix(strings.Trim(r.Prefix, "/"), ".git")
	if trimmed == "" {
		return "", nil
	}
	if _, err := git.ParseRepoPath(trimmed); err != nil {
		return "", err
	}
	return trimmed, nil
}

// UnixPrefix is the beginning of addresses that are Unix sockets.
const UnixPrefix = "unix:"

// maxSocketPath is the longest path of a Unix socket in bytes (unix(7); some systems have less room than Linux).
const maxSocketPath = 103

// splitNodeAddress reports whether an address, HOST:PORT or unix:PATH, is only reachable from this machine.
func splitNodeAddress(address string) (local bool, err error) {
	file, isUnix := strings.CutPrefix(address, UnixPrefix)
	if !isUnix {
		host, port, err := net.SplitHostPort(address)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil {
			return false, fmt.Errorf("%q is neither HOST:PORT, as in 127.0.0.1:9100, nor unix:PATH", address)
		}
		return IsLoopback(host), nil
	}
	if file == "" || path.Base(file) == "." {
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
