package mirror

import (
	"context"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Covers reports whether the origin decides about readers of a repository. A mirror that no rule allows any more is
// covered, too: no caller can read it.
func (m *Mirrors) Covers(path git.RepoPath) bool {
	rule, _, ok := m.find(path)
	if !ok {
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

// maxMoves is the maximum number of redirects that Probe follows.
const maxMoves = 3

// Probe asks the origin whether the owner of a credential may use a service on a covered repository. A zero credential
// is that of an anonymous caller. caller is that of auth.Prober. If the repository has moved at the origin, Probe asks
// at the new place.
func (m *Mirrors) Probe(ctx context.Context, path git.RepoPath, service protocol.Service, auth node.Secret,
	caller string) error {
	ctx = origin.WithCaller(ctx, caller)
	rule, at, ok := m.find(path)
	if !ok {
		return fault.New(fault.NotFound, "no rule allows a mirror at %s", path)
	}
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

// Host returns the host of the origin of a covered repository.
func (m *Mirrors) Host(path git.RepoPath) string {
	rule, _, ok := m.find(path)
	if !ok {
		return ""
	}
	return rule.Origin.Host()
}

// URL returns the URL of the origin of a covered repository.
func (m *Mirrors) URL(path git.RepoPath) string {
	rule, _, ok := m.find(path)
	if !ok {
		return ""
	}
	return rule.URL.String()
}

// IsSilent reports whether that origin has lately answered nothing.
func (m *Mirrors) IsSilent(path git.RepoPath) bool {
	rule, _, ok := m.find(path)
	return ok && rule.Origin.IsSilent()
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

// StaleFor returns how long an answer of the origin about a covered repository holds while the origin is down.
func (m *Mirrors) StaleFor(path git.RepoPath) time.Duration {
	rule, _, ok := m.find(path)
	if !ok {
		return 0
	}
	return rule.StaleFor
}
