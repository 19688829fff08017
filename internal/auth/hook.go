package auth

import (
	"bytes"
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/singleflight"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/inflight"
)

// HookOptions says how an application is asked.
type HookOptions struct {
	URL     string
	Secret  func() string // sent as a Bearer token; nil: none
	Timeout time.Duration // of one question
	TTL     time.Duration // how long an answer holds
	Size    int           // answers that are remembered
	Stale   bool          // when the hook fails, an answer that ran out holds for up to maxStale
	// PerAddress says that answers depend on the client's address.
	PerAddress bool
	// Many says that the hook understands the question which of many repositories somebody may read.
	Many    bool
	Metrics *Metrics
	Log     *slog.Logger
	Now     func() time.Time // nil: time.Now
}

// Hook asks an application who callers are and what they may do, with a POST of JSON for each question (docs/how-to/auth.md has both). Answers, also
// those that refuse, are remembered for a time; equal questions at the same time are asked once. They are remembered by a keyed hash: what
// a caller offered is not kept. When the hook fails several times it is left alone for a while; then one question tries it. Nobody waits longer
// than twice the timeout: for a turn, of which callers of one network have half, and for the answer. Redirects are not followed, and no proxy of the environment is used. Safe for concurrent use.
type Hook struct {
	o      HookOptions
	client *http.Client
	key    [32]byte // of the hashes; made anew by each process
	flight singleflight.Group
	room   chan struct{} // one for each question on its way
	crowd  chan struct{} // of these, one for each that is about many repositories, or one of many

	patience time.Duration // readableTime, but in tests

	mu      sync.Mutex
	shares  map[string]*hookShare    // by the network of the address
	answers map[string]*list.Element // of *answer, by the question's hash
	recent  list.List                // the latest use first
	views   map[string]*list.Element // of *view, by its key
	viewed  list.List                // the latest use first
	saying  int                      // answers in all of them

	failures int       // without a success in between
	rests    time.Time // until then it is not asked

	source *source // nil until an Auth has the hook
	life   context.Context
	stop   context.CancelFunc // ends life
	trials sync.WaitGroup     // of look
}

// hookShare is what callers of one network may have of the questions on their way: whoever guesses much keeps nobody else from the hook.
type hookShare struct {
	room  chan struct{}
	users int // that have a place or wait for one
}

const (
	maxHookAnswer   = 64 << 10 // bytes
	maxHookAsking   = 64       // questions at the same time
	maxHookShare    = maxHookAsking / 2
	refusedFor      = 10 * time.Second
	maxStale        = time.Hour
	failuresToRest  = 5
	restAfterFailed = 2 * time.Second
)

// Questions.
const (
	identify  = "identify"
	authorize = "authorize"
	readable  = "readable"
)

// question is what the hook is asked.
type question struct {
	Question     string   `json:"question"`
	Credential   *offered `json:"credential,omitempty"` // of identify
	Identity     *known   `json:"identity,omitempty"`   // of authorize; absent: anonymous
	Repository   string   `json:"repository,omitempty"`
	Repositories []string `json:"repositories,omitempty"` // of readable
	Operation    string   `json:"operation,omitempty"`
	Client       string   `json:"client"` // IP address
	trace        string   // of who came first with it
}

// offered is a credential.
type offered struct {
	Type   string `json:"type"`             // "basic", "bearer" or "key"
	User   string `json:"user,omitempty"`   // of basic and key: as the caller says
	Secret string `json:"secret,omitempty"` // of basic and bearer
	Key    string `json:"key,omitempty"`    // of key, which is offered, and proved after the answer: as in an authorized_keys file
}

type known struct {
	Name string `json:"name"`
	By   string `json:"by"`
}

// answer is what the hook said.
type answer struct {
	key   string
	until time.Time

	Allow        bool     `json:"allow"`
	Identity     string   `json:"identity,omitempty"`     // to identify
	Scope        string   `json:"scope,omitempty"`        // to identify: the most that this credential is for
	Repositories []string `json:"repositories,omitempty"` // to identify: what it is for; to readable: those that may be read
}

// NewHook makes a Hook. Close by closing the Auth that has it.
func NewHook(o HookOptions) *Hook {
	if o.Now == nil {
		o.Now = time.Now
	}
	h := &Hook{o: o, answers: map[string]*list.Element{}, shares: map[string]*hookShare{}, room: make(chan struct{}, maxHookAsking),
		views: map[string]*list.Element{}, crowd: make(chan struct{}, maxAllAsking), patience: readableTime}
	rand.Read(h.key[:]) // never fails
	h.life, h.stop = context.WithCancel(context.Background())
	h.client = &http.Client{
		Timeout: o.Timeout,
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: o.Timeout}).DialContext,
			MaxIdleConnsPerHost: maxHookAsking, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: maxHookAnswer,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return h
}

func (h *Hook) close() {
	h.stop()
	h.trials.Wait()
	h.client.CloseIdleConnections()
}

// trial is a question that every hook can answer, whatever its answer is. It is asked while a hook fails and nobody
// else asks, as behind a load balancer that sends no requests to a server that is not ready.
var trial = question{Question: authorize, Repository: ".packhorse/ready", Operation: Read.String(), Client: "127.0.0.1"}

// look has a hook that fails asked again, once it has rested. It does not wait for the answer.
func (h *Hook) look() {
	h.mu.Lock()
	fails := h.failures >= failuresToRest && h.life.Err() == nil
	h.mu.Unlock()
	if !fails || !h.begin() {
		return
	}
	h.trials.Go(func() {
		_, err := h.post(trial)
		h.end(err)
	})
}

// hash is what a question is remembered by.
func (h *Hook) hash(q question) string {
	if !h.o.PerAddress {
		q.Client = ""
	}
	text, err := json.Marshal(q)
	if err != nil {
		panic(err) // strings alone
	}
	m := hmac.New(sha256.New, h.key[:])
	m.Write(text)
	return string(m.Sum(nil))
}

// askWho asks whom a credential proves, unless still, if it is not nil, has something against it when its turn comes. Errors: Unauthenticated,
// Unavailable, Exhausted, and those of still.
func (h *Hook) askWho(ctx context.Context, q question, still func() error) (Identity, error) {
	a, err := h.ask(ctx, q, still)
	if err != nil {
		return Identity{}, err
	}
	return a.identity()
}

// may asks whether an identity may do this. Errors: Unavailable, Exhausted.
func (h *Hook) may(ctx context.Context, id Identity, repo git.RepoPath, op Operation) (bool, error) {
	name := strings.Join(pathOf(repo), "/") // one for all of its spellings: who looks for a name in a list finds it
	if !utf8.ValidString(name) {            // in JSON several such names are one
		return false, nil
	}
	q := question{Question: authorize, Repository: name, Operation: op.String(), Client: id.Address}
	if !id.Anonymous() {
		q.Identity = &known{id.Name, id.By}
	}
	a, err := h.ask(ctx, q, nil)
	if err != nil {
		return false, err
	}
	return a.Allow, nil
}

// identity is whom an answer to identify names.
func (a *answer) identity() (Identity, error) {
	if !a.Allow {
		return Identity{}, fault.New(fault.Unauthenticated, "wrong user name or password")
	}
	id := Identity{Name: a.Identity, By: ByHook}
	if a.Scope == "" && len(a.Repositories) == 0 {
		return id, nil
	}
	id.Grant = &Grant{Operation: Admin}
	var err error
	if a.Scope != "" {
		if id.Grant.Operation, err = ParseOperation(a.Scope); err != nil {
			return Identity{}, err
		}
	}
	id.Grant.Repositories, err = ParsePatterns(a.Repositories)
	return id, err
}

// check refuses an answer that does not fit its question.
func (a *answer) check(q question) error {
	if q.Question != identify || !a.Allow {
		return nil
	}
	if err := CheckName(a.Identity); err != nil {
		return err
	}
	_, err := a.identity()
	return err
}

// remembered finds an answer that holds, or ran out no longer than stale ago.
func (h *Hook) remembered(hash string, stale time.Duration) *answer {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.answers[hash]
	if e == nil || !h.o.Now().Before(e.Value.(*answer).until.Add(stale)) {
		return nil
	}
	h.recent.MoveToFront(e)
	return e.Value.(*answer)
}

func (h *Hook) remember(a *answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.answers[a.key]; e != nil {
		e.Value = a
		h.recent.MoveToFront(e)
		return
	}
	for len(h.answers) >= h.o.Size && h.recent.Len() > 0 {
		old := h.recent.Back()
		h.recent.Remove(old)
		delete(h.answers, old.Value.(*answer).key)
	}
	if h.o.Size > 0 {
		h.answers[a.key] = h.recent.PushFront(a)
	}
}

// ask gives the answer that is remembered, or asks, once for all who ask the same at the same time.
func (h *Hook) ask(ctx context.Context, q question, still func() error) (*answer, error) {
	hash := h.hash(q)
	if a := h.remembered(hash, 0); a != nil {
		h.o.Metrics.question("remembered")
		return a, nil
	}
	ctx, span := inflight.Trace(ctx, "auth hook")
	defer span.End("")
	q.trace = inflight.TraceParent(ctx)
	done := h.flight.DoChan(hash, func() (any, error) {
		a, err := h.once(q, still)
		if err != nil {
			return nil, err
		}
		ttl := h.o.TTL
		if !a.Allow { // who was given access just now does not wait for long
			ttl = min(ttl, refusedFor)
		}
		a.key, a.until = hash, h.o.Now().Add(ttl)
		h.remember(a)
		return a, nil
	})
	select {
	case r := <-done:
		if r.Err == nil {
			return r.Val.(*answer), nil
		}
		if fault.Is(r.Err, fault.Exhausted) {
			return nil, r.Err
		}
		if h.o.Stale {
			if a := h.remembered(hash, maxStale); a != nil {
				h.o.Metrics.question("stale")
				return a, nil
			}
		}
		return nil, &fault.Error{
			Kind: fault.Unavailable, Msg: "the server cannot find out who may do what just now; try again", RetryAfter: fault.RetryLater,
			Err: fmt.Errorf("ask the auth hook: %w", r.Err),
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// once asks when it is the client's turn.
func (h *Hook) once(q question, still func() error) (*answer, error) {
	leave, err := h.enter(q.Client)
	if err == nil {
		defer leave()
		if still != nil {
			err = still()
		}
	}
	if err != nil { // of which the hook knows nothing
		h.o.Metrics.question("skipped")
		return nil, err
	}
	if !h.begin() {
		h.o.Metrics.question("skipped")
		return nil, errors.New("it failed too often just now")
	}
	a, err := h.post(q)
	if h.end(err); err != nil {
		h.o.Metrics.question("failed")
		return nil, err
	}
	h.o.Metrics.question("ok")
	return a, nil
}

// enter waits for a turn to ask for a client. Whoever got one calls leave. A crowd is an error of kind Exhausted, and no failure of the hook's.
func (h *Hook) enter(client string) (leave func(), err error) {
	of := network(client)
	h.mu.Lock()
	s := h.shares[of]
	if s == nil {
		s = &hookShare{room: make(chan struct{}, maxHookShare)}
		h.shares[of] = s
	}
	s.users++
	h.mu.Unlock()
	limit := time.NewTimer(h.o.Timeout)
	defer limit.Stop()
	var places []chan struct{}
	leave = func() {
		for _, place := range places {
			<-place
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(h.shares, of)
		}
	}
	for _, place := range []chan struct{}{s.room, h.room} {
		select {
		case place <- struct{}{}:
			places = append(places, place)
		case <-limit.C:
			leave()
			return nil, fault.Retry(fault.Exhausted, fault.RetryLater, "too many callers say who they are at the same time; try again")
		}
	}
	return leave, nil
}

// begin tells whether the hook is to be asked: not while it rests. Of those who come after that one tries it.
func (h *Hook) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failures < failuresToRest {
		return true
	}
	now := h.o.Now()
	if now.Before(h.rests) {
		return false
	}
	h.rests = now.Add(restAfterFailed + h.o.Timeout)
	return true
}

// end counts a failure, or ends a row of them.
func (h *Hook) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.failures = 0
		h.source.report(nil)
		return
	}
	h.failures++
	switch {
	case h.failures < failuresToRest:
		h.o.Log.Warn("the auth hook failed", "error", err, "failures", h.failures)
	case h.failures == failuresToRest:
		h.source.report(fmt.Errorf("the auth hook failed %d times in a row: %w", h.failures, err))
	}
	if h.failures >= failuresToRest {
		h.rests = h.o.Now().Add(restAfterFailed)
	}
}

// post asks the hook itself.
func (h *Hook) post(q question) (*answer, error) {
	ctx, cancel := context.WithTimeout(h.life, h.o.Timeout) // of all who wait for the answer, and of none of them
	defer cancel()
	text, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.o.URL, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "packhorse")
	if q.trace != "" {
		r.Header.Set("Traceparent", q.trace)
	}
	if h.o.Secret != nil {
		r.Header.Set("Authorization", "Bearer "+h.o.Secret())
	}
	start := time.Now()
	response, err := h.client.Do(r)
	if err != nil {
		h.o.Metrics.answered(time.Since(start))
		if about, ok := errors.AsType[*url.Error](err); ok {
			err = about.Err // without the URL, which may hold a secret
		}
		return nil, err
	}
	defer response.Body.Close()
	most := maxHookAnswer + togetherName*len(q.Repositories)
	body, err := io.ReadAll(io.LimitReader(response.Body, int64(most)+1))
	h.o.Metrics.answered(time.Since(start))
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("it answered with status %d", response.StatusCode)
	case len(body) > most:
		return nil, errors.New("its answer is too long")
	}
	a := &answer{}
	if err := json.Unmarshal(body, a); err != nil {
		return nil, errors.New("its answer is not the JSON that is meant")
	}
	if err := a.check(q); err != nil {
		return nil, fmt.Errorf("its answer cannot be used: %w", err)
	}
	return a, nil
}
