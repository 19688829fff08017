package auth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

const (
	maxHookAnswer   = 64 << 10 // bytes
	maxHookRequests = 64       // at the same time
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
	Credential   *hookCredential `json:"credential,omitempty"`   // for identify
	Identity     *hookIdentity   `json:"identity,omitempty"`     // for the others; absent for anonymous callers
	Repository   string          `json:"repository,omitempty"`   // for authorize
	Repositories []string        `json:"repositories,omitempty"` // for readable
	Operation    string          `json:"operation,omitempty"`
	Client       string          `json:"client"` // IP address
	trace        string          // traceparent of the first caller
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

// hookIdentityOf returns an identity for a question. Nil means an anonymous caller.
func hookIdentityOf(id Identity) *hookIdentity {
	if id.Anonymous() {
		return nil
	}
	return &hookIdentity{id.Name, id.By}
}

// answer is the JSON of an answer.
type answer struct {
	Allow    bool   `json:"allow"`
	Identity string `json:"identity,omitempty"` // to identify
	Scope    string `json:"scope,omitempty"`    // to identify: the most powerful operation of the credential
	// Repositories are, to identify, patterns that limit the credential, and, to readable, the readable repositories.
	Repositories []string `json:"repositories,omitempty"`
}

// identity returns the identity in an answer to identify.
func (a *answer) identity() (Identity, error) {
	if !a.Allow {
		return Identity{}, fault.New(fault.Unauthenticated, "wrong user name or password")
	}
	if err := CheckName(a.Identity); err != nil {
		return Identity{}, err
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

// request sends a question as soon as there is a slot. check, if it is not nil, can then refuse it.
func (h *Hook) request(q question, check func() error) (*answer, error) {
	leave, err := h.slots.enter(q.Client)
	if err == nil {
		defer leave()
		if check != nil {
			err = check()
		}
	}
	if err != nil { // not a failure of the hook
		h.o.Metrics.question("hook", "skipped")
		return nil, err
	}
	if !h.begin() {
		h.o.Metrics.question("hook", "skipped")
		return nil, fmt.Errorf("no request for %v after %d failures", hookPause, failuresToPause)
	}
	a, err := h.post(q)
	if h.end(err); err != nil {
		h.o.Metrics.question("hook", "failed")
		return nil, err
	}
	h.o.Metrics.question("hook", "ok")
	return a, nil
}

// begin reports whether a request may be sent: not during a pause, and only one after it.
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
	ctx, cancel := context.WithTimeout(h.life, h.o.Timeout) // not a caller's context: several may wait for the answer
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
	response, body, err := httpguard.Do(h.client, r, maxHookAnswer+maxNameBytes*len(q.Repositories))
	if err != nil {
		if withURL, ok := errors.AsType[*url.Error](err); ok {
			err = withURL.Err // the URL may contain a secret
		}
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", response.StatusCode)
	}
	a := &answer{}
	if err := json.Unmarshal(body, a); err != nil {
		return nil, errors.New("answer is not valid JSON")
	}
	if q.Question == identify && a.Allow {
		if _, err := a.identity(); err != nil {
			return nil, fmt.Errorf("invalid answer: %w", err)
		}
	}
	return a, nil
}
