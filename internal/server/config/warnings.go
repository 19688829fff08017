package config

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"iter"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/webhook"
)

const (
	lookupTimeout   = 3 * time.Second // of a name, and of a connection
	maxPatternsSeen = 100_000         // repositories with which patterns are compared
)

// Warnings reports values with which a server would start, but which are probably not intended. It looks up names, and
// connects to hosts only with connect.
func (c *Config) Warnings(ctx context.Context, role Role, connect bool, f *Findings) {
	for _, cert := range c.Certificates(role) {
		if leaf, err := ReadLeaf(cert.File); err == nil { // an unreadable file is a mistake already
			if text := Validity(leaf, time.Now()); text != "" {
				f.warn(cert.Key, "%s: %s: %s", PlainKey(cert.Key), cert.File, text)
			}
		}
	}
	if role.OwnsRepositories() {
		for i := range c.Webhook {
			w := &c.Webhook[i]
			if u, err := webhook.ParseURL(w.URL); err == nil {
				if err := deliverable(ctx, u, w.AllowPrivate, "allow_private", connect); err != nil {
					f.warn(fmt.Sprintf("webhook[%d].url", i), "webhook %q cannot be delivered: %s", w.Name, err)
				}
			}
		}
	}
	if role != RoleSearch {
		for i := range c.Mirror {
			c.Mirror[i].warn(ctx, fmt.Sprintf("mirror[%d].from", i), connect, f)
			if role.FacesClients() && c.HTTP.PublicRead && c.Mirror[i].isOpenWith() {
				f.warn(fmt.Sprintf("mirror[%d].auth", i), "mirror %q: with http.public_read everybody can read all that the "+
					"mirror's own credential can, unless an [[auth.rule]] forbids it", c.Mirror[i].name())
			}
		}
	}
	if i, locked := c.Auth.lockedOut(); role.FacesClients() && locked && !c.HTTP.PublicRead {
		f.warn(fmt.Sprintf("auth.rule[%d]", i), "auth.rule %d locks everybody out: it refuses everything, and no "+
			"rule before it permits anything", i+1)
	}
	if role.IsServe() && c.Search.Enabled {
		program, _ := os.Executable() // if it is unknown, PATH is left
		if _, err := FindSearchProgram(role, program); err != nil {
			f.warn("search.enabled", "search.enabled: %s", err)
		}
	}
	if role.IsServe() && c.Resolver.Redis != "" {
		f.warn("resolver.redis", "resolver.redis is not used by serve: its own node answers faster than Redis")
	}
	if u, err := url.Parse(c.Auth.Hook.URL); role.FacesClients() && err == nil && u.Hostname() != "" {
		if err := deliverable(ctx, u, true, "", connect); err != nil {
			f.warn("auth.hook.url", "auth.hook.url: the hook is unreachable: %s", err)
		}
	}
	if u, err := url.Parse(c.Auth.Origin.URL); role.FacesClients() && err == nil && u.Hostname() != "" {
		private := c.Auth.Origin.Private || isLocal(u)
		if err := deliverable(ctx, u, private, "private", connect); err != nil {
			f.warn("auth.origin.url", "auth.origin.url: the forge is unreachable: %s", err)
		}
	}
	if role.OwnsRepositories() && c.Root != "." && !c.Store.Enabled() { // "." stands for a missing root
		c.warnOfPatterns(ctx, f)
	}
}

// warn reports an origin that cannot be reached.
func (m *MirrorConfig) warn(ctx context.Context, key string, connect bool, f *Findings) {
	u, err := m.URL()
	if err != nil || m.Proxy != "" { // a mistake already, or reached by a proxy
		return
	}
	private := m.Private || isLocal(u)
	if err := deliverable(ctx, u, private, "private", connect); err != nil {
		f.warn(key, "mirror %q cannot be reached: %s", m.name(), err)
	}
}

// isOpenWith reports whether callers who may read everything here get repositories that are private at the origin.
func (m *MirrorConfig) isOpenWith() bool {
	return m.Auth == MirrorByRules && m.TokenFile+m.AppKeyFile+m.SSHKey != ""
}

// isLocal reports whether the host of an origin needs no permission for private addresses.
func isLocal(u *url.URL) bool { return u.Hostname() == "localhost" || net.ParseIP(u.Hostname()) != nil }

// deliverable returns the reason for which requests cannot reach a URL, or nil. privateKey is the key that sets
// private.
func deliverable(ctx context.Context, u *url.URL, private bool, privateKey string, connect bool) error {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return fmt.Errorf("the host %s has no address (%w)", u.Hostname(), err)
	}
	if !private && !slices.ContainsFunc(addresses, webhook.IsPublic) {
		return fmt.Errorf("its host only has addresses of a private network or of this machine; set %s = true if that is "+
			"intended", privateKey)
	}
	if !connect {
		return nil
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err == nil {
		conn.Close()
	}
	return err
}

// warnOfPatterns reports patterns of rules and webhooks that match no repository below the root. It leaves out those of
// mirrors, which are created by their first use.
func (c *Config) warnOfPatterns(ctx context.Context, f *Findings) {
	type unmatched struct {
		key, text string
		covers    func(git.RepoPath) bool
	}
	var left []unmatched
	add := func(key string, patterns []string, anyCase bool) {
		for _, text := range patterns {
			isMirror := slices.ContainsFunc(c.Mirror, func(m MirrorConfig) bool { return strings.HasPrefix(text, m.To+"/") })
			if p, err := auth.ParsePattern(text); err == nil && text != "**" && !isMirror {
				covers := p.Covers
				if anyCase {
					covers = p.CoversAnyCase
				}
				left = append(left, unmatched{key, text, covers})
			}
		}
	}
	for i, r := range c.Auth.Rule {
		add(fmt.Sprintf("auth.rule[%d].repositories", i), r.Repositories, r.May == "none" || c.Auth.Origin.FoldCase)
	}
	for i, w := range c.Webhook {
		add(fmt.Sprintf("webhook[%d].repositories", i), w.Repositories, false)
	}
	if len(left) == 0 {
		return
	}
	seen := 0
	for found, err := range c.RepositoriesBelow(ctx, nil) {
		path, wrong := git.ParseRepoPath(strings.TrimSuffix(strings.TrimSuffix(found, "/.git"), ".git"))
		if seen++; err != nil || wrong != nil || seen > maxPatternsSeen {
			return // the list is not complete
		}
		left = slices.DeleteFunc(left, func(u unmatched) bool { return u.covers(path) })
		if len(left) == 0 {
			return
		}
	}
	for _, u := range left {
		f.warn(u.key, "%s: %q matches no repository below %s", PlainKey(u.key), u.text, c.Root)
	}
}

// RepositoriesBelow lists the repositories below the root by their paths on disk, as a server would. skipped is as in
// repo.Walk.
func (c *Config) RepositoriesBelow(ctx context.Context, skipped func(path, why string)) iter.Seq2[string, error] {
	options, err := repo.OptionsBelow(c.Root, c.Hidden()...)
	if err != nil {
		return func(yield func(string, error) bool) { yield("", err) }
	}
	return (&repo.Walk{Options: options, Skipped: skipped}).All(ctx)
}

// Files returns the files and directories that the configuration names, except those below the state directory, the
// root, and what is made again.
func (c *Config) Files() (paths []string) {
	for _, s := range Settings(c) {
		path := s.Value.String()
		isOwn := slices.Contains([]string{"root", "state", "cache.dir", "index.dir"}, s.Key)
		if s.tag.Get("path") != "" && path != "" && !isOwn && !disk.Below(c.State, path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// Hidden returns the directories below the root that have no repositories.
func (c *Config) Hidden() (dirs []string) {
	for _, dir := range []string{c.State, c.Cache.Dir} {
		if dir != "" {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// expiresSoon is the remaining time of a certificate below which there is a warning.
const expiresSoon = 14 * 24 * time.Hour

// CertificateFile is a TLS certificate in the configuration.
type CertificateFile struct {
	Key     string // of the configuration
	What    string // the metric's label
	File    string // of the certificate and its chain
	Private string // file of its private key
}

// Certificates returns the TLS certificates that a role presents to other processes.
func (c *Config) Certificates(role Role) (list []CertificateFile) {
	add := func(on bool, key, what, file, private string) {
		if on && file != "" {
			list = append(list, CertificateFile{key, what, file, private})
		}
	}
	add(role.FacesClients(), "http.tls_cert", "http", c.HTTP.TLSCert, c.HTTP.TLSKey)
	add(role.OwnsRepositories() && c.Storage.Listen != "", "storage.tls_cert", "node", c.Storage.TLSCert, c.Storage.TLSKey)
	add(role == RoleSearch || role == RoleGateway && c.Search.Address != "", "search.tls_cert", "search", c.Search.TLSCert,
		c.Search.TLSKey)
	for i := range c.Node {
		add(role.asksNodes(), fmt.Sprintf("node[%d].tls_cert", i), "to_node_"+c.Node[i].Name, c.Node[i].TLSCert,
			c.Node[i].TLSKey)
	}
	return list
}

// ReadLeaf reads the first certificate of a PEM file, which belongs to the server.
func ReadLeaf(file string) (*x509.Certificate, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, fmt.Errorf("%s contains no certificate", file)
}

// Validity describes the problem with the period of a certificate. It returns "" if there is none.
func Validity(c *x509.Certificate, now time.Time) string {
	day := func(t time.Time) string { return t.UTC().Format(time.DateOnly) }
	switch {
	case now.After(c.NotAfter):
		return fmt.Sprintf("the certificate expired on %s; renew it: clients refuse the connection", day(c.NotAfter))
	case now.Before(c.NotBefore):
		return fmt.Sprintf("the certificate is valid from %s on: check the clock; clients refuse the connection until then",
			day(c.NotBefore))
	case c.NotAfter.Sub(now) < expiresSoon:
		return fmt.Sprintf("the certificate expires on %s, in %d days; renew it", day(c.NotAfter),
			int(c.NotAfter.Sub(now)/(24*time.Hour)))
	}
	return ""
}
