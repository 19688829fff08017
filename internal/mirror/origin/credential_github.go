package origin

import (
	"bytes"
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

// GitHubAppOptions of a GitHubApp.
type GitHubAppOptions struct {
	Origin       Options // whose URL, Private, Authorities and Proxy also apply to the API
	App          int     // ID of the app
	Installation int     // ID of the installation whose repositories can be read
	KeyFile      string  // private key of the app in PEM, without permissions for other users
	Log          *slog.Logger
}

// GitHubApp is a credential for the repositories of an installation of a GitHub App. It signs a short-lived token with
// the app's private key, and exchanges it at the API for an installation token. That may only read contents, and is
// valid for an hour. Concurrent callers share an exchange. Safe for concurrent use.
type GitHubApp struct {
	o      GitHubAppOptions
	url    string // of the exchange
	key    *credfile.Private[*rsa.PrivateKey]
	client *http.Client
	now    func() time.Time
	tokens *retry.Answers[struct{}, Secret]
}

const (
	appTokenEarly    = 5 * time.Minute // before its end a token is replaced
	appTokenSpare    = time.Minute     // before its end a token is not used any more
	appRetryInterval = 5 * time.Second // after a failure
	maxAppAnswer     = 64 << 10
)

// NewGitHubApp returns the credential of a GitHub App. The first token is requested when it is needed.
func NewGitHubApp(o GitHubAppOptions) (*GitHubApp, error) {
	key, err := credfile.LoadPrivate("private key of the GitHub App", o.KeyFile, parseRSAKey, o.Log)
	if err != nil {
		return nil, err
	}
	a := &GitHubApp{o: o, key: key, now: time.Now}
	a.tokens = retry.NewAnswers[struct{}, Secret](1, appRetryInterval, func() time.Time { return a.now() })
	a.url = githubAPI(o.Origin.URL) + "/app/installations/" + strconv.Itoa(o.Installation) + "/access_tokens"
	transport := newTransport(o.Origin)
	transport.DisableKeepAlives = true // there is one request in an hour
	a.client = httpguard.Client(transport)
	a.client.Timeout = 30 * time.Second
	return a, nil
}

// githubAPI returns the URL of the API of a GitHub host.
func githubAPI(origin *url.URL) string {
	host := strings.ToLower(origin.Host)
	if host == "github.com" || strings.HasSuffix(host, ".ghe.com") {
		return origin.Scheme + "://api." + host
	}
	return origin.Scheme + "://" + origin.Host + "/api/v3"
}

// parseRSAKey parses a private key as GitHub hands it out (PKCS #1), or converted to PKCS #8.
func parseRSAKey(text []byte) (*rsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("no private key in PEM")
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	any, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := any.(*rsa.PrivateKey)
	if err != nil || !ok {
		return nil, errors.New("not an RSA private key")
	}
	return key, nil
}

// Authorization implements Source. It waits for an exchange if there is no valid token. An error of IsDown means that
// the API does not answer.
func (a *GitHubApp) Authorization(ctx context.Context) (Secret, error) {
	token, _, err := a.tokens.Ask(ctx, struct{}{}, time.Time{}, a.renew)
	return token, err
}

// renew gets a token.
func (a *GitHubApp) renew() (retry.Answer[Secret], error) {
	token, expires, err := a.exchange()
	if err != nil {
		err = fmt.Errorf("get a token for the GitHub App %d: %w", a.o.App, err)
		a.o.Log.Warn("cannot get a token for a GitHub App", "error", err)
	}
	answer := retry.Until(token, expires.Add(-appTokenSpare))
	answer.Renew = expires.Add(-appTokenEarly)
	return answer, err
}

// exchange gets an installation token.
func (a *GitHubApp) exchange() (token Secret, expires time.Time, err error) {
	signed, err := a.sign()
	if err != nil {
		return token, expires, err
	}
	r, err := http.NewRequest(http.MethodPost, a.url, bytes.NewReader([]byte(`{"permissions":{"contents":"read"}}`)))
	if err != nil {
		return token, expires, err
	}
	r.Header.Set("Accept", "application/vnd.github+json")
	r.Header.Set("Authorization", "Bearer "+signed)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "packhorse")
	response, body, err := httpguard.Do(a.client, r, maxAppAnswer)
	if err != nil {
		if _, refused := errors.AsType[*fault.Error](err); refused {
			return token, expires, err // of the address
		}
		return token, expires, &Error{Down: true, Err: err}
	}
	var answer struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expires_at"`
		Message string    `json:"message"` // of an error
	}
	err = json.Unmarshal(body, &answer)
	switch status := response.StatusCode; {
	case status == http.StatusCreated && err == nil && answer.Token != "":
		token, err = basic(TokenUser, answer.Token)
		return token, answer.Expires, err
	case status == http.StatusCreated:
		return token, expires, errors.New("the API sent an invalid answer")
	}
	return token, expires, apiError(response, answer.Message)
}

// apiError returns the error of an answer without a token.
func apiError(r *http.Response, message string) error {
	e := &Error{Status: r.StatusCode, RetryAfter: retryAfter(r.Header.Get("Retry-After"))}
	e.Down = e.Status >= 500 || e.Status == http.StatusTooManyRequests ||
		e.Status == http.StatusForbidden && e.RetryAfter > 0
	if e.Err = fmt.Errorf("the API answered with status %d", e.Status); !e.Down {
		e.Err = fmt.Errorf("%w (%s): check the IDs of the app and its installation, its key, and the clock", e.Err,
			Printable(message))
	}
	return e
}

// sign returns a token that proves the possession of the app's key. It is valid for less than the ten minutes that
// GitHub allows, and from a minute ago, because clocks differ.
func (a *GitHubApp) sign() (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: a.key.Get()}, nil)
	if err != nil {
		return "", err
	}
	now := a.now()
	return jwt.Signed(signer).Claims(jwt.Claims{Issuer: strconv.Itoa(a.o.App),
		IssuedAt: jwt.NewNumericDate(now.Add(-time.Minute)), Expiry: jwt.NewNumericDate(now.Add(8 * time.Minute)),
	}).Serialize()
}
