package mirror

import (
	"context"
	"errors"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// originCheck is one request for the refs of the origin, shared by concurrent callers.
type originCheck struct {
	start  time.Time
	done   chan struct{} // closed when the fields below are valid
	err    error
	update *update      // that fetches the new state; nil if the repository has the state of the origin
	refs   *origin.Refs // of a mirror that was not complete; nil otherwise, and some time after the update
}

// checked is the result of a check.
type checked struct {
	// Age is the age of the repository's state if the origin could not be asked or its new state could not be fetched.
	// The caller may use the repository, with a notice to the client. Zero means that the repository is up to date.
	Age time.Duration
	Err error // why the repository is not up to date; nil if it is
}

const (
	// updateWait is how long a request waits for the origin and an update, including the question about the caller.
	// During an outage, and after such a question, it is at least a tenth.
	updateWait = 10 * time.Second
	// checkTimeout bounds a request for the refs of the origin.
	checkTimeout = 2 * time.Minute
	// failedWindow is how long a failed check holds, and one whose update failed.
	failedWindow = time.Second
)

// errUpdating is the error of a check if the update takes longer than updateWait, or if the mirror is not complete yet.
var errUpdating = fault.Retry(fault.Unavailable, fault.RetryLater, "the mirror is being updated from its origin")

// check makes sure that the repository has the current state of the origin. A check that began within the window of the
// rule is shared; a forced one begins after the call. The check and the update that it starts go on if ctx ends.
//
// An origin that lets callers wait longer than updateWait counts as down if the repository can be used without it.
//
// The error is errUpdating, or NotFound, Denied or Unauthenticated if the origin refuses. It is Unavailable if the
// origin cannot be asked and the mirror is too old (Rule.StaleFor) or not complete.
func (r *mirror) check(ctx context.Context, auth node.Secret, forced bool) (checked, error) {
	timeout := time.NewTimer(r.patience(ctx))
	defer timeout.Stop()
	defer inflight.From(ctx).WaitForOrigin()()
	since := r.m.now()
	if !forced {
		since = r.window(since)
	}
	for {
		c, own := r.join(since, auth, forced)
		select {
		case <-c.done:
		case <-timeout.C:
			return r.overdue()
		case <-ctx.Done():
			return checked{}, ctx.Err()
		}
		if !own && c.isOutdated(since) {
			continue
		}
		if c.err != nil || c.update == nil {
			return r.judge(c.err)
		}
		select {
		case <-c.update.done:
			if u := c.update; isOfCaller(u.err) && !(own && u.at.Equal(c.start)) {
				continue // it had the credential of another caller
			}
			return r.judge(c.update.err)
		case <-timeout.C:
			return checked{}, errUpdating
		case <-ctx.Done():
			return checked{}, ctx.Err()
		}
	}
}

// patience returns how long callers of check wait.
func (r *mirror) patience(ctx context.Context) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	least := r.m.updateWait / 10
	if r.down != nil || r.rule.Origin.IsSilent() {
		return least
	}
	return max(r.m.updateWait-inflight.From(ctx).OriginWait(), least)
}

// noAnswer returns the error for an origin that did not answer in time.
func noAnswer(client *origin.Origin) error {
	return &fault.Error{Kind: fault.Unavailable, Msg: "origin " + client.Host() + " does not answer",
		RetryAfter: fault.RetryLater, Err: &origin.Error{Down: true, Err: errors.New("no answer in time")}}
}

// awaitOrigin waits for a request to an origin that callers cannot do without. It gives up if the origin answers
// nothing, while the request goes on.
func (m *Mirrors) awaitOrigin(ctx context.Context, client *origin.Origin, done <-chan struct{}) error {
	timeout := time.NewTimer(max(m.updateWait-inflight.From(ctx).OriginWait(), m.updateWait/10))
	defer timeout.Stop()
	defer inflight.From(ctx).WaitForOrigin()()
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			if client.IsSilent() {
				return noAnswer(client)
			}
			timeout.Reset(m.updateWait / 10)
		}
	}
}

// overdue decides for a caller whose wait for the origin has timed out. If it has to wait on, the error is errUpdating.
func (r *mirror) overdue() (checked, error) {
	err := noAnswer(r.currentRule().Origin)
	result, tooOld := r.judge(err)
	if tooOld != nil {
		return checked{}, errUpdating
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down, r.downAt = err, r.m.now()
	return result, nil
}

// window returns the earliest start of a check that still holds.
func (r *mirror) window(now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since := now.Add(-r.rule.Fresh.window()); since.After(r.suspect) {
		return since
	}
	return r.suspect
}

// join returns a check that began since a time, or one that is still running. own is true if it was started by this
// call.
func (r *mirror) join(since time.Time, auth node.Secret, forced bool) (c *originCheck, own bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c = r.last; c != nil && (!c.ended() || !c.start.Before(since) && c.holds(r.m.now())) {
		return c, false
	}
	c = &originCheck{start: r.m.now(), done: make(chan struct{})}
	r.last = c
	r.m.running.Go(func() { r.ask(c, auth, forced) })
	return c, true
}

func (c *originCheck) ended() bool { return isClosed(c.done) }

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// isOutdated reports whether the result of an ended check is not for another caller: it was refused, or it began before
// a time. An outage is for all.
func (c *originCheck) isOutdated(since time.Time) bool {
	return isOfCaller(c.err) || c.start.Before(since) && !origin.IsDown(c.err)
}

// holds reports whether an ended check can be used by other callers.
func (c *originCheck) holds(now time.Time) bool {
	err := c.err
	if err == nil && c.update != nil && isClosed(c.update.done) {
		err = c.update.err
	}
	return err == nil || !isOfCaller(err) && now.Sub(c.start) < failedWindow
}

// ask asks the origin for its refs, and starts an update if they have changed.
func (r *mirror) ask(c *originCheck, auth node.Secret, forced bool) {
	ctx, cancel := context.WithTimeout(r.m.ctx, checkTimeout)
	defer cancel()
	r.mu.Lock()
	rule, path := r.rule, r.state.Path
	r.mu.Unlock()
	refs, err := rule.list(ctx, path, auth)
	r.mu.Lock()
	c.err, r.down = err, nil
	if origin.IsDown(err) && !origin.IsOfCaller(err) {
		r.down, r.downAt = err, r.m.now()
	}
	if err == nil {
		before := r.state.currentPath()
		r.state.Moved = refs.Moved
		if now := r.state.currentPath(); now != before {
			r.m.log.Info("a mirrored repository has moved", "repository", r.path.String(), "from", before, "to", now)
		}
		r.version, r.offer = refs.Version, refs.Offer
		if !r.state.Complete {
			c.refs = refs
		}
		if rule == r.rule && refs.Digest == r.digest {
			r.upToDate(c.start)
		} else {
			c.update = r.startUpdate(refs, auth, c.start, forced)
			if isClosed(c.update.done) {
				r.forgetRefs(c)
			}
		}
		// otherwise another caller may succeed
	} else if !fault.Is(err, fault.Unauthenticated) && !fault.Is(err, fault.Denied) {
		r.fail(err)
	}
	r.mu.Unlock()
	close(c.done)
	r.save()
}

// forgetRefs frees the list of refs of a check, whose update has ended, when the check does not hold any more. All
// lists share a bound of memory (origin.ListMemory).
func (r *mirror) forgetRefs(c *originCheck) {
	time.AfterFunc(failedWindow, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		c.refs = nil
	})
}

// upToDate notes that the repository has the state that the origin had at a time. The caller holds r.mu.
func (r *mirror) upToDate(at time.Time) {
	if at.After(r.state.Fresh) {
		r.state.Fresh = at.Round(0) // as in the file
	}
	if r.state.Error != "" {
		r.m.log.Info("a mirror is up to date again", "repository", r.path.String())
	}
	r.state.Error, r.failed = "", failure{}
}

// fail notes why the repository is not up to date. The caller holds r.mu.
func (r *mirror) fail(err error) {
	if r.m.ctx.Err() != nil || r.gone {
		return
	}
	if r.state.Error == "" {
		r.m.log.Warn("cannot update a mirror", "repository", r.path.String(), "error", err)
	}
	r.state.Error = err.Error()
}

// judge decides whether the repository may be used after a check or update has ended.
func (r *mirror) judge(err error) (checked, error) {
	if err == nil {
		return checked{}, nil
	}
	if isRefusal(err) {
		return checked{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	age := max(r.m.now().Sub(r.state.Fresh), time.Nanosecond)
	what := "its origin does not answer"
	if !origin.IsDown(err) {
		what = fault.Message(err)
	}
	kind, after := fault.Unavailable, max(fault.RetryAfter(err), fault.RetryMuchLater)
	if fault.Is(err, fault.Exhausted) { // the origin, or the budget for it, allows a request after that time
		kind, after, what = fault.Exhausted, fault.RetryAfter(err), fault.Message(err)
	}
	var reason string
	switch {
	case !r.state.Complete:
		reason = "the mirror is not complete yet"
	case age > r.rule.StaleFor:
		reason = "the mirror is " + age.Round(time.Second).String() + " old"
	default:
		return checked{Age: age, Err: err}, nil
	}
	return checked{}, &fault.Error{Kind: kind, Msg: reason + ", and " + what, RetryAfter: after,
		CallerLimit: fault.IsCallerLimit(err), Err: err}
}
