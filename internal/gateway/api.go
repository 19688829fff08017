package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/auth"
	"github.com/packhorse-git/packhorse/internal/balance"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/router"
)

// Waiter is a Node that can be waited for.
type Waiter interface {
	// Wait returns as soon as whoever reads the repository sees what is waited for. Errors: NotFound if there is no such repository, Deadline or
	// Cancelled when ctx ends, Invalid if it will never be seen, Exhausted if too many wait.
	Wait(ctx context.Context, repo git.RepoPath, what node.WaitCondition) (git.Version, error)
}

const (
	waitPath    = "/-/api/v1/wait"
	defaultWait = 30 * time.Second
	leastWait   = time.Second // so that there is time to look once
	maxWait     = 10 * time.Minute
	maxWaiters  = 1000 // requests that wait
	callerWaits = 250  // of one caller
	nobodyWaits = 500  // of all anonymous callers
)

// waiters bounds the requests that wait, which are in no lane: they cost nothing but their connection, and the node lets few of them look at a time.
type waiters struct {
	ending context.Context // ends with the gateway
	end    context.CancelFunc

	mu             sync.Mutex
	all, strangers int // strangers: those of all that are anonymous
	of             map[balance.Caller]int
}

func newWaiters() *waiters {
	w := &waiters{of: map[balance.Caller]int{}}
	w.ending, w.end = context.WithCancel(context.Background())
	return w
}

func (w *waiters) enter(caller balance.Caller) (leave func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	anonymous := 0
	if caller.Anonymous() {
		anonymous = 1
	}
	if w.all == maxWaiters || w.strangers+anonymous > nobodyWaits || caller != "" && w.of[caller] == callerWaits {
		return nil, fault.Retry(fault.Exhausted, fault.RetryLater, "too many requests wait already; try again")
	}
	w.all++
	w.strangers += anonymous
	w.of[caller]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all--
		w.strangers -= anonymous
		if w.of[caller]--; w.of[caller] == 0 {
			delete(w.of, caller)
		}
	}, nil
}

// EndWaits answers all requests that wait: the gateway comes to its end.
func (h *HTTP) EndWaits() { h.waiters.end() }

// waitAnswer is what a request that waited is told.
type waitAnswer struct {
	Repository string       `json:"repository"`
	Visible    bool         `json:"visible"`
	Message    string       `json:"message,omitempty"`
	Version    *waitVersion `json:"version,omitempty"`
}

// waitVersion says of which state of the refs the answer is. Its numbers may be greater than JavaScript's.
type waitVersion struct {
	Incarnation string `json:"incarnation"`
	Epoch       uint64 `json:"epoch,string"`
	Generation  uint64 `json:"generation,string"`
}

// wait answers GET /-/api/v1/wait?repo=PATH with oid=ID or generation=N (and epoch=N), and timeout=30s: 200 as soon as who reads the
// repository sees it, 408 if that is not so in time. Who may not read it is told what a fetch would be told.
func (e *exchange) wait() {
	if !e.method(http.MethodGet) {
		return
	}
	e.op = opWait
	query, err := url.ParseQuery(e.r.URL.RawQuery)
	if err != nil {
		e.refuse(http.StatusBadRequest, "bad query")
		return
	}
	what, limit, err := parseWait(query)
	if err != nil {
		e.refuse(http.StatusBadRequest, err.Error())
		return
	}
	if !e.repository(query.Get("repo")) || !e.may(auth.Read) {
		return
	}
	e.keepPrivate()
	leave, err := e.waiters.enter(e.caller())
	if err != nil {
		e.fail(err)
		return
	}
	defer leave()
	what.Caller = string(e.caller())
	ctx, cancel := context.WithTimeout(e.ctx, limit)
	defer cancel()
	defer context.AfterFunc(e.waiters.ending, cancel)()
	var seen git.Version
	e.relay(noAnswer{}, func(n router.Node) (o node.Outcome, err error) {
		waiter, ok := n.(Waiter)
		if !ok {
			return o, fault.New(fault.Invalid, "this storage node cannot be waited for")
		}
		seen, err = waiter.Wait(ctx, e.repo, what)
		if ctx.Err() != nil && e.ctx.Err() == nil && fault.Is(err, fault.Cancelled) { // it was not the node that gave up
			err = fault.Wrap(fault.Deadline, "it cannot be seen yet", err)
		}
		return o, err
	})
	switch {
	case e.err == nil:
		e.json(http.StatusOK, waitAnswer{Repository: e.repo.String(), Visible: true,
			Version: &waitVersion{Incarnation: seen.Incarnation, Epoch: seen.Epoch, Generation: seen.Generation}})
	case fault.Is(e.err, fault.Deadline):
		if e.waiters.ending.Err() != nil {
			e.fail(fault.Retry(fault.Unavailable, fault.RetrySoon, "the server is shutting down; try again"))
			return
		}
		e.json(http.StatusRequestTimeout, waitAnswer{Repository: e.repo.String(), Message: "it cannot be seen yet; ask again"})
	default:
		e.fail(e.err)
	}
}

// parseWait reads what is waited for, and for how long.
func parseWait(query url.Values) (what node.WaitCondition, limit time.Duration, err error) {
	for key, values := range query {
		if len(values) != 1 {
			return what, 0, fault.New(fault.Invalid, "%.20q is given %d times", key, len(values))
		}
		switch value := values[0]; key {
		case "repo":
		case "oid":
			what.ID, err = git.ParseObjectID(value)
		case "generation":
			what.Generation, err = strconv.ParseUint(value, 10, 64)
		case "epoch":
			what.Epoch, err = strconv.ParseUint(value, 10, 64)
		case "timeout":
			if strings.Trim(value, "0123456789") == "" {
				value += "s"
			}
			limit, err = time.ParseDuration(value)
		default:
			return what, 0, fault.New(fault.Invalid, "there is no parameter %.20q; there are repo, oid, generation, epoch and timeout", key)
		}
		if err != nil {
			return what, 0, fault.New(fault.Invalid, "bad %s %.80q", key, values[0])
		}
	}
	switch {
	case query.Get("repo") == "":
		return what, 0, fault.New(fault.Invalid, "which repository? as in "+waitPath+"?repo=team/app&oid=ID&timeout=60s")
	case what.ID.IsZero() && what.Generation == 0:
		return what, 0, fault.New(fault.Invalid, "what is to be seen? give oid=ID or generation=N")
	case limit < 0 || limit > maxWait:
		return what, 0, fault.New(fault.Invalid, "timeout is at most %s", maxWait)
	case !query.Has("timeout"):
		limit = defaultWait
	}
	return what, max(limit, leastWait), nil
}

// json sends an answer of ours.
func (e *exchange) json(status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		e.fail(err)
		return
	}
	e.w.Header().Set("Content-Type", "application/json")
	e.w.Header().Set("X-Content-Type-Options", "nosniff")
	e.begin(status)
	e.write(append(text, '\n'))
}

// noAnswer is the answer of a request that brings nothing from the node to the client.
type noAnswer struct{}

func (noAnswer) started() bool  { return false }
func (noAnswer) again() bool    { return true }
func (noAnswer) hindered() bool { return false }

// Wait asks for a repository that does not exist.
func (a absent) Wait(ctx context.Context, _ git.RepoPath, what node.WaitCondition) (seen git.Version, err error) {
	if waiter, ok := a.node.(Waiter); ok {
		seen, err = waiter.Wait(ctx, a.path(), what)
	}
	_, err = a.hide(node.Outcome{}, err)
	return seen, err
}
