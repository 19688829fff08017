package roles

import (
	"log/slog"
	"net"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/gitssh"
)

// loadHostKeys reads the host keys. In a directory that the configuration names, the kinds that are there are a choice; the state
// directory gets all.
func loadHostKeys(c *config.Config, log *slog.Logger) ([]ssh.Signer, error) {
	if c.SSH.HostKeys != "" {
		return gitssh.LoadHostKeys(c.SSH.HostKeys, false, log)
	}
	return gitssh.LoadHostKeys(filepath.Join(c.State, "ssh"), true, log)
}

// newSSH is the SSH server beside a gateway's HTTP; nil without ssh.address.
func newSSH(cfg config.Config, log *slog.Logger, reg prometheus.Registerer, core *gateway.Gateway, callers *auth.Auth, doors doors) (*sshFront, error) {
	if cfg.SSH.Address == "" {
		return nil, nil
	}
	hostKeys, err := loadHostKeys(&cfg, log)
	if err != nil {
		return nil, err
	}
	var keys gitssh.Keys
	if cfg.SSH.KnowsKeys() || cfg.SSH.RevokedKeys != "" || cfg.Auth.Hook.URL != "" {
		keys = callers
	}
	metrics := gitssh.NewMetrics()
	register(reg, metrics)
	server, err := gitssh.New(gitssh.Options{
		Gateway: core, HostKeys: hostKeys, Keys: keys, Anonymous: cfg.SSH.Anonymous, Algorithms: cfg.SSH.Algorithms(),
		Agent: "Packhorse", Watch: metrics,
		Limits: gitssh.Limits{
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
