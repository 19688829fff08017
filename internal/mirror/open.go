package mirror

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// opening is the first use of a mirror, shared by concurrent callers.
type opening struct {
	done   chan struct{} // closed when the other fields are valid
	mirror *mirror
	err    error
}

// open returns the mirror for a path. It is nil if the path is not that of a mirror: no rule covers it, or a repository
// without an origin has the path.
//
// The first use creates the mirror: it asks the origin for its refs, creates an empty repository, and starts the first
// update. The credential is that of the caller; zero means the mirror's own. Errors: those of the origin; NotFound if
// the rule does not allow a first use.
func (m *Mirrors) open(ctx context.Context, path git.RepoPath, auth node.Secret) (*mirror, error) {
	return nil, errNotYet
}
