package mirror

import (
	"context"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Covers reports whether the origin decides about readers of a repository.
func (m *Mirrors) Covers(path git.RepoPath) bool { return false }

// Probe asks the origin whether the owner of a credential may use a service on a covered repository. A zero credential
// is that of an anonymous caller. If the repository has moved at the origin, Probe asks at the new place.
func (m *Mirrors) Probe(ctx context.Context, path git.RepoPath, service protocol.Service, auth node.Secret) error {
	return errNotYet
}

// StaleFor returns how long an answer of the origin about a covered repository holds while the origin is down.
func (m *Mirrors) StaleFor(path git.RepoPath) time.Duration { return 0 }
