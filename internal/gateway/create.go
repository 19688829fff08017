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
	maxCreations = 100    // of repositories by the pushes of a caller within an hour
	maxCreators  = 10_000 // in memory
)

// Creation creates repositories at the first push to them. It is safe for concurrent use.
type Creation struct {
	// Patterns are the paths at which callers may do so. "{name}" stands for the name of the caller.
	Patterns []auth.Pattern

	mu      sync.Mutex
	limiter map[string]*rate.Limiter
}

// allows reports whether a caller may create a repository by a push.
func (c *Creation) allows(caller string, path git.RepoPath) bool {
	return c != nil && caller != "" &&
		slices.ContainsFunc(c.Patterns, func(p auth.Pattern) bool { return p.CoversFor(caller, path) })
}

// take counts a creation. It reports false if the caller has reached the limit.
func (c *Creation) take(caller string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limiter == nil || len(c.limiter) >= maxCreators {
		c.limiter = make(map[string]*rate.Limiter)
	}
	if c.limiter[caller] == nil {
		c.limiter[caller] = rate.NewLimiter(rate.Every(time.Hour/maxCreations), maxCreations)
	}
	return c.limiter[caller].Allow()
}

// createMissing creates the repository of a push that a node has not found, if the caller may do that. It reports
// whether the push can be tried again. After a refusal the response is that for a repository that does not exist.
func (r *Request) createMissing(response *Response) bool {
	if !r.isPush || r.isChange || r.hidden || !fault.Is(r.Err, fault.NotFound) || response.Begun() ||
		!r.Creation.allows(r.ID.Name, r.Repo) || !response.rewind() {
		return false
	}
	if !r.Creation.take(r.ID.Name) {
		r.Err = fault.Retry(fault.Exhausted, fault.RetryMuchLater, "%s has created %d repositories by pushes within an "+
			"hour, which is the maximum", r.ID.Name, maxCreations)
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
