package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"

	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// Check reports values that are wrong alone or in combination. The error joins all of them, each with its remedy.
func (c *Config) Check() error {
	f := &Findings{}
	c.checkValues(f)
	return f.Err()
}

// checkValues is Check for a configuration with known lines.
func (c *Config) checkValues(f *Findings) {
	c.checkListeners(f)
	c.HTTP.check(f.bad)
	c.checkProxies(f)
	c.checkAuth(f)
	c.checkSSH(f)
	c.checkStorage(f.bad)
	c.checkStore(f)
	c.checkNodes(f)
	c.App.check(f)
	c.checkSearch(f.bad)
	c.checkWebhooks(f)
	c.checkMirrors(f)
	c.Index.check(f.bad)
	c.Resolver.check(f.bad)
	c.checkMemory(f.bad)
	c.Tracing.check(f.bad)
	c.LFS.check(f.bad)
	for _, err := range receivepack.ValidateFsck(c.Push.Fsck) {
		f.bad("push.fsck: %w", err)
	}
	for _, s := range Settings(c) {
		s.check(f)
	}
}

// checkListeners checks the addresses of the public and the private listener.
func (c *Config) checkListeners(f *Findings) {
	bad := f.bad
	if _, err := SplitAddress(c.HTTP.Address); err != nil {
		bad("http.address: %w", err)
	}
	if c.Ops.Address != "" {
		if host, err := SplitAddress(c.Ops.Address); err != nil {
			bad("ops.address: %w", err)
		} else if !IsLoopback(host) && !c.Ops.Expose {
			bad("ops.address %q is reachable from other machines and serves profiles without authentication: listen on "+
				"127.0.0.1, or add --ops-expose (ops.expose = true) if the network is trusted", c.Ops.Address)
		}
	}
	if (c.HTTP.TLSCert == "") != (c.HTTP.TLSKey == "") {
		f.at("http.tls_cert")("TLS needs both --tls-cert and --tls-key (http.tls_cert, http.tls_key)")
	}
}

// checkRole reports missing keys that a role needs.
func (c *Config) checkRole(role Role) error {
	if role == RoleGateway || role == RoleSearch {
		if len(c.Node) == 0 {
			return errors.New("which nodes? name each with --node NAME=ADDRESS (or a [[node]] table in the configuration)")
		}
		if c.State == "" {
			return errors.New("there is no home directory for the admin socket: name a state directory with --state DIR")
		}
		if role == RoleSearch && c.Search.Listen == "" {
			return errors.New("where do gateways reach this process? give --listen 127.0.0.1:9200 or --listen unix:PATH (or " +
				"search.listen in the configuration)")
		}
		return CheckSocketPath(AdminSocket(c.State))
	}
	if c.Root == "" {
		return errors.New("which repositories? name the directory that holds them with --root DIR (or root in the " +
			"configuration)")
	}
	if role == RoleMirror && len(c.Mirror) == 0 {
		return errors.New("which Git host? name it with --origin https://HOST (or a [[mirror]] table in the configuration)")
	}
	if role == RoleStorage && c.Storage.Listen == "" {
		return errors.New("where do gateways reach this node? give --listen 127.0.0.1:9100 or --listen unix:PATH (or " +
			"storage.listen in the configuration)")
	}
	return nil
}

// checkDisk checks the files, directories and programs that a role uses.
func (c *Config) checkDisk(role Role, f *Findings) {
	quiet := slog.New(slog.DiscardHandler)
	if role.FacesClients() {
		if c.HTTP.TLSCert != "" {
			_, err := credfile.LoadCertificate(c.HTTP.TLSCert, c.HTTP.TLSKey, quiet)
			f.add("http.tls_cert", err)
		}
		if c.LFS.KeyFile != "" {
			_, err := credfile.LoadSecret(c.LFS.KeyFile, quiet)
			f.add("lfs.key_file", err)
		}
		if err := c.CheckOpen(); err != nil {
			f.bad("%w", err)
		}
		if c.Auth.Origin.CA != "" {
			_, err := credfile.LoadAuthorities(c.Auth.Origin.CA, quiet)
			f.add("auth.origin.ca", err)
		}
		if c.Auth.Hook.SecretFile != "" {
			_, err := credfile.LoadSecret(c.Auth.Hook.SecretFile, quiet)
			f.add("auth.hook.secret_file", err)
		}
		if c.SSH.Address != "" {
			_, err := c.SSH.LoadKeys(nil, quiet)
			f.add("ssh", err)
		}
		f.add("auth.tokens", c.CheckTokens())
	}
	if role.OwnsRepositories() {
		c.checkRepositoriesDisk(role, f, quiet)
	}
	if role == RoleSearch || role.IsServe() && c.Search.Enabled {
		program, _ := os.Executable() // if it is unknown, PATH is left
		if _, err := FindSearchProgram(role, program); err != nil {
			f.at("search.enabled")("%w", err)
		}
	}
	if role == RoleGateway {
		if file := c.Resolver.RedisPasswordFile; file != "" {
			_, err := credfile.LoadSecret(file, quiet)
			f.add("resolver.redis_password_file", err)
		}
		if file := c.Resolver.RedisSecretFile; file != "" {
			_, err := credfile.LoadSecret(file, quiet)
			f.add("resolver.redis_secret_file", err)
		}
	}
	if role == RoleGateway && c.Search.Address != "" || role == RoleSearch {
		_, err := c.Search.LoadTrust(role, quiet)
		f.add("search", err)
	}
	if role.asksNodes() {
		for i := range c.Node {
			_, err := c.Node[i].LoadTrust(quiet)
			f.addAbout(fmt.Sprintf("node[%d]", i), fmt.Sprintf("node %q", c.Node[i].Name), err)
		}
	}
}

// checkRepositoriesDisk is checkDisk for roles with repositories.
func (c *Config) checkRepositoriesDisk(role Role, f *Findings, quiet *slog.Logger) {
	if file := c.Store.CredentialsFile; file != "" {
		if in, err := os.Open(file); err != nil {
			f.add("store.credentials_file", err)
		} else {
			in.Close()
		}
	}
	_, err := os.Stat(c.Root)
	if created := c.CreatesRoot(role) && errors.Is(err, fs.ErrNotExist); !created {
		if err := CheckRoot(c.Root); err != nil {
			f.at("root")("%w", err)
		}
	}
	for i := range c.Mirror {
		c.Mirror[i].checkDisk(fmt.Sprintf("mirror[%d].", i), f, quiet)
	}
	if _, err := exec.LookPath(c.Git.Program); err != nil {
		f.add("git.program", fmt.Errorf("%w; install git, or name the program with --git", err))
	}
	if c.Push.HooksDir != "" {
		_, err := os.ReadDir(c.Push.HooksDir)
		f.add("push.hooks_dir", err)
	}
	if c.Push.HooksGitConfig != "" {
		file, err := os.Open(c.Push.HooksGitConfig)
		if err == nil {
			err = file.Close()
		}
		f.add("push.hooks_git_config", err)
	}
	for i := range c.Webhook {
		if file := c.Webhook[i].SecretFile; file != "" {
			if _, err := credfile.LoadSecret(file, quiet); err != nil {
				f.at(fmt.Sprintf("webhook[%d].secret_file", i))("webhook %q: %w", c.Webhook[i].Name, err)
			}
		}
	}
	if c.Storage.Listen != "" {
		_, err := c.Storage.LoadTrust(quiet)
		f.add("storage", err)
	}
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
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// CheckRoot reports a root that is missing or not a directory.
func CheckRoot(root string) error {
	info, err := os.Stat(root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the root %s does not exist: create it, or name the directory that contains your bare repositories",
			root)
	case err != nil:
		return fmt.Errorf("the root: %w", err)
	case !info.IsDir():
		return fmt.Errorf("the root %s is not a directory: name the directory that contains your bare repositories", root)
	}
	return nil
}
