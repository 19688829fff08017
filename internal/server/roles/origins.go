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

// newOrigins returns the origins that decide about callers, or nil if there are none.
func (s *server) newOrigins(metrics *auth.Metrics) (*auth.Origins, error) {
	var probers []auth.Prober
	switch {
	case s.mirrors != nil:
		probers = append(probers, s.mirrors)
	case len(s.cfg.Mirror) > 0:
		nodes, err := s.newNodeMirrors()
		if err != nil {
			return nil, err
		}
		probers = append(probers, nodes)
	case s.node == nil: // otherwise addMirrors does so
		s.reloads = append(s.reloads, firstTable(s.log))
	}
	if s.cfg.Auth.Origin.URL != "" {
		forge, err := s.newSidecar()
		if err != nil {
			return nil, err
		}
		probers = append(probers, forge)
	}
	if len(probers) == 0 {
		return nil, nil
	}
	o := auth.OriginOptions{Probers: probers, TTL: s.cfg.Auth.TTL.Duration, Metrics: metrics, Log: s.log}
	if s.cfg.State != "" {
		o.File = filepath.Join(s.cfg.State, "origin-permissions")
	}
	return auth.NewOrigins(o), nil
}

// originMetrics returns the metrics of the clients of origins, which it registers the first time.
func (s *server) originMetrics() *origin.Metrics {
	if s.origins == nil {
		s.origins = origin.NewMetrics(s.reg)
	}
	return s.origins
}

// originStatus returns the states of the hosts of all origins.
func (s *server) originStatus() []origin.Status {
	var all []*origin.Origin
	for _, list := range s.originLists {
		all = append(all, list()...)
	}
	return origin.StatusOf(all)
}

// sidecar asks the forge of [auth.origin]. It implements auth.Prober.
type sidecar struct {
	forge    *origin.Origin
	url      string
	prefix   string // of the forge's repositories below the root, with a slash at its end; "" means that all are
	foldCase bool
	staleFor time.Duration
}

func (s *server) newSidecar() (*sidecar, error) {
	c := s.cfg.Auth.Origin
	u, err := origin.ParseURL(c.URL)
	if err != nil {
		return nil, err
	}
	o := origin.Options{URL: u, Private: c.Private, Agent: "packhorse/" + s.process.Version,
		Metrics: s.originMetrics(), Log: s.log}
	if c.CA != "" {
		authorities, err := credfile.LoadAuthorities(c.CA, s.log)
		if err != nil {
			return nil, err
		}
		o.Authorities = authorities.Pool()
	}
	forge, err := origin.New(o)
	if err != nil {
		return nil, err
	}
	s.closers.push("client of the forge", forge.Close)
	s.originLists = append(s.originLists, func() []*origin.Origin { return []*origin.Origin{forge} })
	if u.Scheme == "http" && !config.IsLoopback(u.Hostname()) {
		s.log.Warn("credentials are sent to the forge without TLS", "host", u.Host)
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

func (s *server) newNodeMirrors() (*nodeMirrors, error) {
	n := &nodeMirrors{clients: &mirrors{metrics: s.originMetrics(), agent: "packhorse/" + s.process.Version, log: s.log}}
	n.rules.Store(&[]mirror.Rule{})
	s.closers.push("clients of origins", func() error { return closeOrigins(n.clients.origins) })
	s.originLists = append(s.originLists, func() []*origin.Origin { return mirror.OriginsOf(*n.rules.Load()) })
	s.reloads = append(s.reloads, reloadStep{apply: func(cfg config.Config) error { return n.apply(cfg.Mirror) }})
	return n, n.apply(s.cfg.Mirror)
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

// Covers reports whether a table with auth = "origin" is or was for the repository.
func (n *nodeMirrors) Covers(repo git.RepoPath) bool {
	rule, _ := n.find(repo)
	return rule != nil && rule.OriginDecides
}

// FoldsCase reports whether the table for the repository has fold_case.
func (n *nodeMirrors) FoldsCase(repo git.RepoPath) bool {
	rule, _ := n.find(repo)
	return rule != nil && rule.FoldCase
}

// Probe asks the origin, and once more at the new place of a repository that was renamed there.
func (n *nodeMirrors) Probe(ctx context.Context, repo git.RepoPath, service protocol.Service,
	authorization node.Secret, caller string) error {
	ctx = origin.WithCaller(ctx, caller)
	rule, path := n.find(repo)
	if rule.Origin == nil {
		return fault.New(fault.NotFound, "no table allows a mirror at %s", repo)
	}
	ask := func(path string) error {
		if p, err := git.ParseRepoPath(path); err != nil || rule.Allowed != nil && !rule.Allowed(p) {
			return fault.New(fault.NotFound, "no table allows a mirror at %s", repo)
		}
		return rule.Origin.Probe(ctx, path, service, authorization)
	}
	err := ask(path)
	if moved, ok := rule.Origin.MovedPath(err); ok {
		err = ask(moved)
	}
	return err
}

// Host returns the host of the table's origin.
func (n *nodeMirrors) Host(repo git.RepoPath) string {
	rule, _ := n.find(repo)
	if rule.Origin == nil {
		return ""
	}
	return rule.Origin.Host()
}

// URL returns the URL of the table's origin.
func (n *nodeMirrors) URL(repo git.RepoPath) string {
	rule, _ := n.find(repo)
	return rule.URL.String()
}

// IsSilent reports whether the table's origin has lately answered nothing.
func (n *nodeMirrors) IsSilent(repo git.RepoPath) bool {
	rule, _ := n.find(repo)
	return rule.Origin != nil && rule.Origin.IsSilent()
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

// StaleFor returns stale_for of the table.
func (n *nodeMirrors) StaleFor(repo git.RepoPath) time.Duration {
	rule, _ := n.find(repo)
	return rule.StaleFor
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

// Covers reports whether a repository is below the forge's directory. The case of that does not matter, because there
// are disks for which it does not matter either.
func (s *sidecar) Covers(repo git.RepoPath) bool {
	path := repo.String()
	return len(path) >= len(s.prefix) && strings.EqualFold(path[:len(s.prefix)], s.prefix)
}

// FoldsCase reports whether requests for the forge's repositories have fold_case.
func (s *sidecar) FoldsCase(repo git.RepoPath) bool { return s.foldCase && s.Covers(repo) }

// Probe asks the forge. Repositories that were renamed there are not found here.
func (s *sidecar) Probe(ctx context.Context, repo git.RepoPath, service protocol.Service,
	authorization node.Secret, caller string) error {
	err := s.forge.Probe(origin.WithCaller(ctx, caller), repo.String()[len(s.prefix):], service, authorization)
	if origin.IsDown(err) && !fault.Is(err, fault.Exhausted) { // even with a status that refuses otherwise
		return fault.Wrap(fault.Unavailable, "the forge does not answer", err)
	}
	return err
}

// Host returns the host of the forge.
func (s *sidecar) Host(git.RepoPath) string { return s.forge.Host() }

// URL returns the URL of the forge.
func (s *sidecar) URL(git.RepoPath) string { return s.url }

// IsSilent reports whether the forge has lately answered nothing.
func (s *sidecar) IsSilent(git.RepoPath) bool { return s.forge.IsSilent() }

// Hosts returns the host of the forge.
func (s *sidecar) Hosts() []string { return []string{s.forge.Host()} }

// StaleFor returns auth.origin.stale_for.
func (s *sidecar) StaleFor(git.RepoPath) time.Duration { return s.staleFor }
