package account

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/packhorse-git/packhorse/internal/fault"
)

const (
	flowName = "packhorse-flow"
	flowLife = 10 * time.Minute
	askTime  = 10 * time.Second // for a request to the issuer
)

// Issuer is an OpenID issuer that visitors sign in with. The rules for identity tokens decide who they are. Safe for
// concurrent use.
type Issuer struct {
	URL    string // as in its tokens
	ID     string // of this client
	Secret func() string
	Client *http.Client

	mu       sync.Mutex
	provider *oidc.Provider // nil: not asked yet
}

// Name returns the name of the issuer for people.
func (i *Issuer) Name() string {
	name := strings.TrimPrefix(strings.TrimPrefix(i.URL, "https://"), "http://")
	return strings.TrimSuffix(name, "/")
}

// ask returns what the issuer publishes about itself.
func (i *Issuer) ask(ctx context.Context) (*oidc.Provider, error) {
	i.mu.Lock()
	known := i.provider
	i.mu.Unlock()
	if known != nil {
		return known, nil
	}
	known, err := oidc.NewProvider(oidc.ClientContext(ctx, i.Client), i.URL)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "the issuer "+i.Name()+" does not answer; sign in with an access "+
			"token, or try again", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.provider = known
	return known, nil
}

// flow is the state of a visitor who is at the issuer.
type flow struct {
	State, Nonce, Verifier, To string
	Until                      time.Time
}

func (i *Issuer) config(p *oidc.Provider, v Visitor) *oauth2.Config {
	return &oauth2.Config{ClientID: i.ID, ClientSecret: i.Secret(), Endpoint: p.Endpoint(),
		RedirectURL: v.Address(strings.TrimPrefix(backPath, "/")), Scopes: []string{oidc.ScopeOpenID, "profile", "email"}}
}

// toIssuer leads a visitor to the issuer.
func (a *Accounts) toIssuer(w http.ResponseWriter, r *http.Request, v Visitor) error {
	provider, err := a.Issuer.ask(r.Context())
	if err != nil {
		return err
	}
	f := flow{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), To: target(r.FormValue("to")),
		Until: a.Now().Add(flowLife)}
	sealed, err := a.flows.seal(f)
	if err != nil {
		return err
	}
	setCookie(w, flowName, sealed, flowLife, v.Secure())
	http.Redirect(w, r, a.Issuer.config(provider, v).AuthCodeURL(f.State, oidc.Nonce(f.Nonce),
		oauth2.S256ChallengeOption(f.Verifier)), http.StatusSeeOther)
	return nil
}

// fromIssuer begins a session for a visitor who returns from the issuer.
func (a *Accounts) fromIssuer(w http.ResponseWriter, r *http.Request, v Visitor) error {
	var f flow
	if !a.flows.open(r, flowName, v.Secure(), &f) || !a.Now().Before(f.Until) || f.State != r.FormValue("state") {
		return fault.New(fault.Invalid, "this sign-in has expired or was begun in another browser: begin again")
	}
	setCookie(w, flowName, "", 0, v.Secure())
	if problem := r.FormValue("error"); problem != "" {
		return fault.New(fault.Invalid, "%s has refused: %.100q", a.Issuer.Name(), problem)
	}
	provider, err := a.Issuer.ask(r.Context())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(r.Context(), a.Issuer.Client), askTime)
	defer cancel()
	answer, err := a.Issuer.config(provider, v).Exchange(ctx, r.FormValue("code"), oauth2.VerifierOption(f.Verifier))
	if err != nil {
		return fault.Wrap(fault.Unavailable, a.Issuer.Name()+" did not confirm the sign-in: begin again", err)
	}
	raw, _ := answer.Extra("id_token").(string)
	token, err := provider.Verifier(&oidc.Config{ClientID: a.Issuer.ID, Now: a.Now}).Verify(ctx, raw)
	if err == nil && token.Nonce != f.Nonce {
		err = errors.New("it has another nonce")
	}
	if err != nil {
		return fault.Wrap(fault.Invalid, "the identity token of "+a.Issuer.Name()+" is not valid: begin again", err)
	}
	id, err := v.Identify(ctx, raw, "/")
	if fault.Is(err, fault.Unauthenticated) || err == nil && id.Anonymous() {
		return fault.New(fault.Invalid, "%s knows you, and no rule of this server for its identity tokens does: ask the "+
			"administrator", a.Issuer.Name())
	}
	if err != nil {
		return err
	}
	return a.begin(w, r, v, session{raw, token.Expiry}, f.To)
}
