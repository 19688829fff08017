package roles

import (
	"log/slog"
	"net"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
	"github.com/packhorse-git/packhorse/internal/server/config"
)

// loadHostKeys reads the host keys. It adds missing kinds in the state directory, but not in a configured directory.
func loadHostKeys(c *config.Config, log *slog.Logger) ([]ssh.Signer, error) {
	if c.SSH.HostKeys != "" {
		return gitssh.LoadHostKeys(c.SSH.HostKeys, false, log)
	}
	return gitssh.LoadHostKeys(filepath.Join(c.State, "ssh"), true, log)
}

// newSSH makes the SSH server, and returns its host keys. It returns nil without ssh.address.
func newSSH(d *deps, core *gateway.Gateway, callers *auth.Auth, clients *clientListeners) (_ *port, keys []string,
	err error) {
	cfg := d.cfg.SSH
	if cfg.Address == "" {
		return nil, nil, nil
	}
	hostKeys, err := loadHostKeys(&d.cfg, d.log)
	if err != nil {
		return nil, nil, err
	}
	var known gitssh.Keys
	if cfg.KnowsKeys() || cfg.RevokedKeys != "" || d.cfg.Auth.Hook.URL != "" {
		known = callers
	}
	server, err := gitssh.New(gitssh.Options{
		Gateway: core, HostKeys: hostKeys, Keys: known, Anonymous: cfg.Anonymous, Algorithms: cfg.Algorithms(),
		Agent: "Packhorse", Registerer: d.reg,
		Limits: gitssh.Limits{
			Logins: clients.limits.sshLogins, AddressLogins: clients.limits.addressLogins, AddressRate: float64(cfg.AddressRate),
			Exempt: clients.ssh.Exempt,
		},
		Idle: cfg.IdleTimeout.Duration, WriteStall: d.cfg.HTTP.Stall.Duration,
	})
	if err != nil {
		return nil, nil, err
	}
	for _, key := range hostKeys {
		kind := strings.TrimPrefix(key.PublicKey().Type(), "ssh-")
		keys = append(keys, kind+" "+ssh.FingerprintSHA256(key.PublicKey()))
	}
	return &port{
		serve:    func(l net.Listener) error { return server.Serve(clients.listenSSH(l, cfg)) },
		shutdown: server.Shutdown,
	}, keys, nil
}
