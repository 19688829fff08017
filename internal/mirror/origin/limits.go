package origin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

const (
	failures = 5               // consecutive ones open the circuit breaker
	maxPause = time.Minute     // of an open breaker
	maxWait  = 8 * time.Second // for the budget and a slot
	maxQueue = 1000            // requests that wait for the budget, and for slots
	// patience is how long a request may be without an answer when its caller cancels it. After that it is a failure.
	patience = 5 * time.Second
	// maxSilence is how long the begin of a small answer may take. If the origin answers nothing in this time, it is
	// silent, and the circuit breaker counts as many failures as silentFailures. The request goes on.
	maxSilence     = 9 * time.Second
	silentFailures = 3
)

// limits are shared by all requests to an origin: slots, the budget per minute, the pause after Retry-After, and the
// circuit breaker.
type limits struct {
	all        *balance.Slots      // callers take turns
	packs      *semaphore.Weighted // a pack needs a slot of both, so that small requests find one
	budget     *rate.Limiter
	turns      *balance.Slots // one slot: its owner waits for the budget
	breaker    circuitbreaker.CircuitBreaker[any]
	executor   failsafe.Executor[any]
	openings   atomic.Int32  // of the breaker since a request succeeded
	firstPause time.Duration // of an open breaker; it doubles with each trial that fails
	maxSilence time.Duration // see the constant

	mu     sync.Mutex
	paused time.Time // until then the origin wants no requests
	heard  time.Time // when the last answer began
	silent bool      // the origin was silent since then
	cause  error     // the last failure that the breaker counted
	// callers has the end of the pause of callers who have used up what the origin allows them, by hash of credential
	callers *lru.Cache[[sha256.Size]byte, time.Time]
}

// newLimits returns limits. onState is called when the breaker opens and when it closes.
func newLimits(requests, perMinute int, onState func(open bool, cause error)) *limits {
	queue := balance.Limits{Queue: maxQueue}
	l := &limits{all: balance.NewSlots(requests, queue, balance.Clock{}),
		packs:  semaphore.NewWeighted(int64(max(1, requests*3/4))),
		turns:  balance.NewSlots(1, queue, balance.Clock{}),
		budget: rate.NewLimiter(rate.Inf, 0), firstPause: time.Second,
		maxSilence: maxSilence}
	l.callers, _ = lru.New[[sha256.Size]byte, time.Time](maxKnown) // the size is valid
	if perMinute > 0 {
		l.budget = rate.NewLimiter(rate.Limit(float64(perMinute)/60), max(1, perMinute/10))
	}
	l.breaker = circuitbreaker.NewBuilder[any]().
		HandleIf(func(_ any, err error) bool { return isFailure(err) }).
		WithFailureThreshold(failures).WithSuccessThreshold(1).
		WithDelayFunc(func(failsafe.ExecutionAttempt[any]) time.Duration {
			return retry.Policy{First: l.firstPause, Max: maxPause}.Pause(int(l.openings.Add(1)))
		}).WithJitterFactor(.25).
		OnClose(func(circuitbreaker.StateChangedEvent) { l.openings.Store(0); onState(false, nil) }).
		OnOpen(func(circuitbreaker.StateChangedEvent) { onState(true, l.lastFailure()) }).Build()
	l.executor = failsafe.With(l.breaker)
	return l
}

// check returns why the origin gets no requests at present, and when it gets the next one.
func (l *limits) check() (time.Duration, error) {
	l.mu.Lock()
	pause := time.Until(l.paused)
	l.mu.Unlock()
	if pause > 0 {
		return pause, errPaused
	}
	if pause = l.breaker.RemainingDelay(); pause > 0 {
		return pause, l.errOpen()
	}
	return 0, nil
}

// IsStopped reports whether the origin gets no requests at present, because it failed or asked for a pause. A URL at
// another host is not affected. Nil is the origin itself.
func (o *Origin) IsStopped(u *url.URL) bool {
	if u != nil && !sameOrigin(u, o.o.URL) {
		return false
	}
	_, err := o.limits.check()
	return err != nil
}

// pause stops requests for a time that the origin asked for, and a little more, so that mirrors do not return at once.
func (l *limits) pause(d time.Duration) {
	until := pauseEnd(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	if until.After(l.paused) {
		l.paused = until
	}
}

func pauseEnd(d time.Duration) time.Time { return time.Now().Add(d + rand.N(maxPauseOf(d)-d+1)) }

// maxPauseOf returns the longest pause after the origin asked for one.
func maxPauseOf(d time.Duration) time.Duration { return d + d/10 }

// pauseCaller is pause for requests with the credential of one caller. Others have their own limit at the origin.
func (l *limits) pauseCaller(auth Secret, d time.Duration) {
	l.callers.Add(sha256.Sum256([]byte(auth.Reveal())), pauseEnd(d))
}

// callerPause returns for how long the origin wants no requests with a credential. Zero means that it does.
func (l *limits) callerPause(auth Secret) time.Duration {
	if auth.IsZero() || l.callers.Len() == 0 {
		return 0
	}
	until, _ := l.callers.Get(sha256.Sum256([]byte(auth.Reveal())))
	return max(time.Until(until), 0)
}

// enter waits for the budget and a slot. The caller calls leave when the response has been read, at least once.
func (l *limits) enter(ctx context.Context, c balance.Caller, isPack bool) (leave func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxWait, errBusy)
	defer cancel()
	if err = l.spend(ctx, c); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil { // the request is not sent
			l.budget.ReserveN(time.Now(), -1)
		}
	}()
	if isPack {
		if err = l.packs.Acquire(ctx, 1); err != nil {
			return nil, context.Cause(ctx)
		}
	}
	release, _, err := l.all.Acquire(ctx, c)
	if err != nil {
		if isPack {
			l.packs.Release(1)
		}
		if err = cmp.Or(context.Cause(ctx), errBusy); err == errBusy && !isPack && !l.heardSince(time.Now().Add(-maxWait)) {
			err = errNoAnswer // all requests with a slot wait for the origin
		}
		return nil, err
	}
	return sync.OnceFunc(func() {
		release()
		if isPack {
			l.packs.Release(1)
		}
	}), nil
}

// spend waits until the budget allows another request.
func (l *limits) spend(ctx context.Context, c balance.Caller) error {
	if l.budget.Limit() == rate.Inf {
		return nil
	}
	leave, _, err := l.turns.Acquire(ctx, c)
	if err != nil {
		return cmp.Or(context.Cause(ctx), errBusy)
	}
	defer leave()
	r := l.budget.Reserve()
	delay := r.Delay()
	if end, _ := ctx.Deadline(); delay > time.Until(end) {
		r.Cancel()
		return errBusy
	}
	if retry.Sleep(ctx, delay) != nil {
		r.Cancel()
		return context.Cause(ctx)
	}
	return nil
}

// callerKey is the key of the context's value of WithCaller.
type callerKey struct{}

// WithCaller returns a context for requests that count for a caller, who shares the budget and the slots fairly with
// others. Networks (balance.Caller) are callers without a permission of the origin. Together they get half of both
// while others wait. Without a caller, requests count for their repository.
func WithCaller(ctx context.Context, caller string) context.Context {
	if caller == "" {
		return ctx
	}
	return context.WithValue(ctx, callerKey{}, caller)
}

// CallerOf returns the caller of WithCaller, or "".
func CallerOf(ctx context.Context) string {
	c, _ := ctx.Value(callerKey{}).(string)
	return c
}

// callerOf returns the caller of a request about a repository.
func callerOf(ctx context.Context, path string) balance.Caller {
	if c := CallerOf(ctx); c != "" {
		return balance.Caller(c)
	}
	return balance.Caller("repository:" + strings.ReplaceAll(path, "/", ":"))
}

// Reasons why a request is not sent. Another one is circuitbreaker.ErrOpen.
var (
	errPaused       = errors.New("the origin asked for a pause (Retry-After)")
	errCallerPaused = fmt.Errorf("%w of this caller", errPaused)
	errBusy         = errors.New("the request budget is used up: see requests and per_minute of the mirror")
)

// isRefusal reports whether a request was not sent.
func isRefusal(err error) bool {
	return errors.Is(err, errPaused) || errors.Is(err, errBusy) || errors.Is(err, circuitbreaker.ErrOpen)
}

// run sends a request under the circuit breaker, which counts its result.
func (l *limits) run(send func() error) error {
	began := time.Now()
	var sent error
	err := l.executor.Run(func() error {
		sent = send()
		if fault.Is(sent, fault.Cancelled) && time.Since(began) > patience {
			return &Error{Down: true, Err: sent}
		}
		if isFailure(sent) {
			l.fail(sent)
		}
		return sent
	})
	if sent == nil && errors.Is(err, circuitbreaker.ErrOpen) {
		return l.errOpen()
	}
	return sent
}

// fail notes a failure that the circuit breaker is about to count.
func (l *limits) fail(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = cause
}

func (l *limits) lastFailure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// errOpen returns ErrOpen with the last failure. That is only text: it is not the error of this request.
func (l *limits) errOpen() error {
	return fmt.Errorf("%w, last failure: %v", circuitbreaker.ErrOpen, l.lastFailure())
}

// await begins the wait for a small answer. The caller calls stop when the wait has ended.
func (l *limits) await() (stop func()) {
	began := time.Now()
	t := time.AfterFunc(l.maxSilence, func() {
		if l.heardSince(began) { // the origin answers others, so that the cause is this request
			return
		}
		l.mu.Lock()
		l.silent, l.cause = true, errNoAnswer
		l.mu.Unlock()
		for range silentFailures {
			l.breaker.RecordFailure()
		}
	})
	return func() { t.Stop() }
}

// hear notes that an answer has begun.
func (l *limits) hear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard, l.silent = time.Now(), false
}

func (l *limits) heardSince(t time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard.After(t)
}

// IsSilent reports whether the origin let the last requests wait for several seconds, and has answered nothing since.
// Callers who can do without it need not wait long.
func (o *Origin) IsSilent() bool {
	o.limits.mu.Lock()
	defer o.limits.mu.Unlock()
	return o.limits.silent
}
