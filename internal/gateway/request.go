package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// Request is one request of a client and its result. Gateway.Begin creates it, and End ends it. It is not safe for
// concurrent use.
type Request struct {
	*Gateway
	Ctx    context.Context // ends when the client disconnects
	Op     *Operation
	Client string // the client's address, with its port where that is known
	ID     auth.Identity
	Repo   git.RepoPath
	// Reidentify identifies the caller again while a push runs. It may be called concurrently. Nil: it cannot.
	Reidentify func(context.Context) (auth.Identity, error)

	Outcome node.Outcome // of the node
	Bytes   bulk.Tally   // of the response
	Err     error        // nil: the request has not failed
	Status  int          // the HTTP status of the response; 0: not sent

	// Front ends set these fields if the request is counted in another way.
	Result   string  // result in metrics and logs; "": determined by Err and Ctx
	Rating   *Rating // nil: by the operation's class
	WarnOnly bool    // Err was logged where it occurred, and is a warning here

	running    *inflight.Request
	span       *inflight.Span // nil: the request is not traced
	start      time.Time
	caller     balance.Caller // see Caller; "": not determined yet
	callerName string         // the name when caller was determined

	authorized bool          // Authorize has allowed the request; nodes get no other requests
	RefRules   node.RefRules // what the caller may change, after Authorize for Write
	secret     node.Secret   // see node.Session.Authorization
	isPush     bool          // the request is part of a push
	isChange   bool          // a node that failed may have done what the request asks, and it must not be done twice
	received   bool          // a node has sent a part of its response to a call
	hidden     bool          // the caller may not know whether the repository exists
	reachable  bool          // see node.Session
	node       string        // the node that was tried last; "": none
	storeID    string        // see router.Assignment.StoreID
	failed     []string      // the nodes that were tried before it
	lock       *lfs.Lock     // that the request created, removed or found in its way; nil: none
}

// Rating is how a request is rated against the service levels.
type Rating struct {
	Class   inflight.Class
	Latency time.Duration
}

// Begin begins a request of a client at an address. header may have the parent of its trace; nil: there is none.
func (g *Gateway) Begin(ctx context.Context, op *Operation, client string, header http.Header) Request {
	ctx, running := g.Board.Begin(ctx, op.Name, "")
	running.Describe("", "", HostOf(client))
	ctx, span := g.Tracer.StartPublic(ctx, header)
	return Request{Gateway: g, Ctx: ctx, Op: op, Client: client, running: running, span: span, start: time.Now()}
}

// HostOf returns an address without its port.
func HostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// Publish shows the request's operation, repository and user on the board of requests in flight.
func (r *Request) Publish() { r.running.Describe(r.Op.Name, r.Repo.String(), r.ID.Name) }

// At shows the stage of the request on the board.
func (r *Request) At(stage inflight.Stage) { r.running.SetStage(stage) }

// RequestID returns the ID that the request has in the log; "" without a board.
func (r *Request) RequestID() string { return r.running.ID() }

// Caller returns the caller to whose share of the capacity the request counts. It depends on ID. A credential for an
// origin gives its caller a share only after the origin has accepted it.
func (r *Request) Caller() balance.Caller {
	name := r.ID.Name
	if r.ID.By == auth.ByOrigin && r.secret.IsZero() {
		name = ""
	}
	if r.caller == "" || r.callerName != name {
		r.caller, r.callerName = r.Lanes.CallerOf(name, r.Client), name
	}
	return r.caller
}

// Authorize returns an error if the caller may not perform an operation. Requests of all front ends are authorized only
// here, before they are sent to a node. There is no error for a caller who may not know of the repository. Its request
// is served as for a repository that does not exist (see AbsentPath), so that neither the response nor its duration
// reveals that the repository exists.
func (r *Request) Authorize(op auth.Operation) error {
	err := error(nil)
	r.secret, r.RefRules = node.Secret{}, node.RefRules{} // they are of one repository
	if r.Rename != nil {
		r.Repo = r.Rename(r.Repo)
	}
	switch {
	case r.Auth != nil:
		r.reachable = r.Auth.Configured()
		err = r.Auth.May(r.Ctx, r.ID, r.Repo, op)
		if err == nil {
			r.secret = r.ID.Authorization()
		}
		if err == nil && op == auth.Write {
			r.RefRules, err = r.Auth.RefRules(r.Ctx, r.ID, r.Repo)
		}
		if fault.Is(err, fault.NotFound) {
			r.hidden, err = true, nil
		}
	case op != auth.Read:
		err = fault.New(fault.Denied, "this server does not accept pushes")
	}
	r.authorized = err == nil
	r.Publish()
	return err
}

// AuthorizeNew is Authorize for a repository that the request creates: for administrators of the path, and for callers
// whose pushes could create it, with the same limit. A caller who may not know of the path gets NotFound.
func (r *Request) AuthorizeNew() error {
	err := r.Authorize(auth.Admin)
	if (err != nil || r.hidden) && r.Creation.allows(r.ID, r.Repo) {
		r.hidden = false
		if err = r.Authorize(auth.Write); err == nil && !r.hidden {
			err = r.Creation.take(r.ID.Name)
		}
	}
	if err == nil && r.hidden {
		err = auth.NoRepository(r.Repo)
	}
	r.authorized = err == nil
	return err
}

// AuthorizeOther returns an error if the caller may not read another repository, or create it, or if no node has both.
func (r *Request) AuthorizeOther(path git.RepoPath, isNew bool) error {
	other := Request{Gateway: r.Gateway, Ctx: r.Ctx, Op: r.Op, ID: r.ID, Repo: path}
	if isNew {
		if err := other.AuthorizeNew(); err != nil {
			return err
		}
	} else if err := other.Authorize(auth.Read); err != nil {
		return err
	} else if other.hidden {
		return auth.NoRepository(path)
	}
	return r.Router.CheckSame(r.Repo, other.Repo)
}

// MayAdminister reports whether the caller may administer the repository.
func (r *Request) MayAdminister() bool {
	return r.Auth == nil || r.Auth.May(r.Ctx, r.ID, r.Repo, auth.Admin) == nil
}

// Enter admits the request to the concurrency limit of its operation. The error is Exhausted if the limit is reached.
// The caller has to leave the seat.
func (r *Request) Enter() (*admit.Seat, error) {
	seat, err := r.Op.Lane(&r.Lanes).Enter(r.Caller())
	if err == nil && r.Op.Short {
		seat.Stay()
	}
	return seat, err
}

// Sent counts n bytes of the response that passed through user space.
func (r *Request) Sent(n int) {
	r.Bytes.Add(int64(n))
	r.running.Sent(int64(n))
}

// SendFrom copies src to a client, in the kernel if possible, and counts it.
func (r *Request) SendFrom(to io.Writer, src io.Reader) (int64, error) {
	live := bulk.CountTo(src, r.running)
	n, err := io.Copy(to, src)
	r.Bytes.AddFrom(src, n)
	if !live {
		r.running.Sent(n)
	}
	return n, err
}
