package auth

import (
	"bytes"
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

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/singleflight"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/inflight"
)

// HookOptions of a Hook.
type HookOptions struct {
	URL     string
	Secret  func() string // sent as a Bearer token; nil means none
	Timeout time.Duration // of one request
	TTL     time.Duration // of a cached answer
	Size    int           // maximum number of cached answers; zero turns the cache off
	Stale   bool          // use expired answers for up to maxStale while the hook fails
	// PerAddress reports that answers depend on the address of the client.
	PerAddress bool
	// Many reports that the hook supports the question which of many repositories a caller may read.
	Many    bool
	Metrics *Metrics
	Sources *Sources // gets the hook as an identity source
	Log     *slog.Logger
	Now     func() time.Time // nil means time.Now
}

// Hook asks an application about callers and their permissions, with a POST of JSON for each question
// (docs/how-to/auth.md). Safe for concurrent use.
//
// Answers, including refusals, are cached under a keyed hash of the question, so that no credential is kept. Equal
// concurrent questions become one request. After several failures the hook gets no requests for a while, and then a
// single one. A question waits at most twice the timeout: once for a slot, of which one network can use half, and once
// for the answer. Redirects and proxies of the environment are not used.
type Hook struct {
	o      HookOptions
	client *http.Client
	key    [32]byte // of the hashes; made anew by each process
	flight singleflight.Group
	slots  chan struct{} // one for each running request
	crowd  chan struct{} // of these, those of Reader

	patience time.Duration // readableTime, except in tests

	mu          sync.Mutex
	networks    map[string]*networkSlots        // by the network of the client
	answers     *simplelru.LRU[string, *answer] // by the hash of the question
	views       *simplelru.LRU[string, *view]   // by the hash of the caller
	viewAnswers int                             // answers in all views
	failures    int                             // since the last success
	pausedUntil time.Time                       // until then the hook gets no requests

	source *source
	life   context.Context
	stop   context.CancelFunc // ends life
	trials sync.WaitGroup     // of look
}

// networkSlots limits the requests for callers of one network, so that guesses from there do not block others.
type networkSlots struct {
	slots chan struct{}
	users int // that have a slot or wait for one
}

const (
	maxHookAnswer   = 64 << 10 // bytes
	maxHookRequests = 64       // at the same time
	maxHookNetwork  = maxHookRequests / 2
	refusalTTL      = 10 * time.Second
	maxStale        = time.Hour
	failuresToPause = 5
	hookPause       = 2 * time.Second
)

// The kinds of questions.
const (
	identify  = "identify"
	authorize = "authorize"
	readable  = "readable"
)

// question is the JSON of a request to the hook.
type question struct {
	Question     string          `json:"question"`
	Credential   *hookCredential `json:"credential,omitempty"` // of identify
	Identity     *hookIdentity   `json:"identity,omitempty"`   // of authorize; absent for anonymous callers
	Repository   string          `json:"repository,omitempty"`
	Repositories []string        `json:"repositories,omitempty"` // of readable
	Operation    string          `json:"operation,omitempty"`
	Client       string          `json:"client"` // IP address
	trace        string          // of the first caller
}

// hookCredential is a credential in a question.
type hookCredential struct {
	Type   string `json:"type"`             // "basic", "bearer" or "key"
	User   string `json:"user,omitempty"`   // with "basic" and "key": as the caller claims
	Secret string `json:"secret,omitempty"` // with "basic" and "bearer"
	Key    string `json:"key,omitempty"`    // with "key": as in an authorized_keys file
}

// hookIdentity is an identity in a question.
type hookIdentity struct {
	Name string `json:"name"`
	By   string `json:"by"`
}

// hookIdentityOf returns the identity in a question. Nil means an anonymous caller.
func hookIdentityOf(id Identity) *hookIdentity {
	if id.Anonymous() {
		return nil
	}
	return &hookIdentity{id.Name, id.By}
}

// answer is the JSON of an answer.
type answer struct {
	until time.Time // in the cache

	Allow    bool   `json:"allow"`
	Identity string `json:"identity,omitempty"` // to identify
	Scope    string `json:"scope,omitempty"`    // to identify: the most powerful operation of the credential
	// to identify: those of the credential; to readable: those that may be read
	Repositories []string `json:"repositories,omitempty"`
}

// NewHook makes a Hook. Close ends it.
func NewHook(o HookOptions) *Hook {
	if o.Now == nil {
		o.Now = time.Now
	}
	h := &Hook{
		o: o, networks: map[string]*networkSlots{}, slots: make(chan struct{}, maxHookRequests),
		crowd:    make(chan struct{}, maxManyRequests),
		patience: readableTime,
	}
	size := max(o.Size, 1)
	h.answers, _ = simplelru.NewLRU[string, *answer](size, nil) // fails only for a size below 1
	h.views, _ = simplelru.NewLRU(size, func(_ string, v *view) { h.viewAnswers -= v.counted })
	rand.Read(h.key[:]) // never fails
	h.life, h.stop = context.WithCancel(context.Background())
	h.client = &http.Client{
		Timeout: o.Timeout,
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: o.Timeout}).DialContext,
			MaxIdleConnsPerHost: maxHookRequests, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: maxHookAnswer,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	h.source = o.Sources.add(SourceHook, h.look)
	h.source.soft = o.Stale
	return h
}

// Close cancels running requests.
func (h *Hook) Close() error {
	h.stop()
	h.trials.Wait()
	h.client.CloseIdleConnections()
	return nil
}

// Configured reports true: the hook can identify callers.
func (h *Hook) Configured() bool { return true }

// Accepts reports whether the hook may know the credential: a password or a key, but not a certificate.
func (h *Hook) Accepts(c *Credential) bool {
	_, certificate := c.Key.(*ssh.Certificate)
	return !certificate
}

// Identify asks the hook whose credential it is.
func (h *Hook) Identify(ctx context.Context, c *Credential) (Identity, error) {
	q := question{Question: identify, Client: c.Address, Credential: &hookCredential{Type: c.Scheme, User: c.User,
		Secret: c.Secret}}
	check := c.checkGuesses
	if c.Key == nil && check != nil {
		if err := check(); err != nil { // before the cache: a fast refusal would answer a guess
			return Identity{}, err
		}
	}
	if c.Key != nil {
		if err := checkStrength(c.Key); err != nil {
			return Identity{}, err
		}
		q.Credential.Key = strings.TrimSuffix(string(ssh.MarshalAuthorizedKey(c.Key)), "\n")
	}
	a, err := h.ask(ctx, q, check) // again when its turn comes, because many guesses may wait at the same time
	if err != nil {
		return Identity{}, err
	}
	id, err := a.identity()
	if err == nil && c.Key != nil {
		if id.Anonymous() {
			return Identity{}, unknownKey("unknown key")
		}
		id.Credential = ssh.FingerprintSHA256(c.Key)
	}
	return id, err
}

// trial is a question that every hook can answer. The answer does not matter. It is sent to a failing hook when there
// are no other questions, for example behind a load balancer that sends no requests to a server that is not ready.
var trial = question{Question: authorize, Repository: ".packhorse/ready", Operation: Read.String(), Client: "127.0.0.1"}

// look starts a trial of a failing hook after its pause. It does not wait for the answer.
func (h *Hook) look() {
	h.mu.Lock()
	fails := h.failures >= failuresToPause && h.life.Err() == nil
	h.mu.Unlock()
	if !fails || !h.begin() {
		return
	}
	h.trials.Go(func() {
		_, err := h.post(trial)
		h.end(err)
	})
}

// hash returns the key of a question in the cache.
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

// may asks whether an identity may perform an operation. Errors: Unavailable, Exhausted.
func (h *Hook) may(ctx context.Context, id Identity, repo git.RepoPath, op Operation) (bool, error) {
	name := strings.Join(pathOf(repo), "/") // the same for all spellings, so that the application can look it up
	if !utf8.ValidString(name) {            // several such names would be equal in JSON
		return false, nil
	}
	q := question{Question: authorize, Repository: name, Operation: op.String(), Client: id.Address,
		Identity: hookIdentityOf(id)}
	a, err := h.ask(ctx, q, nil)
	if err != nil {
		return false, err
	}
	return a.Allow, nil
}

// identity returns the identity in an answer to identify.
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

// check returns an error if an answer is not valid for its question.
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

// cached returns an answer that expired at most stale ago, or nil.
func (h *Hook) cached(hash string, stale time.Duration) *answer {
	h.mu.Lock()
	defer h.mu.Unlock()
	a, ok := h.answers.Get(hash)
	if !ok || !h.o.Now().Before(a.until.Add(stale)) {
		return nil
	}
	return a
}

func (h *Hook) cache(hash string, a *answer) {
	if h.o.Size == 0 {
		return
	}
	ttl := h.o.TTL
	if !a.Allow { // a new permission should not wait for long
		ttl = min(ttl, refusalTTL)
	}
	a.until = h.o.Now().Add(ttl)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers.Add(hash, a)
}

// ask returns the answer to a question from the cache, or from the hook. Equal concurrent questions share a request.
func (h *Hook) ask(ctx context.Context, q question, check func() error) (*answer, error) {
	hash := h.hash(q)
	if a := h.cached(hash, 0); a != nil {
		h.o.Metrics.question("remembered")
		return a, nil
	}
	ctx, span := inflight.Trace(ctx, "auth hook")
	defer span.End("")
	q.trace = inflight.TraceParent(ctx)
	done := h.flight.DoChan(hash, func() (any, error) {
		a, err := h.request(q, check)
		if err == nil {
			h.cache(hash, a)
		}
		return a, err
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
			if a := h.cached(hash, maxStale); a != nil {
				h.o.Metrics.question("stale")
				return a, nil
			}
		}
		return nil, &fault.Error{
			Kind: fault.Unavailable, Msg: "the server cannot check permissions at present; try again",
			RetryAfter: fault.RetryLater,
			Err:        fmt.Errorf("ask the auth hook: %w", r.Err),
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// request sends a question as soon as there is a slot. check, unless it is nil, can then refuse it.
func (h *Hook) request(q question, check func() error) (*answer, error) {
	leave, err := h.enter(q.Client)
	if err == nil {
		defer leave()
		if check != nil {
			err = check()
		}
	}
	if err != nil { // not a failure of the hook
		h.o.Metrics.question("skipped")
		return nil, err
	}
	if !h.begin() {
		h.o.Metrics.question("skipped")
		return nil, errors.New("it failed several times in a row")
	}
	a, err := h.post(q)
	if h.end(err); err != nil {
		h.o.Metrics.question("failed")
		return nil, err
	}
	h.o.Metrics.question("ok")
	return a, nil
}

// enter waits for a slot for a client, which leave gives back. The error is Exhausted, and not a failure of the hook.
func (h *Hook) enter(client string) (leave func(), err error) {
	of := network(client)
	h.mu.Lock()
	s := h.networks[of]
	if s == nil {
		s = &networkSlots{slots: make(chan struct{}, maxHookNetwork)}
		h.networks[of] = s
	}
	s.users++
	h.mu.Unlock()
	limit := time.NewTimer(h.o.Timeout)
	defer limit.Stop()
	var held []chan struct{}
	leave = func() {
		for _, slots := range held {
			<-slots
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(h.networks, of)
		}
	}
	for _, slots := range []chan struct{}{s.slots, h.slots} {
		select {
		case slots <- struct{}{}:
			held = append(held, slots)
		case <-limit.C:
			leave()
			return nil, fault.Retry(fault.Exhausted, fault.RetryLater,
				"too many callers authenticate at the same time; try again")
		}
	}
	return leave, nil
}

// begin reports whether a request may be sent: not during a pause. After a pause only the first one may.
func (h *Hook) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failures < failuresToPause {
		return true
	}
	now := h.o.Now()
	if now.Before(h.pausedUntil) {
		return false
	}
	h.pausedUntil = now.Add(hookPause + h.o.Timeout)
	return true
}

// end records the result of a request.
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
	case h.failures < failuresToPause:
		h.o.Log.Warn("the auth hook failed", "error", err, "failures", h.failures)
	case h.failures == failuresToPause:
		h.source.report(fmt.Errorf("the auth hook failed %d times in a row: %w", h.failures, err))
	}
	if h.failures >= failuresToPause {
		h.pausedUntil = h.o.Now().Add(hookPause)
	}
}

// post sends one request.
func (h *Hook) post(q question) (*answer, error) {
	ctx, cancel := context.WithTimeout(h.life, h.o.Timeout) // not that of a caller: several may wait for the answer
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
	most := maxHookAnswer + maxNameBytes*len(q.Repositories)
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
		return nil, errors.New("its answer is not valid JSON")
	}
	if err := a.check(q); err != nil {
		return nil, fmt.Errorf("its answer is invalid: %w", err)
	}
	return a, nil
}
