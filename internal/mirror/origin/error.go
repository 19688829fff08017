package origin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Error is what an origin answered or failed to answer. It is the cause of an error with a kind.
type Error struct {
	Status     int           // of the HTTP response; 0 if there was none
	RetryAfter time.Duration // until the origin wants another request; 0 if it did not say
	Moved      *url.URL      // the target of a redirect that was not followed; nil if there was none
	Down       bool          // see IsDown
	Body       []byte        // the beginning of the response's body; only set by Do
	Err        error

	single   bool // of one repository: other requests may well succeed
	ofCaller bool // see IsOfCaller
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// IsDown reports whether an error means that the origin cannot answer at present. It gave no answer in time, DNS or TLS
// failed, or its status was 5xx, 429, or 403 with Retry-After. An open circuit breaker and a used budget count as well.
func IsDown(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Down
}

// IsOfCaller reports whether an error means that the origin wants a pause from the caller whose credential was sent.
// IsDown is true as well, but other callers may succeed.
func IsOfCaller(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.ofCaller
}

var (
	errInvalid = fault.New(fault.Unavailable, "the origin sent an invalid answer")
	errShallow = fault.New(fault.Unavailable, "the repository at the origin is a shallow clone and cannot be mirrored")

	// Causes of a request's end.
	errNoAnswer = errors.New("no answer in time")
	errStalled  = errors.New("the answer is too slow")
	errClosed   = errors.New("the client of the origin was closed")
)

// reportedError is an error that the origin reported in the protocol.
type reportedError struct{ error }

func (e reportedError) Unwrap() error { return e.error }

// reported returns an error that the origin reported in the protocol.
func reported(message []byte) error {
	return reportedError{fault.New(fault.Unavailable, "the origin reports: %s", Printable(string(message)))}
}

// unexpected returns the error of a stream that ended or broke where more was expected.
func unexpected(err error) error {
	switch {
	case err == io.EOF, err == io.ErrUnexpectedEOF:
		return &fault.Error{Kind: fault.Unavailable, Msg: "the origin ended its answer early", RetryAfter: fault.RetrySoon,
			Err: &Error{Down: true, single: true, Err: io.ErrUnexpectedEOF}}
	case errors.Is(err, pktline.ErrSyntax):
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	return err
}

// isFailure reports whether the circuit breaker counts an error. One repository that the origin cannot read is not an
// outage of the others, and neither is the limit of one caller.
func isFailure(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Down && !e.single && !e.ofCaller
}

// down returns an error that means an outage, or that the origin wants fewer requests: then another storage node would
// get the same answer.
func (o *Origin) down(cause *Error) error {
	cause.Down, cause.single = true, cause.Status == http.StatusInternalServerError
	e := &fault.Error{Kind: fault.Unavailable, Msg: "origin " + o.Host() + " does not answer",
		RetryAfter: max(cause.RetryAfter, fault.RetryLater), Err: cause}
	if cause.Status == http.StatusTooManyRequests || cause.Status == http.StatusForbidden {
		e.Kind, e.CallerLimit, e.Msg = fault.Exhausted, true, "origin "+o.Host()+" limits requests at present"
		if cause.RetryAfter > 0 {
			e.RetryAfter = maxPauseOf(cause.RetryAfter)
		}
	}
	return e
}

// refused returns the error of a request that was not sent.
func (o *Origin) refused(err error, after time.Duration) error {
	kind, msg := fault.Unavailable, "origin "+o.Host()+" is not asked at present because it failed"
	isPaused := errors.Is(err, errPaused)
	switch {
	case !isRefusal(err): // the caller's context ended
		return o.transportError(context.Background(), err)
	case errors.Is(err, errBusy):
		kind, msg = fault.Exhausted, "too many requests wait for origin "+o.Host()
	case after > 0 && !isPaused:
		msg += "; next trial at " + time.Now().Add(after).UTC().Format(time.TimeOnly) + " UTC"
	case isPaused:
		kind, msg = fault.Exhausted, "origin "+o.Host()+" limits requests at present"
	}
	return &fault.Error{Kind: kind, Msg: msg, RetryAfter: max(after, fault.RetrySoon), CallerLimit: isPaused,
		Err: &Error{RetryAfter: after, Down: true, ofCaller: err == errCallerPaused, Err: err}}
}

// obey pauses requests if the error of one says for how long: those of the caller if the origin refuses only these,
// otherwise all. A caller who has used up the own limit at the origin must not stop the others.
func (o *Origin) obey(c *call, err error) {
	e, ok := errors.AsType[*Error](err)
	switch {
	case !ok || !e.Down || e.RetryAfter == 0:
	case !c.isOwn && !c.auth.IsZero() && e.Status < 500:
		e.ofCaller = true
		o.limits.pauseCaller(c.auth, e.RetryAfter)
	default:
		o.log.Warn("origin asked for a pause", "origin", o.Host(), node.Milliseconds("pause_ms", e.RetryAfter))
		o.limits.pause(e.RetryAfter)
	}
}

// statusError returns the error of a response to a call that is not 200. body is the beginning of the response's body.
// The log and the state of a mirror show it. The client of a push gets the text of a refusal, as Git shows it.
func (o *Origin) statusError(c *call, r *http.Response, body []byte) error {
	after := retryAfter(r.Header.Get("Retry-After"))
	cause := &Error{Status: r.StatusCode, RetryAfter: after, Err: fmt.Errorf("status %s", Printable(r.Status))}
	if c.foreign != nil { // others are kept in memory, and need the text only
		cause.Body = body
	}
	text, words := string(body), ""
	if _, credential, _ := strings.Cut(c.auth.Reveal(), " "); credential != "" { // some servers show what they got
		text = strings.ReplaceAll(text, credential, "***")
	}
	text = Printable(text)
	if text != "" {
		cause.Err = fmt.Errorf("%w: %s", cause.Err, text)
		if c.service == protocol.ReceivePack && isMediaType(r.Header.Get("Content-Type"), "text/plain") {
			words = ": " + text
		}
	}
	fail := func(kind fault.Kind, msg string) error {
		return &fault.Error{Kind: kind, Msg: "origin " + o.Host() + " " + msg, Err: cause}
	}
	switch code := r.StatusCode; {
	case code == http.StatusNotImplemented:
		return fail(fault.NotFound, "does not support this")
	case code == http.StatusInsufficientStorage:
		return fail(fault.Full, "has no space left for this")
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusForbidden && after > 0:
		return o.down(cause)
	case code == http.StatusNotFound, code == http.StatusGone:
		return fail(fault.NotFound, "has no such repository for this caller")
	case c.isOwn && (code == http.StatusUnauthorized || code == http.StatusForbidden):
		return fail(fault.Unavailable, "refused the mirror's own credential")
	case code == http.StatusUnauthorized:
		return fail(fault.Unauthenticated, "requires valid credentials")
	case code == http.StatusForbidden, code == http.StatusUnavailableForLegalReasons:
		return fail(fault.Denied, "denies access"+words)
	case code >= 300 && code < 400:
		target, err := r.Location()
		if err != nil {
			return fail(fault.Unavailable, "sent an invalid redirect")
		}
		cause.Moved = target
		return fail(fault.Denied, "redirects to "+Printable(target.Host)+", which is not followed")
	}
	return fail(fault.Unavailable, "answered with status "+strconv.Itoa(r.StatusCode))
}

// transportError returns the error of a request without a response, or of a response that broke.
func (o *Origin) transportError(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err // of the address, or of the request's body
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	switch {
	case errors.Is(err, errClosed):
		return fault.Wrap(fault.Unavailable, "the server is shutting down", err)
	case errors.Is(err, context.Canceled):
		return fault.Wrap(fault.Cancelled, "the request to origin "+o.Host()+" was cancelled", err)
	}
	return o.down(&Error{Err: err})
}

// retryAfter parses a Retry-After header (RFC 9110, section 10.2.3). Zero means none.
func retryAfter(value string) time.Duration {
	const limit = time.Hour
	if n, err := strconv.ParseUint(value, 10, 32); err == nil {
		return min(time.Duration(n)*time.Second, limit)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(time.Until(at), 0), limit)
	}
	return 0
}

// Printable makes a text of the origin fit for messages and logs.
func Printable(text string) string {
	const limit = 500 // bytes
	if len(text) > limit {
		text = text[:limit] + "..."
	}
	return strings.TrimSpace(strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' || 0x7f <= r && r < 0xa0 {
			return ' '
		}
		return r
	}, text), "?"))
}
