package githttp

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

const (
	waitPath       = "/-/api/v1/wait"
	defaultTimeout = 30 * time.Second
	minTimeout     = time.Second // so that there is time to look once
	maxTimeout     = 10 * time.Minute

	maxWaiters          = 1000 // requests that wait
	maxCallerWaiters    = 250  // of one caller
	maxAnonymousWaiters = 500  // of all anonymous callers
	tooManyWaiters      = "too many requests are waiting already; try again"
)

// waiters bounds requests that stay open: those that wait, and streams of events. They count against no concurrency
// limit, because they cost nothing but their connection. The node limits how many requests read a repository at a time.
type waiters struct {
	maxAll, maxCaller, maxAnonymous int
	refusal                         string

	ending context.Context // ends with the gateway
	end    context.CancelFunc

	mu             sync.Mutex
	all, anonymous int
	perCaller      map[balance.Caller]int
}

func newWaiters(all, caller, anonymous int, refusal string) *waiters {
	w := &waiters{maxAll: all, maxCaller: caller, maxAnonymous: anonymous, refusal: refusal,
		perCaller: map[balance.Caller]int{}}
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
	if w.all == w.maxAll || w.anonymous+anonymous > w.maxAnonymous || caller != "" && w.perCaller[caller] == w.maxCaller {
		return nil, fault.Retry(fault.Exhausted, fault.RetryLater, "%s", w.refusal)
	}
	w.all++
	w.anonymous += anonymous
	w.perCaller[caller]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all--
		w.anonymous -= anonymous
		if w.perCaller[caller]--; w.perCaller[caller] == 0 {
			delete(w.perCaller, caller)
		}
	}, nil
}

// EndWaits responds to all requests that wait, and ends streams, because the gateway shuts down.
func (h *Handler) EndWaits() {
	h.waiters.end()
	h.streams.end()
}

// waitResult is the response to a request that has waited.
type waitResult struct {
	Repository string       `json:"repository"`
	Visible    bool         `json:"visible"`
	Message    string       `json:"message,omitempty"`
	Version    *waitVersion `json:"version,omitempty"`
}

// waitVersion is the version of the refs that the response is about. Its numbers are strings because JavaScript's are
// too small.
type waitVersion struct {
	Incarnation string `json:"incarnation"`
	Epoch       uint64 `json:"epoch,string"`
	Generation  uint64 `json:"generation,string"`
}

// wait answers GET /-/api/v1/wait?repo=PATH with oid=ID or generation=N (and epoch=N), and timeout=30s. The response is
// 200 as soon as readers of the repository see the object or the generation, and 408 after the timeout. Callers who may
// not read the repository get the same response as to a fetch.
func (q *request) wait() {
	if !q.method(http.MethodGet) {
		return
	}
	q.Op = gateway.Wait
	query, err := url.ParseQuery(q.r.URL.RawQuery)
	if err != nil {
		q.refuse(http.StatusBadRequest, "bad query")
		return
	}
	condition, timeout, err := parseWait(query)
	if err != nil {
		q.refuse(http.StatusBadRequest, err.Error())
		return
	}
	if !q.repository(query.Get("repo")) || !q.may(auth.Read) {
		return
	}
	q.keepPrivate()
	waiters := q.handler.waiters
	leave, err := waiters.enter(q.Caller())
	if err != nil {
		q.fail(err)
		return
	}
	defer leave()
	ctx, cancel := context.WithTimeout(q.Ctx, timeout)
	defer cancel()
	defer context.AfterFunc(waiters.ending, cancel)()
	seen := q.Wait(ctx, condition)
	switch {
	case q.Err == nil:
		q.json(http.StatusOK, typeJSON, waitResult{Repository: q.Repo.String(), Visible: true,
			Version: &waitVersion{Incarnation: seen.Incarnation, Epoch: seen.Epoch, Generation: seen.Generation}})
	case !fault.Is(q.Err, fault.Deadline):
		q.fail(q.Err)
	case waiters.ending.Err() != nil:
		q.fail(fault.Retry(fault.Unavailable, fault.RetrySoon, "the server is shutting down; try again"))
	default:
		q.json(http.StatusRequestTimeout, typeJSON, waitResult{Repository: q.Repo.String(),
			Message: "not visible yet; ask again"})
	}
}

// parseWait parses the query of a request that waits.
func parseWait(query url.Values) (condition node.WaitCondition, timeout time.Duration, err error) {
	for key, values := range query {
		if len(values) != 1 {
			return condition, 0, fault.New(fault.Invalid, "parameter %.20q: given %d times", key, len(values))
		}
		switch value := values[0]; key {
		case "repo":
		case "oid":
			condition.ID, err = git.ParseObjectID(value)
		case "generation":
			condition.Generation, err = strconv.ParseUint(value, 10, 64)
		case "epoch":
			condition.Epoch, err = strconv.ParseUint(value, 10, 64)
		case "timeout":
			if strings.Trim(value, "0123456789") == "" {
				value += "s"
			}
			timeout, err = time.ParseDuration(value)
		default:
			return condition, 0, fault.New(fault.Invalid,
				"unknown parameter %.20q: use repo, oid, generation, epoch or timeout", key)
		}
		if err != nil {
			return condition, 0, fault.New(fault.Invalid, "bad %s %.80q", key, values[0])
		}
	}
	switch {
	case query.Get("repo") == "":
		return condition, 0, fault.New(fault.Invalid,
			"no repository: use "+waitPath+"?repo=team/app&oid=ID&timeout=60s")
	case condition.ID.IsZero() && condition.Generation == 0:
		return condition, 0, fault.New(fault.Invalid, "nothing to wait for: give oid=ID or generation=N")
	case timeout < 0 || timeout > maxTimeout:
		return condition, 0, fault.New(fault.Invalid, "timeout: at most %s", maxTimeout)
	case !query.Has("timeout"):
		timeout = defaultTimeout
	}
	return condition, max(timeout, minTimeout), nil
}
