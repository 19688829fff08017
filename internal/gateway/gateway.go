// Package gateway is the core that all front ends share. It authorizes the caller of a request, and admits the request
// to the concurrency limit of its operation. It relays the request to a storage node, and to another one if that fails.
// It ends the request in one place, with its log line, its metrics and its trace.
//
// Packages githttp and gitssh are the front ends. They accept clients, parse their requests, and turn the kind of a
// fault into an HTTP status or an exit code.
//
// The life of a request: Gateway.Begin, Request.Authorize, Request.Enter, one of the calls of a node (Advertise,
// UploadPack, ReceivePack), Response.Finish, Request.End.
package gateway

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/resolve"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// Gateway has the parts that all requests share. Its fields are set before the first request.
type Gateway struct {
	Router   *router.Router
	Auth     Auth // nil: all callers may read, and pushes are denied
	Pump     *bulk.Pump
	Lanes    admit.Lanes
	Memory   *admit.Budget // for requests that need more than freeMemory
	Metrics  *Metrics
	SLI      *inflight.Levels // nil: requests are not rated
	Log      *slog.Logger
	Board    *inflight.Board  // of the requests in flight; nil: there is none
	Tracer   *inflight.Tracer // nil: nothing is traced
	LFS      *LFS             // nil: Git LFS is off
	Resolver resolve.Resolver // resolves revisions; nil: they are not resolved
	// Rename, unless nil, returns the path of a repository on the nodes for its path in a request. It does not change a
	// path that it has returned.
	Rename func(git.RepoPath) git.RepoPath
	// SendCredentials passes callers' credentials for origins to nodes, which may mirror the repositories.
	SendCredentials bool
	// Changed, unless nil, is called when a push may have changed a repository's refs, before the client gets a response.
	// It must not block.
	Changed func(git.RepoPath)

	// Creation creates repositories at the first push to them. Nil: there are none.
	Creation *Creation
	// Mentions, unless nil, lists the rules and tokens that name a repository by its path before it was renamed, and not
	// by the new one.
	Mentions func(from, to git.RepoPath) []string

	MaxBody   int64         // maximum size of a request's unpacked body in bytes, except for pushes
	ReadStall time.Duration // maximum time without a byte of a body
	MaxPush   int64         // maximum size of a push's pack in bytes; 0: no limit
	TimeLimit time.Duration // maximum time to receive a push, or of a call; 0: one day

	descriptions descriptions
}

func (g *Gateway) timeLimit() time.Duration { return cmp.Or(g.TimeLimit, 24*time.Hour) }

// Auth identifies callers and authorizes them. It is safe for concurrent use.
type Auth interface {
	// HTTP identifies the caller of a request by its Authorization header. Without one the caller is anonymous. It
	// fails with Unauthenticated if the credentials are wrong, Exhausted after too many guesses, or Unavailable.
	HTTP(r *http.Request) (auth.Identity, error)
	// May fails with Unauthenticated if an authenticated caller might be allowed the operation. It fails with NotFound
	// if the caller may not know of the repository, and with Denied if the caller may know of it. It can also fail with
	// Unavailable.
	May(ctx context.Context, id auth.Identity, repo git.RepoPath, op auth.Operation) error
	// RefRules returns what the identity may change in a repository, if it may write to it. It fails with Unavailable.
	RefRules(ctx context.Context, id auth.Identity, repo git.RepoPath) (node.RefRules, error)
	// Configured reports whether callers are distinguished. If so, objects that no ref reaches are not public.
	Configured() bool
	// Reader returns a function that reports which of many repositories the identity may read; nil means all. If access
	// to a repository cannot be determined, it is reported as unreadable and complete is false.
	Reader(ctx context.Context, id auth.Identity) func([]git.RepoPath) (may []bool, complete bool)
}
