package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strings"

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
	c.HTTP.check(f)
	c.checkProxies(f)
	c.checkAuth(f)
	c.checkSSH(f)
	checkListen("storage.listen", c.Storage.Listen, c.Storage.ClientCA+c.Storage.SecretFile != "", "read and delete", f)
	c.checkStore(f)
	c.checkNodes(f)
	c.App.check(f)
	c.checkSearch(f)
	c.checkWebhooks(f)
	c.checkMirrors(f)
	c.Resolver.check(f)
	c.checkMemory(f)
	c.Tracing.check(f)
	c.LFS.check(f)
	c.Pages.check(f)
	for _, err := range receivepack.ValidateFsck(c.Push.Fsck) {
		f.bad("push.fsck: %w", err)
	}
	for _, s := range Settings(c) {
		s.check(f)
	}
}

// checkListeners checks the addresses of the public and the private listener.
func (c *Config) checkListeners(f *Findings) {
	if _, err := SplitAddress(c.HTTP.Address); err != nil {
		f.bad("http.address: %w", err)
	}
	if c.Ops.Address == "" {
		return
	}
	if host, err := SplitAddress(c.Ops.Address); err != nil {
		f.bad("ops.address: %w", err)
	} else if !IsLoopback(host) && !c.Ops.Expose {
		f.bad("ops.address %q is reachable from other machines and serves profiles without authentication: listen on "+
			"127.0.0.1, or add --ops-expose (ops.expose = true) if the network is trusted", c.Ops.Address)
	}
}

// checkRole reports missing keys that a role needs.
func (c *Config) checkRole(role Role) error {
	facesNodes := role == RoleGateway || role == RoleSearch
	switch {
	case facesNodes && len(c.Node) == 0:
		return errors.New("which nodes? name each with --node NAME=ADDRESS (or a [[node]] table in the configuration)")
	case facesNodes && c.State == "":
		return errors.New("there is no home directory for the admin socket: name a state directory with --state DIR")
	case role == RoleSearch && c.Search.Listen == "":
		return errors.New("where do gateways reach this process? give --listen 127.0.0.1:9200 or --listen unix:PATH (or " +
			"search.listen in the configuration)")
	case facesNodes:
		return CheckSocketPath(AdminSocket(c.State))
	case c.Root == "":
		return errors.New("which repositories? name the directory that holds them with --root DIR (or root in the " +
			"configuration)")
	case c.Auth.Shared && !c.Store.Enabled():
		return errors.New("auth.shared: tokens and rules are in the object store, and there is no [store]")
	case role == RoleMirror && len(c.Mirror) == 0:
		return errors.New("which Git host? name it with --origin https://HOST (or a [[mirror]] table in the configuration)")
	case role == RoleStorage && c.Storage.Listen == "":
		return errors.New("where do gateways reach this node? give --listen 127.0.0.1:9100 or --listen unix:PATH (or " +
			"storage.listen in the configuration)")
	}
	return nil
}

// uses reports whether a role reads the files that a table names.
func (r Role) uses(table string) bool {
	switch table {
	case "http", "auth", "lfs":
		return r.FacesClients()
	case "resolver":
		return r == RoleGateway
	}
	return r.OwnsRepositories()
}

// checkDisk checks the files, directories and programs that a role uses.
func (c *Config) checkDisk(role Role, f *Findings) {
	quiet := slog.New(slog.DiscardHandler)
	for _, s := range Settings(c) {
		table, _, _ := strings.Cut(PlainKey(s.Key), ".")
		if path := s.Value.String(); s.tag.Get("path") != "" && path != "" && role.uses(table) {
			f.addAbout(s.Key, s.subject, checkFile(s.tag.Get("path"), path, quiet))
		}
	}
	if role.FacesClients() {
		if c.HTTP.TLSCert != "" && c.HTTP.TLSKey != "" {
			_, err := credfile.LoadCertificate(c.HTTP.TLSCert, c.HTTP.TLSKey, quiet)
			f.add("http.tls_cert", err)
		}
		if err := c.CheckOpen(); err != nil {
			f.bad("%w", err)
		}
		if c.SSH.Address != "" {
			_, err := c.SSH.LoadKeys(nil, quiet)
			f.add("ssh", err)
		}
		f.add("auth.tokens", c.CheckTokens())
	}
	if role.OwnsRepositories() {
		_, err := os.Stat(c.Root)
		if created := c.CreatesRoot(role) && errors.Is(err, fs.ErrNotExist); !created {
			if err := CheckRoot(c.Root); err != nil {
				f.at("root", "%w", err)
			}
		}
		for i := range c.Mirror {
			c.Mirror[i].checkDisk(fmt.Sprintf("mirror[%d].", i), f, quiet)
		}
		if _, err := exec.LookPath(c.Git.Program); err != nil {
			f.add("git.program", fmt.Errorf("%w; install git, or name the program with --git", err))
		}
		if c.Storage.Listen != "" {
			_, err := c.Storage.LoadTrust(quiet)
			f.add("storage", err)
		}
	}
	if role == RoleSearch { // serve starts without it, see Warnings
		program, _ := os.Executable() // if it is unknown, PATH is left
		if _, err := FindSearchProgram(role, program); err != nil {
			f.at("search.enabled", "%w", err)
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

// checkFile checks a file of a kind, the value of the tag path.
func checkFile(kind, path string, quiet *slog.Logger) (err error) {
	switch kind {
	case "secret":
		_, err = credfile.LoadSecret(path, quiet)
	case "authorities":
		_, err = credfile.LoadAuthorities(path, quiet)
	case "directory":
		_, err = os.ReadDir(path)
	case "file":
		var file *os.File
		if file, err = os.Open(path); err == nil {
			err = file.Close()
		}
	}
	return err
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
