package gateway

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

const (
	maxCreations = 100    // of repositories within an hour by a caller who does not administer their paths
	maxCreators  = 10_000 // in memory
)

// Creation creates repositories at the first push to them. It is safe for concurrent use.
type Creation struct {
	// Patterns are the paths at which callers may do so. "{name}" stands for the name of the caller.
	Patterns []auth.Pattern

	mu      sync.Mutex
	limiter map[string]*rate.Limiter
}

// allows reports whether a caller may create a repository by a push. A credential for some refs creates none.
func (c *Creation) allows(id auth.Identity, path git.RepoPath) bool {
	return c != nil && !id.Anonymous() && (id.Grant == nil || len(id.Grant.Refs) == 0) &&
		slices.ContainsFunc(c.Patterns, func(p auth.Pattern) bool { return p.CoversFor(id.Name, path) })
}

// take counts a creation. The error is Exhausted if the caller has reached the limit.
func (c *Creation) take(caller string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limiter == nil || len(c.limiter) >= maxCreators {
		c.limiter = make(map[string]*rate.Limiter)
	}
	if c.limiter[caller] == nil {
		c.limiter[caller] = rate.NewLimiter(rate.Every(time.Hour/maxCreations), maxCreations)
	}
	if !c.limiter[caller].Allow() {
		return fault.Retry(fault.Exhausted, fault.RetryMuchLater, "%s has created %d repositories within an hour, which is "+
			"the maximum", caller, maxCreations)
	}
	return nil
}

// createMissing creates the repository of a push that a node has not found, if the caller may do that. It reports
// whether the push can be tried again. After a refusal the response is that for a repository that does not exist.
func (r *Request) createMissing(response *Response) bool {
	if !r.isPush || r.isChange || r.hidden || !fault.Is(r.Err, fault.NotFound) || response.Begun() ||
		!r.Creation.allows(r.ID, r.Repo) || !response.rewind() {
		return false
	}
	if err := r.Creation.take(r.ID.Name); err != nil {
		r.Err = err
		return false
	}
	create := Request{Gateway: r.Gateway, Ctx: r.Ctx, Op: r.Op, Client: r.Client, ID: r.ID, Repo: r.Repo, authorized: true}
	create.Call(node.Call{Procedure: packhorsev1connect.RepositoryServiceCreateProcedure}, true,
		func(path git.RepoPath) []byte {
			text, _ := proto.Marshal(&packhorsev1.CreateRequest{Repository: path.String()}) // a path is UTF-8, or refused
			return text
		}, func([]byte) error { return nil })
	switch {
	case create.Err == nil, fault.Is(create.Err, fault.Exists): // perhaps by another push
		r.failed = nil
		return true
	case !fault.Is(create.Err, fault.Invalid) && !fault.Is(create.Err, fault.Denied) &&
		!fault.Is(create.Err, fault.NotFound):
		r.Err = create.Err
	}
	return false
}
