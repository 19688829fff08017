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

// addSSH adds the SSH server if ssh.address is set.
func (s *server) addSSH(core *gateway.Gateway, callers *auth.Auth, clients *clientListeners) error {
	cfg := s.cfg.SSH
	if cfg.Address == "" {
		return nil
	}
	hostKeys, err := loadHostKeys(&s.cfg, s.log)
	if err != nil {
		return err
	}
	var keys gitssh.Keys
	if cfg.KnowsKeys() || cfg.RevokedKeys != "" || s.cfg.Auth.Hook.URL != "" {
		keys = callers
	}
	server, err := gitssh.New(gitssh.Options{
		Gateway: core, HostKeys: hostKeys, Keys: keys, Anonymous: cfg.Anonymous, Algorithms: cfg.Algorithms(),
		Agent: "Packhorse", Registerer: s.reg,
		Limits: gitssh.Limits{
			Logins: clients.limits.sshLogins, AddressLogins: clients.limits.addressLogins, AddressRate: float64(cfg.AddressRate),
			Exempt: clients.ssh.Exempt,
		},
		Idle: cfg.IdleTimeout.Duration, WriteStall: s.cfg.HTTP.Stall.Duration,
	})
	if err != nil {
		return err
	}
	s.ssh = &port{
		serve:    func(l net.Listener) error { return server.Serve(clients.listenSSH(l, cfg)) },
		shutdown: server.Shutdown,
	}
	for _, key := range hostKeys {
		kind := strings.TrimPrefix(key.PublicKey().Type(), "ssh-")
		s.hostKeys = append(s.hostKeys, kind+" "+ssh.FingerprintSHA256(key.PublicKey()))
	}
	return nil
}
