package roles

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/mirror"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// newOrigins returns the origins that decide about callers, or nil if there are none. mirrors may be nil.
func newOrigins(d *deps, mirrors auth.Prober, metrics *auth.Metrics) (*auth.Origins, error) {
	var probers []auth.Prober
	if mirrors != nil {
		probers = append(probers, mirrors)
	}
	if d.cfg.Auth.Origin.URL != "" {
		forge, err := newSidecar(d)
		if err != nil {
			return nil, err
		}
		probers = append(probers, forge)
	}
	if len(probers) == 0 {
		return nil, nil
	}
	o := auth.OriginOptions{Probers: probers, TTL: d.cfg.Auth.TTL.Duration, Metrics: metrics, Log: d.log}
	if d.cfg.State != "" {
		o.File = filepath.Join(d.cfg.State, "origin-permissions")
	}
	return auth.NewOrigins(o), nil
}

// sidecar asks the forge of [auth.origin]. It implements auth.Prober.
type sidecar struct {
	forge    *origin.Origin
	url      string
	prefix   string // of the forge's repositories below the root, with a slash at its end; "" means that all are
	foldCase bool
	staleFor time.Duration
}

func newSidecar(d *deps) (*sidecar, error) {
	c := d.cfg.Auth.Origin
	u, err := origin.ParseURL(c.URL)
	if err != nil {
		return nil, err
	}
	o := origin.Options{URL: u, Private: c.Private, Agent: "packhorse/" + d.process.Version,
		Metrics: d.origins.metrics, Log: d.log}
	if c.CA != "" {
		authorities, err := credfile.LoadAuthorities(c.CA, d.log)
		if err != nil {
			return nil, err
		}
		o.Authorities = authorities.Pool()
	}
	forge, err := origin.New(o)
	if err != nil {
		return nil, err
	}
	d.life.push("client of the forge", forge.Close)
	d.origins.lists = append(d.origins.lists, func() []*origin.Origin { return []*origin.Origin{forge} })
	if u.Scheme == "http" && !config.IsLoopback(u.Hostname()) {
		d.log.Warn("credentials are sent to the forge without TLS", "host", u.Host)
	}
	return &sidecar{forge: forge, url: u.String(), prefix: prefixOf(c), foldCase: c.FoldCase,
		staleFor: c.StaleFor.Duration}, nil
}

// nodeMirrors are the [[mirror]] tables of a gateway, whose nodes have the mirrors. They follow the configuration. It
// implements auth.Prober.
type nodeMirrors struct {
	clients *mirrors                      // without mirrors
	rules   atomic.Pointer[[]mirror.Rule] // the longest prefix is first; without an Origin: of a removed table
}

// newNodeMirrors returns nil if the configuration has no mirrors.
func newNodeMirrors(d *deps) (auth.Prober, error) {
	if len(d.cfg.Mirror) == 0 {
		d.life.onReload(nil, firstTable(d.log))
		return nil, nil
	}
	n := &nodeMirrors{clients: &mirrors{metrics: d.origins.metrics, agent: "packhorse/" + d.process.Version, log: d.log}}
	n.rules.Store(&[]mirror.Rule{})
	d.life.push("clients of origins", func() error { return closeOrigins(n.clients.origins) })
	d.origins.lists = append(d.origins.lists, func() []*origin.Origin { return mirror.OriginsOf(*n.rules.Load()) })
	d.life.onReload(nil, func(cfg config.Config) error { return n.apply(cfg.Mirror) })
	return n, n.apply(d.cfg.Mirror)
}

// apply applies changed tables. The nodes may still have the mirrors of a removed table. No origin decides about them
// any more, so no caller can read them without a rule, unless another table is for their path.
func (n *nodeMirrors) apply(list []config.MirrorConfig) error {
	tables, err := n.clients.build(list)
	if err != nil {
		return err
	}
	rules := tables.rules
	for _, old := range *n.rules.Load() {
		isKept := slices.ContainsFunc(tables.rules, func(r mirror.Rule) bool { return r.Prefix == old.Prefix })
		if old.OriginDecides && !isKept {
			old.Origin = nil
			rules = append(rules, old)
		}
	}
	slices.SortStableFunc(rules, func(a, b mirror.Rule) int { return len(b.Prefix) - len(a.Prefix) })
	n.rules.Store(&rules)
	return n.clients.replace(tables.origins)
}

// find returns the rule for a repository and its path at the origin; nil if no prefix matches.
func (n *nodeMirrors) find(repo git.RepoPath) (rule *mirror.Rule, path string) {
	rules := *n.rules.Load()
	for i := range rules {
		if path, ok := strings.CutPrefix(repo.String(), rules[i].Prefix+"/"); ok {
			return &rules[i], path
		}
	}
	return nil, ""
}

// Find returns the origin of the table with auth = "origin" that is or was for the repository.
func (n *nodeMirrors) Find(repo git.RepoPath) *node.Origin {
	rule, path := n.find(repo)
	if rule == nil || !rule.OriginDecides {
		return nil
	}
	o := &node.Origin{URL: rule.URL.String(), StaleFor: rule.StaleFor}
	if rule.Origin != nil {
		o.Host, o.IsSilent = rule.Origin.Host(), rule.Origin.IsSilent()
	}
	o.Probe = func(ctx context.Context, service protocol.Service, authorization node.Secret, caller string) error {
		ask := func(path string) error {
			if p, err := git.ParseRepoPath(path); err != nil || rule.Origin == nil || rule.Allowed != nil && !rule.Allowed(p) {
				return fault.New(fault.NotFound, "no table allows a mirror at %s", repo)
			}
			return rule.Origin.Probe(origin.WithCaller(ctx, caller), path, service, authorization)
		}
		err := ask(path)
		if moved, ok := rule.Origin.MovedPath(err); ok { // once more at the new place of a renamed repository
			err = ask(moved)
		}
		return err
	}
	return o
}

// FoldsCase reports whether the table for the repository has fold_case.
func (n *nodeMirrors) FoldsCase(repo git.RepoPath) bool {
	rule, _ := n.find(repo)
	return rule != nil && rule.FoldCase
}

// Hosts returns the hosts of the tables' origins.
func (n *nodeMirrors) Hosts() (hosts []string) {
	for _, rule := range *n.rules.Load() {
		if rule.OriginDecides && rule.Origin != nil {
			hosts = append(hosts, rule.Origin.Host())
		}
	}
	return hosts
}

// prefixOf returns the directory of the forge's repositories with a slash at its end, or "" for the root.
func prefixOf(c config.OriginConfig) string {
	if c.Prefix == "" {
		return ""
	}
	return c.Prefix + "/"
}

// foldCase returns the function that changes paths of the forge's repositories to lower case, or nil.
func foldCase(c config.OriginConfig) func(git.RepoPath) git.RepoPath {
	if c.URL == "" || !c.FoldCase {
		return nil
	}
	prefix := prefixOf(c)
	return func(repo git.RepoPath) git.RepoPath {
		below, ok := strings.CutPrefix(repo.String(), prefix)
		if !ok {
			return repo
		}
		folded, err := git.ParseRepoPath(prefix + strings.ToLower(below))
		if err != nil { // the lower case of some letters has more bytes
			return repo
		}
		return folded
	}
}

// covers reports whether a repository is below the forge's directory. The case of that does not matter, because there
// are disks for which it does not matter either.
func (s *sidecar) covers(repo git.RepoPath) bool {
	path := repo.String()
	return len(path) >= len(s.prefix) && strings.EqualFold(path[:len(s.prefix)], s.prefix)
}

// FoldsCase reports whether requests for the forge's repositories have fold_case.
func (s *sidecar) FoldsCase(repo git.RepoPath) bool { return s.foldCase && s.covers(repo) }

// Find returns the forge for its repositories. Those that were renamed there are not found here.
func (s *sidecar) Find(repo git.RepoPath) *node.Origin {
	if !s.covers(repo) {
		return nil
	}
	return &node.Origin{Host: s.forge.Host(), URL: s.url, StaleFor: s.staleFor, IsSilent: s.forge.IsSilent(),
		Probe: func(ctx context.Context, service protocol.Service, authorization node.Secret, caller string) error {
			err := s.forge.Probe(origin.WithCaller(ctx, caller), repo.String()[len(s.prefix):], service, authorization)
			if origin.IsDown(err) && !fault.Is(err, fault.Exhausted) { // even with a status that refuses otherwise
				return fault.Wrap(fault.Unavailable, "the forge does not answer", err)
			}
			return err
		},
	}
}

// Hosts returns the host of the forge.
func (s *sidecar) Hosts() []string { return []string{s.forge.Host()} }
