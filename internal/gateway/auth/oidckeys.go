package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
	"github.com/packhorse-git/packhorse/internal/transport/httpguard"
)

const (
	keysRefresh  = 15 * time.Minute // age at which keys are fetched again while they are used
	keysMaxAge   = time.Hour        // age at which keys are not used any more
	keysInterval = 10 * time.Second // minimum time between two fetches
	keysTimeout  = 10 * time.Second
	maxKeysBytes = 1 << 20
)

// keySource is where the keys of an issuer come from.
type keySource struct {
	issuer    string
	url       string // of the keys; empty means that the issuer's configuration names it (OpenID Connect Discovery)
	ca        string // file with the trusted authorities; empty means those of the system
	tokenFile string // with a Bearer token for the requests; empty means none
}

// issuerKeys are the public keys of an issuer. They are fetched when a token names an unknown key, and from time to
// time, so that a key that the issuer has withdrawn is forgotten. All callers share one fetch. Safe for concurrent use.
type issuerKeys struct {
	keySource
	now    func() time.Time
	source *source
	life   context.Context // ends fetches
	sets   *retry.Answers[string, keySet]
}

// keySet is what an issuer has published.
type keySet struct {
	keys    []jose.JSONWebKey
	fetched time.Time
}

func (s keySet) find(id string) *jose.JSONWebKey {
	i := slices.IndexFunc(s.keys, func(k jose.JSONWebKey) bool { return k.KeyID == id })
	if i < 0 {
		return nil
	}
	return &s.keys[i]
}

// get returns the key with an ID. Errors: Unauthenticated if the issuer has no such key, Unavailable if its keys are
// not known.
func (k *issuerKeys) get(ctx context.Context, id string) (*jose.JSONWebKey, error) {
	set, isStale, err := k.sets.Ask(ctx, "", time.Time{}, k.refresh)
	if err == nil && set.find(id) == nil && k.now().Sub(set.fetched) >= keysInterval { // newer keys may have it
		set, isStale, err = k.sets.Ask(ctx, "", set.fetched.Add(1), k.refresh)
	}
	key := set.find(id)
	switch {
	case key != nil:
		return key, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case isStale, err != nil:
		return nil, unavailable("the server cannot check identity tokens at present; try again", err)
	}
	return nil, fault.New(fault.Unauthenticated, "the identity token is signed with a key that its issuer does not have")
}

// refresh fetches the keys.
func (k *issuerKeys) refresh() (retry.Answer[keySet], error) {
	keys, err := k.fetch()
	if err != nil {
		err = fmt.Errorf("fetch the keys of the issuer %s: %w", k.issuer, err)
	}
	k.source.report(err)
	now := k.now()
	answer := retry.Until(keySet{keys, now}, now.Add(keysMaxAge))
	answer.Renew = now.Add(keysRefresh)
	return answer, err
}

func (k *issuerKeys) fetch() ([]jose.JSONWebKey, error) {
	ctx, cancel := context.WithTimeout(k.life, keysTimeout)
	defer cancel()
	client, bearer, err := k.client()
	if err != nil {
		return nil, err
	}
	from := k.url
	if from == "" {
		if from, err = k.discover(ctx, client, bearer); err != nil {
			return nil, err
		}
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := getJSON(ctx, client, bearer, from, &set); err != nil {
		return nil, err
	}
	var keys []jose.JSONWebKey
	for _, text := range set.Keys {
		var key jose.JSONWebKey // of an unknown kind if there is an error, and then for another purpose
		if err := key.UnmarshalJSON(text); err == nil && key.KeyID != "" && key.IsPublic() && key.Valid() &&
			(key.Use == "" || key.Use == "sig") {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no public key for signatures with an ID", from)
	}
	return keys, nil
}

// discover returns the URL of the keys from the issuer's configuration (OpenID Connect Discovery 1.0, section 4). The
// URL must be on the issuer's host, so that requests go only to hosts that the operator has named.
func (k *issuerKeys) discover(ctx context.Context, client *http.Client, bearer string) (string, error) {
	var about struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	from := strings.TrimSuffix(k.issuer, "/") + "/.well-known/openid-configuration"
	if err := getJSON(ctx, client, bearer, from, &about); err != nil {
		return "", err
	}
	if about.Issuer != k.issuer {
		return "", fmt.Errorf("%s: issuer is %.200q", from, about.Issuer)
	}
	issuer, err := url.Parse(k.issuer)
	if err != nil {
		return "", err
	}
	keys, err := url.Parse(about.Keys)
	if err != nil || keys.Scheme != issuer.Scheme || keys.Host != issuer.Host {
		return "", fmt.Errorf("%s: jwks_uri %.200q is on another host: name it with jwks_url", from, about.Keys)
	}
	return about.Keys, nil
}

// client returns a client for one fetch, and the Bearer token. Their files are read each time, because they change.
func (k *issuerKeys) client() (client *http.Client, bearer string, err error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if k.ca != "" {
		text, err := os.ReadFile(k.ca)
		if err != nil {
			return nil, "", err
		}
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(text) {
			return nil, "", fmt.Errorf("%s: no certificate in PEM", k.ca)
		}
	}
	if k.tokenFile != "" {
		text, err := os.ReadFile(k.tokenFile)
		if err != nil {
			return nil, "", err
		}
		bearer = strings.TrimSpace(string(text))
	}
	return httpguard.Client(&http.Transport{TLSClientConfig: trust, DisableKeepAlives: true,
		MaxResponseHeaderBytes: maxKeysBytes}), bearer, nil
}

// getJSON fetches a JSON document. It uses no proxy of the environment and follows no redirect.
func getJSON(ctx context.Context, client *http.Client, bearer, from string, to any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "packhorse")
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	response, body, err := httpguard.Do(client, r, maxKeysBytes)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", from, response.StatusCode)
	}
	if err := json.Unmarshal(body, to); err != nil {
		return errors.New(from + ": invalid JSON")
	}
	return nil
}
