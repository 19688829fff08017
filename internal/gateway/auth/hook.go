package auth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// HookOptions of a Hook.
type HookOptions struct {
	URL     string
	Secret  func() string // sent as a Bearer token; may be nil
	Timeout time.Duration // of one request
	TTL     time.Duration // of a cached answer
	Size    int           // maximum number of cached answers
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
// Answers, including refusals, are cached under a keyed hash of the question, so that credentials are not stored. Equal
// concurrent questions become one request. After several failures no requests are sent for a while, and then a single
// one. A question waits at most twice the timeout: once for a slot, of which one network can use half, and once for the
// answer. Redirects are not followed, and proxies of the environment are not used.
type Hook struct {
	o         HookOptions
	client    *http.Client
	key       [32]byte                        // of the hashes, random for each process
	epoch     atomic.Uint64                   // in the hashes: answers of an earlier one are forgotten
	answers   *retry.Answers[string, *answer] // by the hash of the question
	slots     *slots
	manySlots chan struct{} // one for each running request of readable

	readableTime time.Duration // readableTime, except in tests

	turns [askTurns]chan struct{} // by the first byte of the hash of the caller

	viewsMu sync.Mutex
	views   *simplelru.LRU[viewKey, viewAnswer]

	mu          sync.Mutex
	failures    int       // since the last success
	pausedUntil time.Time // no requests are sent before

	source *source
	life   context.Context
	stop   context.CancelFunc // ends life
	trials sync.WaitGroup     // of check
}

const (
	refusalTTL = 10 * time.Second // maximum TTL of a refusal
	maxStale   = time.Hour
)

// NewHook makes a Hook. Close ends it.
func NewHook(o HookOptions) *Hook {
	if o.Now == nil {
		o.Now = time.Now
	}
	h := &Hook{
		o: o, slots: newSlots(maxHookRequests, o.Timeout), manySlots: make(chan struct{}, maxManyRequests),
		readableTime: readableTime, answers: retry.NewAnswers[string, *answer](o.Size, 0, o.Now),
	}
	h.views, _ = simplelru.NewLRU[viewKey, viewAnswer](viewFactor*o.Size, nil) // the size is valid
	for i := range h.turns {
		h.turns[i] = make(chan struct{}, 1)
	}
	rand.Read(h.key[:]) // never fails
	h.life, h.stop = context.WithCancel(context.Background())
	h.client = httpguard.Client(&http.Transport{
		MaxIdleConnsPerHost: maxHookRequests, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: maxHookAnswer,
	})
	h.source = o.Sources.add(SourceHook, h.check)
	h.source.optional = o.Stale
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

// Identify asks the hook for the owner of a credential.
func (h *Hook) Identify(ctx context.Context, c *Credential) (Identity, error) {
	q := question{Question: identify, Client: c.Address, Credential: &hookCredential{Type: c.Scheme, User: c.User,
		Secret: c.Secret}}
	check := c.checkGuesses
	if c.Key == nil && check != nil {
		if err := check(); err != nil { // before the cache, because its fast refusal would answer a guess
			return Identity{}, err
		}
	}
	if c.Key != nil {
		if err := checkStrength(c.Key); err != nil {
			return Identity{}, err
		}
		q.Credential.Key = strings.TrimSuffix(string(ssh.MarshalAuthorizedKey(c.Key)), "\n")
	}
	a, err := h.ask(ctx, q, check) // checked again before the request, because many guesses may wait at the same time
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

// trial is a question that every hook can answer; the answer does not matter. It is sent to a failing hook when there
// are no other questions, for example because a load balancer sends no requests to a server that is not ready.
var trial = question{Question: authorize, Repository: ".packhorse/ready", Operation: Read.String(), Client: "127.0.0.1"}

// check starts a trial of a failing hook after its pause. It does not wait for the answer.
func (h *Hook) check() {
	h.mu.Lock()
	failing := h.failures >= failuresToPause && h.life.Err() == nil
	h.mu.Unlock()
	if !failing || !h.begin() {
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
		panic(err) // impossible: a question has only strings
	}
	m := hmac.New(sha256.New, h.key[:])
	m.Write(binary.BigEndian.AppendUint64(text, h.epoch.Load()))
	return string(m.Sum(nil))
}

// may asks whether an identity may perform an operation. Errors: Unavailable, Exhausted.
func (h *Hook) may(ctx context.Context, id Identity, repo git.RepoPath, op Operation) (bool, error) {
	name := strings.Join(pathOf(repo), "/") // the same for all spellings, so that the application can look it up
	if !utf8.ValidString(name) {            // different invalid names would be equal in JSON
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

// timed returns an answer with the time for which it is cached.
func (h *Hook) timed(a *answer) retry.Answer[*answer] {
	ttl := h.o.TTL
	if !a.Allow { // a new permission should apply soon
		ttl = min(ttl, refusalTTL)
	}
	timed := retry.Until(a, h.o.Now().Add(ttl))
	if h.o.Stale {
		timed.End = timed.End.Add(maxStale)
	}
	return timed
}

// ask returns the answer to a question from the cache, or from the hook. Equal concurrent questions share a request.
func (h *Hook) ask(ctx context.Context, q question, check func() error) (*answer, error) {
	hash := h.hash(q)
	if a, ok := h.answers.Get(hash); ok {
		h.o.Metrics.question("hook", "cached")
		return a, nil
	}
	ctx, span := inflight.Trace(ctx, "auth hook")
	defer span.End("")
	q.trace = inflight.TraceParent(ctx)
	a, isStale, err := h.answers.Ask(ctx, hash, time.Time{}, func() (timed retry.Answer[*answer], err error) {
		a, err := h.request(q, check)
		if err == nil {
			timed = h.timed(a)
		}
		return timed, err
	})
	switch {
	case isStale:
		h.o.Metrics.question("hook", "stale")
	case err != nil && ctx.Err() == nil && !fault.Is(err, fault.Exhausted):
		err = &fault.Error{
			Kind: fault.Unavailable, Msg: "the server cannot check permissions at present; try again",
			RetryAfter: fault.RetryLater,
			Err:        fmt.Errorf("ask the auth hook: %w", err),
		}
	}
	return a, err
}
