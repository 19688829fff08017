package roles

import (
	"context"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/config"
	"github.com/packhorse-git/packhorse/internal/credfile"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/origin"
)

// newOrigins returns the origins that decide about callers, or nil if there are none.
func (s *server) newOrigins(metrics *auth.Metrics) (*auth.Origins, error) {
	var probers []auth.Prober
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
	return auth.NewOrigins(auth.OriginOptions{Probers: probers, TTL: s.cfg.Auth.TTL.Duration, Metrics: metrics}), nil
}

// sidecar asks the forge of [auth.origin]. It implements auth.Prober.
type sidecar struct {
	forge    *origin.Origin
	prefix   string // of the forge's repositories below the root, with a slash at its end; "" means that all are
	staleFor time.Duration
}

func (s *server) newSidecar() (*sidecar, error) {
	c := s.cfg.Auth.Origin
	u, err := origin.ParseURL(c.URL)
	if err != nil {
		return nil, err
	}
	metrics := origin.NewMetrics()
	o := origin.Options{URL: u, Private: c.Private, Agent: "packhorse/" + s.process.Version, Metrics: metrics, Log: s.log}
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
	s.register(metrics)
	s.closers.push("client of the forge", forge.Close)
	if u.Scheme == "http" && !config.IsLoopback(u.Hostname()) {
		s.log.Warn("credentials are sent to the forge without TLS", "host", u.Host)
	}
	return &sidecar{forge: forge, prefix: prefixOf(c), staleFor: c.StaleFor.Duration}, nil
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

// Probe asks the forge. Repositories that were renamed there are not found here.
func (s *sidecar) Probe(ctx context.Context, repo git.RepoPath, service protocol.Service,
	authorization node.Secret) error {
	err := s.forge.Probe(ctx, repo.String()[len(s.prefix):], service, authorization)
	if err != nil && origin.IsDown(err) { // even with a status that refuses otherwise
		return fault.Wrap(fault.Unavailable, "the forge does not answer", err)
	}
	return err
}

// StaleFor returns auth.origin.stale_for.
func (s *sidecar) StaleFor(git.RepoPath) time.Duration { return s.staleFor }
