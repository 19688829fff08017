package mirror

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Find returns the origin if it decides about readers of a repository. It implements auth.Prober.
func (m *Mirrors) Find(path git.RepoPath) *node.Origin {
	rule, at, _ := m.find(path)
	if !m.covers(path, rule) {
		return nil
	}
	if rule == nil {
		return &node.Origin{Probe: func(context.Context, protocol.Service, node.Secret, string) error {
			return fault.New(fault.NotFound, "no rule allows a mirror at %s", path)
		}}
	}
	return &node.Origin{
		Host: rule.Origin.Host(), URL: rule.URL.String(), StaleFor: rule.StaleFor, IsSilent: rule.Origin.IsSilent(),
		Probe: func(ctx context.Context, service protocol.Service, auth node.Secret, caller string) error {
			return m.probe(origin.WithCaller(ctx, caller), path, rule, at, service, auth)
		},
	}
}

// covers reports whether the origin decides about readers of a repository. A mirror that no rule allows any more is
// covered, too: no caller can read it.
func (m *Mirrors) covers(path git.RepoPath, rule *Rule) bool {
	if rule == nil {
		return m.isMirror(path)
	}
	if !rule.OriginDecides {
		return false
	}
	short := rule.canonical(path)
	if m.lookUp(short) != nil {
		return true
	}
	if _, err := m.node.Directory(short); err != nil || m.isMirror(short) {
		return true
	}
	_, err := m.node.Directory(short) // it may have been removed meanwhile
	return err != nil
}

// FoldsCase reports whether a table ignores the case of a path.
func (m *Mirrors) FoldsCase(path git.RepoPath) bool {
	rule, _, ok := m.find(path)
	return ok && rule.FoldCase
}

// sessionFor returns a session on a repository. It removes the caller's credential unless the repository's origin
// decides about the caller: then the credential is for another server.
func (m *Mirrors) sessionFor(path git.RepoPath, session node.Session) node.Session {
	if rule, _, ok := m.find(path); !ok || !rule.OriginDecides {
		session.Authorization = node.Secret{}
	}
	return session
}

// maxMoves is the maximum number of redirects that probe follows.
const maxMoves = 3

// probe asks the origin whether the owner of a credential may use a service on a covered repository. If the repository
// has moved at the origin, probe asks at the new place.
func (m *Mirrors) probe(ctx context.Context, path git.RepoPath, rule *Rule, at string, service protocol.Service,
	auth node.Secret) error {
	short := rule.canonical(path)
	err := error(nil)
	if r := m.lookUp(short); r != nil {
		at, err = r.pathBelow(rule, at)
	} else if marks, missing := m.node.MirrorMarks(short); missing == nil && marks.Any() { // not used since the start
		var s *state
		if s, err = loadState(marks); err == nil {
			at, err = s.pathBelow(rule, at)
		}
	}
	if err != nil {
		return err
	}
	for range maxMoves {
		err := rule.Origin.Probe(ctx, at, service, auth)
		moved, ok := rule.Origin.MovedPath(err)
		if !ok || !rule.allows(moved) {
			return err
		}
		at = moved
	}
	return fault.New(fault.NotFound, "the origin redirects too often")
}

// Hosts returns the hosts of the origins that decide about readers.
func (m *Mirrors) Hosts() (hosts []string) {
	for _, rule := range *m.rules.Load() {
		if rule.OriginDecides {
			hosts = append(hosts, rule.Origin.Host())
		}
	}
	return hosts
}
