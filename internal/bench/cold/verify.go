package cold

import (
	"context"
	"fmt"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// clientState is a client with its request.
type clientState struct {
	shape shape
	repo  string // path of the served repository
	refs  *refs
	haves []string
	base  string // the commit whose history the client has, if it has haves
}

// verifyOnce fetches the measured pack again, which is now in the cache, and lets git check it unless it has checked
// the same pack before.
func (r *run) verifyOnce(ctx context.Context, t *loadgen.Target, c *clientState) error {
	if !r.check {
		return nil
	}
	check := gitload.Check{Request: c.shape.request(c.refs, c.haves), Seen: r.seen}
	if len(c.haves) > 0 {
		check.Prepare = func(ctx context.Context, repo string) error {
			_, err := gitload.RunGit(ctx, repo, nil, "fetch", "-q", "--no-tags", "file://"+c.repo, c.base+":refs/heads/have")
			return err
		}
	}
	if _, err := check.Fetch(ctx, t, r.timeout); err != nil {
		return fmt.Errorf("fetch the pack again: %w", err)
	}
	return nil
}
