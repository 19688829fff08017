package roles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/web/status"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/mirror/forge"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// mirrors has the mirrors of a storage node, the clients of their origins, and the receiver of webhooks. They follow
// the [[mirror]] tables of the configuration.
type mirrors struct {
	*mirror.Mirrors
	hooks   *forge.Receiver
	origins map[string]*origin.Origin // by originKey
	metrics *origin.Metrics
	lists   *origin.ListMemory
	agent   string
	log     *slog.Logger
}

// newMirrors makes the mirrors of a node. It returns nil if the configuration has none, and had none before. Without
// tables their repositories are not readable, because the origin may not show them to everyone. Mirrors do not affect
// readiness: local data is served while an origin is down.
func newMirrors(d *deps, node *storage.Node) (*mirrors, error) {
	_, err := os.Stat(mirror.StateDir(d.cfg.State))
	if len(d.cfg.Mirror) == 0 && errors.Is(err, fs.ErrNotExist) {
		d.life.onReload(nil, firstTable(d.log))
		return nil, nil
	}
	m := &mirrors{metrics: d.origins.metrics, lists: origin.NewListMemory(0),
		agent: "packhorse/" + d.process.Version, log: d.log}
	d.life.push("clients of origins", func() error { return closeOrigins(m.origins) })
	tables, err := m.build(d.cfg.Mirror)
	if err != nil {
		return nil, err
	}
	m.origins = tables.origins
	m.Mirrors, err = mirror.New(mirror.Options{Node: node, Rules: tables.rules, State: d.cfg.State,
		Fsck: d.cfg.Push.Fsck, LFSCache: int64(d.cfg.LFS.Cache), Registerer: d.reg, Log: d.log})
	if err != nil {
		return nil, err
	}
	d.life.push("mirrors", m.Mirrors.Close)
	m.hooks = forge.NewReceiver(forge.Options{Refresh: m.refresh, Registerer: d.reg, Log: d.log})
	m.hooks.SetTables(tables.hooks)
	d.life.push("webhooks of forges", infallible(m.hooks.Close))
	d.life.onReload(nil, func(cfg config.Config) error { return m.apply(cfg.Mirror) })
	d.origins.lists = append(d.origins.lists, m.Origins)
	return m, nil
}

// firstTable warns of tables in a new configuration, if there were none at the start.
func firstTable(log *slog.Logger) func(config.Config) error {
	return func(cfg config.Config) error {
		if len(cfg.Mirror) > 0 {
			log.Warn("the first [[mirror]] table needs a restart")
		}
		return nil
	}
}

// refresh updates a mirror after a webhook. A repository that is not mirrored stays so.
func (m *mirrors) refresh(ctx context.Context, path git.RepoPath) error {
	_, err := m.Refresh(ctx, path)
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// states returns mirrors for the page with the status of the server.
func (m *mirrors) states(ctx context.Context) (list []status.Mirror, complete bool) {
	for after := ""; len(list) < maxStates; {
		part, err := m.List(ctx, after)
		for _, s := range part.Mirrors {
			list = append(list, status.Mirror{Path: s.Path, Origin: s.Origin, Fresh: s.Fresh, Updated: s.Updated,
				State: stateOf(&s), Error: s.Error})
		}
		if after = part.Next; err != nil || after == "" {
			return list, err == nil
		}
	}
	return list, false
}

// maxStates is the number of mirrors after which the page with the status reads no more.
const maxStates = 5000

// stateOf returns the state of a mirror in words.
func stateOf(s *mirror.Status) string {
	switch {
	case s.Refused:
		return "refused"
	case s.Orphan:
		return "no table"
	case s.Updating:
		return strings.TrimSpace("updating " + s.Progress)
	case s.Stale:
		return "stale"
	case s.Error != "":
		return "failing"
	case !s.Complete:
		return "incomplete"
	}
	return "current"
}

// apply applies changed tables. Clients of unchanged origins stay.
func (m *mirrors) apply(list []config.MirrorConfig) error {
	tables, err := m.build(list)
	if err != nil {
		return err
	}
	if err := m.SetRules(tables.rules); err != nil {
		return err
	}
	m.hooks.SetTables(tables.hooks)
	return m.replace(tables.origins)
}

// replace closes the clients that changed tables do not use any more.
func (m *mirrors) replace(origins map[string]*origin.Origin) error {
	unused := m.origins
	for key := range origins {
		delete(unused, key)
	}
	m.origins = origins
	return closeOrigins(unused)
}

// mirrorTables are the [[mirror]] tables in the form of their users.
type mirrorTables struct {
	rules   []mirror.Rule
	hooks   []forge.Table
	origins map[string]*origin.Origin
	hosts   map[string]*origin.Origin // one of each host, with whose limits others share
}

// build reads tables. It uses the clients of origins that exist already. After an error there are no new ones.
func (m *mirrors) build(list []config.MirrorConfig) (t mirrorTables, err error) {
	t.origins, t.hosts = map[string]*origin.Origin{}, map[string]*origin.Origin{}
	limits := map[string]*config.MirrorConfig{} // the first table of each host
	for i := range list {
		c := list[i]
		if u, wrong := c.URL(); wrong == nil {
			if limits[u.Host] == nil {
				limits[u.Host] = &list[i]
			}
			c.Requests, c.PerMinute = limits[u.Host].Requests, limits[u.Host].PerMinute
		}
		if err = m.add(&t, &c); err != nil {
			err = fmt.Errorf("mirror %q: %w", list[i].To, err)
			break
		}
	}
	if err != nil {
		for key := range m.origins {
			delete(t.origins, key)
		}
		err = errors.Join(err, closeOrigins(t.origins))
	}
	return t, err
}

func (m *mirrors) add(t *mirrorTables, c *config.MirrorConfig) error {
	u, err := c.URL()
	if err != nil {
		return err
	}
	r := mirror.Rule{Prefix: c.To, URL: u, Refs: c.Refs, StaleFor: c.StaleFor.Duration, FirstUse: c.FirstUse,
		FoldCase: c.FoldCase, OriginDecides: c.Auth == config.MirrorByOrigin, ChangeRequests: c.ChangeRequests,
		PushToOrigin: c.Push == config.MirrorByOrigin, MaxPack: int64(c.MaxPack)}
	if r.Allowed, err = c.Allowed(); err != nil {
		return err
	}
	if r.Fresh, err = c.Freshness(); err != nil {
		return err
	}
	key := originKey(c)
	if r.Origin = t.origins[key]; r.Origin == nil {
		if r.Origin = m.origins[key]; r.Origin == nil {
			if r.Origin, err = m.newOrigin(c, u, t.hosts[u.Host]); err != nil {
				return err
			}
		}
		t.origins[key] = r.Origin
		if t.hosts[u.Host] == nil {
			t.hosts[u.Host] = r.Origin
		}
	}
	t.rules = append(t.rules, r)
	if c.WebhookSecretFile == "" {
		return nil
	}
	secret, err := credfile.LoadSecret(c.WebhookSecretFile, m.log)
	if err == nil {
		t.hooks = append(t.hooks, forge.Table{Secret: secret.Get, Base: strings.Trim(u.Path, "/"), Prefix: c.To})
	}
	return err
}

// originKey identifies the client of an origin: everything in a table except the keys of mirror.Rule and of webhooks.
func originKey(c *config.MirrorConfig) string {
	k := *c
	k.To, k.Allow, k.Deny, k.Refs, k.Fresh, k.Push, k.Auth, k.WebhookSecretFile = "", nil, nil, nil, "", "", "", ""
	k.ChangeRequests, k.StaleFor, k.FirstUse, k.FoldCase, k.MaxPack = false, config.Duration{}, false, false, 0
	return fmt.Sprintf("%+v", k)
}

// newOrigin makes the client of an origin. It shares the limits of another one at the host, unless that is nil.
func (m *mirrors) newOrigin(c *config.MirrorConfig, u *url.URL, sameHost *origin.Origin) (*origin.Origin, error) {
	o := origin.Options{URL: u, Private: c.Private, Hosts: c.LFSHosts, Requests: c.Requests, PerMinute: c.PerMinute,
		Share: sameHost, Lists: m.lists, Agent: m.agent, Metrics: m.metrics, Log: m.log}
	if c.CA != "" {
		authorities, err := credfile.LoadAuthorities(c.CA, m.log)
		if err != nil {
			return nil, err
		}
		o.Authorities = authorities.Pool()
	}
	if c.Proxy != "" {
		proxy, err := url.Parse(c.Proxy)
		if err != nil {
			return nil, errors.New("proxy is not a URL") // not shown, because it may contain a password
		}
		o.Proxy = proxy
	}
	if u.Scheme == "ssh" {
		o.SSH = &origin.SSHOptions{KeyFile: c.SSHKey, KnownHosts: c.KnownHosts}
	}
	var err error
	if o.Credential, err = newCredential(c, o); err != nil {
		return nil, err
	}
	return origin.New(o)
}

// newCredential returns the mirror's own credential, or nil if there is none.
func newCredential(c *config.MirrorConfig, o origin.Options) (origin.Source, error) {
	switch {
	case c.TokenFile != "":
		return origin.NewTokenFile(c.TokenFile, c.User, o.Log)
	case c.AppID != 0:
		return origin.NewGitHubApp(origin.GitHubAppOptions{Origin: o, App: c.AppID, Installation: c.AppInstallation,
			KeyFile: c.AppKeyFile, Log: o.Log})
	}
	return nil, nil
}

func closeOrigins(all map[string]*origin.Origin) error {
	var failed []error
	for _, o := range all {
		failed = append(failed, o.Close())
	}
	return errors.Join(failed...)
}
