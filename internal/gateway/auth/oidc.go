package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// OIDCOptions of an OIDC.
type OIDCOptions struct {
	Rules   []OIDCRule
	Sources *Sources         // gets each issuer as an identity source
	Now     func() time.Time // nil means time.Now
}

// OIDC authenticates CI jobs by the identity tokens of their CI system: JSON Web Tokens (RFC 7519) that an OpenID
// issuer signs. It verifies them with the issuer's published keys (oidckeys.go). The first rule of the issuer whose
// audience and claims match determines the grant (oidcrule.go). Safe for concurrent use.
type OIDC struct {
	issuers map[string]*oidcIssuer // by the exact value of the claim iss
	now     func() time.Time
	stop    context.CancelFunc
}

// oidcIssuer is an issuer with its rules, in their order.
type oidcIssuer struct {
	keys  *issuerKeys
	rules []*oidcRule
}

// clockSkew is the maximum difference between the clocks of an issuer and of this server.
const clockSkew = time.Minute

// oidcAlgorithms are the accepted signature algorithms. All have a public key, so that a public key is
// never the secret of an HMAC.
var oidcAlgorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// NewOIDC makes an OIDC. Close ends it. Keys are fetched when the first token arrives. The error is Invalid for an
// invalid rule.
func NewOIDC(o OIDCOptions) (*OIDC, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	life, stop := context.WithCancel(context.Background())
	a := &OIDC{issuers: map[string]*oidcIssuer{}, now: o.Now, stop: stop}
	for _, from := range o.Rules {
		rule, err := parseOIDCRule(from)
		if err != nil {
			return nil, errors.Join(err, a.Close())
		}
		issuer := a.issuers[from.Issuer]
		if issuer == nil {
			keys := &issuerKeys{keySource: from.keySource(), now: o.Now, life: life,
				sets:   retry.NewAnswers[string, keySet](1, keysInterval, o.Now),
				source: o.Sources.add(SourceOIDC+" "+from.Issuer, nil)}
			keys.source.optional = true // other callers do not need the issuer
			issuer = &oidcIssuer{keys: keys}
			a.issuers[from.Issuer] = issuer
		}
		if issuer.keys.keySource != from.keySource() {
			return nil, errors.Join(fault.New(fault.Invalid,
				"issuer %q has rules with different jwks_url, ca or token_file: use the same in all", from.Issuer), a.Close())
		}
		issuer.rules = append(issuer.rules, rule)
	}
	return a, nil
}

// Close cancels running requests.
func (a *OIDC) Close() error {
	a.stop()
	for _, issuer := range a.issuers {
		issuer.keys.sets.Wait()
	}
	return nil
}

// Configured reports true: tokens can identify callers.
func (a *OIDC) Configured() bool { return true }

// Accepts reports whether the secret has the form of a signed JSON Web Token: three parts, and the first begins with
// "{" and a quotation mark in base64.
func (a *OIDC) Accepts(c *Credential) bool {
	return c.Key == nil && strings.HasPrefix(c.Secret, "eyJ") && strings.Count(c.Secret, ".") == 2
}

// Identify verifies a token. A token of an issuer without rules is not known. Errors: Unauthenticated, Unavailable if
// the keys of the issuer cannot be fetched.
func (a *OIDC) Identify(ctx context.Context, c *Credential) (Identity, error) {
	token, err := jwt.ParseSigned(c.Secret, oidcAlgorithms)
	if err != nil {
		return Identity{}, notKnown(fault.Wrap(fault.Unauthenticated, "this is not an identity token", err))
	}
	var claims jwt.Claims
	if err := token.UnsafeClaimsWithoutVerification(&claims); err != nil {
		return Identity{}, notKnown(fault.Wrap(fault.Unauthenticated, "this is not an identity token", err))
	}
	issuer := a.issuers[claims.Issuer]
	if issuer == nil {
		return Identity{}, notKnown(fault.New(fault.Unauthenticated,
			"identity tokens of the issuer %.200q are not accepted here", claims.Issuer))
	}
	header := token.Headers[0]
	key, err := issuer.keys.get(ctx, header.KeyID)
	if err != nil {
		return Identity{}, err
	}
	var values map[string]any
	if key.Algorithm != "" && key.Algorithm != header.Algorithm {
		err = errors.New("the key is for another algorithm")
	} else {
		err = token.Claims(key.Key, &claims, &values)
	}
	if err != nil {
		return Identity{}, fault.Wrap(fault.Unauthenticated, "the signature of the identity token is invalid", err)
	}
	name, grant, err := issuer.grant(claims, values, a.now())
	if err != nil {
		return Identity{}, genuine(err)
	}
	return Identity{Name: name, By: ByOIDC, Credential: logText(claims.Subject), Grant: grant}, nil
}

// grant returns the name that the first matching rule gives to the owner of a token with a valid signature, and what it
// permits.
func (i *oidcIssuer) grant(claims jwt.Claims, values map[string]any, now time.Time) (string, *Grant, error) {
	err := claims.ValidateWithLeeway(jwt.Expected{Time: now}, clockSkew)
	switch {
	case errors.Is(err, jwt.ErrExpired):
		return "", nil, fault.New(fault.Unauthenticated, "this identity token has expired")
	case err != nil:
		return "", nil, fault.Wrap(fault.Unauthenticated, "this identity token is not valid yet", err)
	case claims.Expiry == nil || claims.Subject == "":
		return "", nil, fault.New(fault.Unauthenticated, "this identity token has no subject or no end of its validity")
	}
	var reasons []error
	for n, rule := range i.rules {
		grant, err := rule.grant(claims.Audience, values)
		var name string
		if err == nil {
			name, err = rule.callerName(claims, values)
		}
		if err == nil {
			return name, grant, nil
		}
		reasons = append(reasons, fmt.Errorf("table %d of the issuer: %w", n+1, err))
	}
	return "", nil, fault.Wrap(fault.Unauthenticated,
		"this identity token gives no access: no [[auth.oidc]] table of this server matches its audience and claims",
		errors.Join(reasons...))
}

// oidcName returns a name for the subject of an issuer. It is valid for CheckName. Its first part is for people, and
// the hash makes it unique.
func oidcName(issuer, subject string) string {
	const most = 90 // bytes of the subject
	hash := sha256.Sum256([]byte(issuer + "\x00" + subject))
	readable := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '.' || r == '_' {
			return r
		}
		return '-'
	}, subject)
	return "oidc-" + readable[:min(len(readable), most)] + "-" + hex.EncodeToString(hash[:8])
}

// logText returns a text for the log, or nothing if it is long or has other characters than printable ASCII.
func logText(s string) string {
	const most = 256
	if len(s) > most || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return s
}
