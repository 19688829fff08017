package mirror

import (
	"context"
	"io"

	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/origin"
)

// update brings the repository to one state of the origin. Updates of a mirror run one after the other.
type update struct {
	refs  *origin.Refs // the state to reach
	auth  node.Secret
	first bool          // the repository is empty: everything is fetched
	done  chan struct{} // closed when err is valid
	err   error
}

// fetch asks the origin for a pack.
func (r *mirror) fetch(ctx context.Context, u *update, request origin.FetchRequest) (io.ReadCloser, error) {
	r.mu.Lock()
	client, path := r.rule.Origin, r.state.Path
	r.mu.Unlock()
	return client.Fetch(ctx, path, u.auth, request)
}
