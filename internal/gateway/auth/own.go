package auth

import (
	"context"
	"slices"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

const (
	// MaxOwnLifetime is the maximum lifetime of a token that a user creates.
	MaxOwnLifetime = 366 * 24 * time.Hour
	maxOwn         = 50 // tokens of a user who creates one
)

// Own lists, creates and revokes the tokens of one user. It is safe for concurrent use.
type Own struct {
	access  *Access
	service *Service
	id      Identity
}

// Own returns the tokens of a user. The error is Unauthenticated for anonymous callers, Denied for users of an origin
// or a hook: their credential may be valid for minutes only, and these tokens would outlive it.
func (s *Service) Own(id Identity) (*Own, error) {
	access, err := s.access()
	switch {
	case err != nil:
		return nil, err
	case id.Anonymous():
		return nil, ErrAnonymous
	case id.By == ByOrigin, id.By == ByHook:
		return nil, fault.New(fault.Denied, "your account is one of another server: create tokens there")
	}
	return &Own{access: access, service: &Service{Log: s.Log, by: id.Name}, id: id}, nil
}

// List returns the user's tokens.
func (o *Own) List(ctx context.Context) ([]Token, error) {
	all, err := o.access.List(ctx)
	return slices.DeleteFunc(slices.Clone(all), func(t Token) bool { return t.Name != o.id.Name }), err
}

// MostScope returns the most powerful operation that the user's credential permits.
func (o *Own) MostScope() Operation { return o.most().Scope }

// Mint creates a token that permits at most what the user's credential permits, and does not outlive it if that is a
// token. The error is Invalid if the lifetime is not between a minute and MaxOwnLifetime, Denied if the scope exceeds
// MostScope.
func (o *Own) Mint(ctx context.Context, scope Operation, lifetime time.Duration) (secret string, t Token, err error) {
	if lifetime < minLifetime || lifetime > MaxOwnLifetime {
		return "", t, fault.New(fault.Invalid, "a token is valid for a minute to %d days",
			MaxOwnLifetime/(24*time.Hour))
	}
	r := o.most()
	if scope > r.Scope {
		return "", t, fault.New(fault.Denied, "your credential permits %s: create a token for at most that", r.Scope)
	}
	r.Most, r.Scope, r.Expires = maxOwn, scope, o.access.now().Add(lifetime)
	own, err := o.List(ctx)
	if err != nil {
		return "", t, err
	}
	if o.id.By == ByToken {
		i := slices.IndexFunc(own, func(t Token) bool { return t.ID == o.id.Credential })
		if i < 0 {
			return "", t, ErrAnonymous // it was revoked meanwhile
		}
		if until := own[i].Expires; !until.IsZero() && until.Before(r.Expires) {
			r.Expires = until
		}
	}
	secret, t, err = o.access.Mint(ctx, r)
	o.service.note(err, "created the token "+t.ID)
	return secret, t, err
}

// most returns what the user's credential permits.
func (o *Own) most() TokenRequest {
	r := TokenRequest{Name: o.id.Name, Scope: Admin}
	if grant := o.id.Grant; grant != nil {
		r.Scope = grant.Operation
		for _, pattern := range grant.Repositories {
			r.Repositories = append(r.Repositories, pattern.String())
		}
		for _, pattern := range grant.Refs {
			r.Refs = append(r.Refs, pattern.String())
		}
	}
	return r
}

// Revoke revokes one of the user's tokens by its ID. The error is NotFound for other tokens, and Denied for one that
// may permit more than the user's credential.
func (o *Own) Revoke(ctx context.Context, id string) error {
	own, err := o.List(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(own, func(t Token) bool { return t.ID == id })
	if i < 0 {
		return fault.New(fault.NotFound, "you have no token %.40q", id)
	}
	within := func(patterns, all []string) bool {
		return len(all) == 0 || len(patterns) > 0 &&
			!slices.ContainsFunc(patterns, func(p string) bool { return !slices.Contains(all, p) })
	}
	most, t := o.most(), own[i]
	scope, err := ParseOperation(t.Scope)
	if err != nil || scope > most.Scope || !within(t.Repositories, most.Repositories) || !within(t.Refs, most.Refs) {
		return fault.New(fault.Denied, "the token %s permits more than your credential: sign in with it, or with another "+
			"one that permits as much", id)
	}
	_, err = o.access.Revoke(ctx, id)
	o.service.note(err, "revoked "+id)
	return err
}
