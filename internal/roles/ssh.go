package roles

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/gateway"
)

// loadHostKeys reads the host keys. In a directory that the configuration names, the kinds that are there are a choice; the state
// directory gets all.
func (c *Config) loadHostKeys(log *slog.Logger) ([]ssh.Signer, error) {
	if c.SSH.HostKeys != "" {
		return gateway.LoadHostKeys(c.SSH.HostKeys, false, log)
	}
	return gateway.LoadHostKeys(filepath.Join(c.State, "ssh"), true, log)
}

// sshKeys knows users by the files that the configuration names, and by the auth hook.
type sshKeys struct {
	files *auth.Keys // nil: none
	hook  *auth.Auth
}

func (k sshKeys) Key(ctx context.Context, login string, key ssh.PublicKey, from netip.Addr) (id auth.Identity, noTouch bool, err error) {
	if k.files != nil {
		id, noTouch, err = k.files.Key(login, key, from)
		if err == nil || !k.hook.AsksAboutKeys() || k.files.Final(key) {
			return id, noTouch, err
		}
	}
	id, err = k.hook.Key(ctx, login, key, from)
	return id, false, err
}

// knowsKeys tells whether files say whose keys are whose.
func (c *SSHConfig) knowsKeys() bool { return c.AuthorizedKeys != "" || c.TrustedUserCA != "" }

// algorithms are those that clients may use.
func (c *SSHConfig) algorithms() gateway.SSHAlgorithms {
	return gateway.SSHAlgorithms{KeyExchanges: c.KeyExchanges, Ciphers: c.Ciphers, MACs: c.MACs}
}

// loadKeys reads the files of keys, and adds them to the sources; nil if the configuration names none.
func (c *SSHConfig) loadKeys(sources *auth.Sources, log *slog.Logger) (*auth.Keys, error) {
	if !c.knowsKeys() && c.RevokedKeys == "" {
		return nil, nil
	}
	keys, err := auth.LoadKeys(auth.KeyOptions{Authorized: c.AuthorizedKeys, Authority: c.TrustedUserCA, Revoked: c.RevokedKeys, Sources: sources, Log: log})
	if err != nil {
		return nil, fmt.Errorf("read the SSH keys of users: %w", err)
	}
	return keys, nil
}

// newSSH is the SSH server beside a gateway's HTTP; nil without ssh.address.
func newSSH(cfg Config, log *slog.Logger, reg prometheus.Registerer, o *gateway.Options, callers *auth.Auth, doors doors) (*sshFront, error) {
	if cfg.SSH.Address == "" {
		return nil, nil
	}
	hostKeys, err := cfg.loadHostKeys(log)
	if err != nil {
		return nil, err
	}
	files, err := cfg.SSH.loadKeys(callers.Sources(), log)
	if err != nil {
		return nil, err
	}
	var keys gateway.Keys
	if files != nil || callers.AsksAboutKeys() {
		keys = sshKeys{files, callers}
	}
	metrics := gateway.NewSSHMetrics()
	register(reg, metrics)
	server, err := gateway.NewSSH(gateway.SSHOptions{
		Options: o, HostKeys: hostKeys, Keys: keys, Anonymous: cfg.SSH.Anonymous, Algorithms: cfg.SSH.algorithms(),
		Agent: "Packhorse", Watch: metrics,
		Limits: gateway.SSHLimits{
			Logins: doors.limits.sshLogins, AddressLogins: doors.limits.addressLogins, AddressRate: float64(cfg.SSH.AddressRate),
			Exempt: doors.ssh.Exempt,
		},
		LoginGrace: cfg.SSH.LoginGrace.Duration, AuthTries: cfg.SSH.AuthTries, KeepAlive: cfg.SSH.KeepAlive.Duration, Idle: cfg.SSH.IdleTimeout.Duration,
		SessionIdle: cfg.SSH.SessionIdleTimeout.Duration,
		WriteStall:  cfg.HTTP.WriteStall.Duration, Sessions: cfg.SSH.Sessions,
	})
	if err != nil {
		return nil, err
	}
	serve := func(l net.Listener) error { return server.Serve(doors.listenSSH(l, cfg.SSH)) }
	f := &sshFront{port: port{serve: serve, shutdown: server.Shutdown}}
	for _, key := range hostKeys {
		kind := strings.TrimPrefix(key.PublicKey().Type(), "ssh-")
		f.fingerprints = append(f.fingerprints, kind+" "+ssh.FingerprintSHA256(key.PublicKey()))
	}
	return f, nil
}

// sshFront is the SSH server as a process runs it.
type sshFront struct {
	port
	fingerprints []string // of the host keys, each after its kind
}

func (f *sshFront) portOrNil() *port {
	if f == nil {
		return nil
	}
	return &f.port
}

// checkSSH finds what could not work, or would let in more than is meant.
func (c *Config) checkSSH(f *findings) {
	bad := f.bad
	s := &c.SSH
	if s.Address == "" {
		return
	}
	host, err := splitAddress(s.Address)
	switch {
	case err != nil:
		bad("ssh.address: %w", err)
	case !s.knowsKeys() && c.Auth.Hook.URL == "" && !s.Anonymous:
		f.at("ssh.address")("who may come in by SSH? name a file or a directory of public keys with --ssh-keys (ssh.authorized_keys), or who signs users' certificates " +
			"with ssh.trusted_user_ca, or have an auth hook (auth.hook.url); ssh.anonymous = true lets everybody in to read")
	case s.Anonymous && !isLoopback(host) && !c.HTTP.PublicRead:
		bad("ssh.address %q can be reached by other machines, and with ssh.anonymous everybody who reaches it could read every repository: "+
			"add --public-read (http.public_read = true) if that is meant", s.Address)
	}
	known := gateway.SupportedSSHAlgorithms()
	for _, list := range []struct {
		key          string
		named, known []string
	}{
		{"ssh.key_exchanges", s.KeyExchanges, known.KeyExchanges},
		{"ssh.ciphers", s.Ciphers, known.Ciphers},
		{"ssh.macs", s.MACs, known.MACs},
	} {
		for _, name := range list.named {
			if !slices.Contains(list.known, name) {
				bad("%s: unknown algorithm %.40q: known ones are %s", list.key, name, strings.Join(list.known, ", "))
			}
		}
	}
	for _, n := range []struct {
		key   string
		value int
		least int
	}{
		{"ssh.auth_tries", s.AuthTries, 1}, {"ssh.sessions", s.Sessions, 1}, {"ssh.connections", s.Connections, 0},
		{"ssh.address_connections", s.AddressConnections, 0}, {"ssh.logins", s.Logins, 0}, {"ssh.address_logins", s.AddressLogins, 0},
		{"ssh.address_rate", s.AddressRate, 0},
	} {
		if n.value < n.least || n.value > 1<<20 {
			bad("%s is %d; it has to be from %d to %d", n.key, n.value, n.least, 1<<20)
		}
	}
	if s.LoginGrace.Duration <= 0 || s.IdleTimeout.Duration <= 0 || s.SessionIdleTimeout.Duration <= 0 || s.KeepAlive.Duration < 0 {
		bad("ssh.login_grace, ssh.idle_timeout and ssh.session_idle_timeout have to be more than 0s, and ssh.keep_alive not less")
	}
}
