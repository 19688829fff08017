package roles

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/operations/doctor"
	"github.com/packhorse-git/packhorse/internal/operations/observe"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// startOf describes a running server for serve.json and the announcement.
func startOf(srv *server, configFile string, l listeners) statedir.Server {
	role, cfg := srv.role, &srv.cfg
	s := statedir.Server{PID: os.Getpid(), Role: role}
	if srv.gateway != nil {
		s.HostKeys = srv.gateway.hostKeys
	}
	if configFile != "" {
		s.Config, _ = filepath.Abs(configFile)
	}
	if role.OwnsRepositories() {
		s.Root = cfg.Root
	}
	if l.public != nil {
		scheme := "http"
		if cfg.HTTP.TLSCert != "" {
			scheme = "https"
		}
		s.HTTP = scheme + "://" + dialable(l.public.Addr())
	}
	if l.ssh != nil {
		s.SSH = "ssh://" + dialable(l.ssh.Addr())
	}
	if l.node != nil {
		s.Listen = dialable(l.node.Addr())
		if l.node.Addr().Network() == "unix" {
			s.Listen = config.UnixPrefix + l.node.Addr().String()
		}
	}
	if l.private != nil {
		s.Ops = "http://" + dialable(l.private.Addr())
	}
	if l.admin != nil {
		s.Admin = l.admin.Addr().String()
	}
	if cfg.Watchdog.Enabled {
		s.Dumps = config.DumpDir(cfg.State)
	}
	return s
}

// dialable returns the address of a listener for a client. It replaces the unspecified address by the name of the
// machine.
func dialable(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			host = "localhost"
		}
		return net.JoinHostPort(host, port)
	}
	return addr.String()
}

// announce writes the addresses of the process and an example command to w. If the log is JSON, it logs one record
// instead.
func announce(s statedir.Server, w io.Writer, log *slog.Logger, cfg config.Config) {
	clone := ""
	if s.Role == config.RoleServe && !cfg.Store.Enabled() {
		if example := exampleRepository(cfg.Root, cfg.Hidden()); example != "" {
			clone = "git clone " + s.HTTP + "/" + example
		}
	}
	if observe.LogFormat(cfg.Log.Format, w) == "json" {
		recordStart(s, log, clone, cfg)
		return
	}
	line := func(name, text string) { fmt.Fprintf(w, "%7s  %s\n", name, text) }
	switch s.Role {
	case config.RoleGateway:
		line("gateway", s.HTTP)
		for _, n := range cfg.Node {
			line("node", n.Name+" at "+n.Address)
		}
	case config.RoleStorage:
		line("serving", cmp.Or(cfg.Store.URL, s.Root))
		line("at", s.Listen)
	case config.RoleSearch:
		line("search", s.Listen)
		for _, n := range cfg.Node {
			line("node", n.Name+" at "+n.Address)
		}
	case config.RoleMirror:
		for _, m := range cfg.Mirror {
			line("mirror", m.From+" at "+s.HTTP+"/"+m.To+"/")
		}
		if m := cfg.Mirror[0]; strings.HasPrefix(m.From, "http") {
			line("try", fmt.Sprintf("git config --global url.%q.insteadOf %s/", s.HTTP+"/"+m.To+"/",
				strings.TrimSuffix(m.From, "/")))
		}
		line("at", s.Root)
	default:
		switch {
		case cfg.Store.Enabled():
			clone = fmt.Sprintf("packhorse repo create demo --root %s, then git clone %s/demo", doctor.ShellWord(s.Root), s.HTTP)
		case clone == "":
			clone = fmt.Sprintf("git clone --bare <any repository> %s, then git clone %s/demo",
				doctor.ShellWord(filepath.Join(s.Root, "demo.git")), s.HTTP)
		}
		line("try", clone)
		if !cfg.HTTP.PublicRead && cfg.Auth.KnowsCallers() {
			line("", "git asks for a token as the password, with any user name: packhorse token create NAME --root "+
				doctor.ShellWord(s.Root))
		}
		line("serving", cmp.Or(cfg.Store.URL, s.Root))
		line("at", s.HTTP)
		if s.Listen != "" {
			line("control", s.Listen)
		}
	}
	if s.SSH != "" {
		line("ssh", s.SSH)
		for _, key := range s.HostKeys {
			line("", key)
		}
	}
	if s.Ops != "" {
		line("metrics", s.Ops+"/metrics")
	}
}

// recordStart logs the same in one record, without empty fields.
func recordStart(s statedir.Server, log *slog.Logger, clone string, cfg config.Config) {
	attributes := []slog.Attr{slog.String("role", string(s.Role))}
	for _, a := range []struct{ key, value string }{
		{"root", s.Root}, {"url", cfg.Store.URL}, {"http", s.HTTP}, {"ssh", s.SSH},
		{"host_keys", strings.Join(s.HostKeys, ", ")},
		{"listen", s.Listen}, {"ops", s.Ops}, {"admin", s.Admin}, {"clone", clone},
	} {
		if a.value != "" {
			attributes = append(attributes, slog.String(a.key, a.value))
		}
	}
	if s.Role == config.RoleGateway || s.Role == config.RoleSearch {
		attributes = append(attributes, slog.Int("nodes", len(cfg.Node)))
	}
	log.LogAttrs(context.Background(), slog.LevelInfo, "serving", attributes...)
}

// plainPath matches paths that are good examples: no component begins with a dash or a dot, and no shell and no URL
// needs quotes.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$`)

// exampleVisits is the maximum number of directories that the search for an example visits.
const exampleVisits = 200

// exampleRepository returns the URL path of a repository below the root, or "" if a short search fails.
func exampleRepository(root string, hidden []string) string {
	options, err := repo.OptionsBelow(root, hidden...)
	if err != nil {
		return ""
	}
	w := repo.Walk{Options: options, MaxVisits: exampleVisits}
	for path := range w.All(context.Background()) {
		path = strings.TrimSuffix(strings.TrimSuffix(path, "/.git"), ".git")
		if plainPath.MatchString(path) {
			return path
		}
	}
	return ""
}
