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
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/httpreuse"
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
	now     func() time.Time
	source  *source
	life    context.Context // ends fetches
	running *sync.WaitGroup // fetches

	mu      sync.Mutex
	keys    []jose.JSONWebKey
	fetched time.Time     // latest successful fetch
	tried   time.Time     // start or end of the latest fetch
	err     error         // of the latest fetch
	pending chan struct{} // closed at the end of the running fetch; nil if there is none
}

// get returns the key with an ID. Errors: Unauthenticated if the issuer has no such key, Unavailable if its keys are
// not known.
func (k *issuerKeys) get(ctx context.Context, id string) (*jose.JSONWebKey, error) {
	key, pending, err := k.lookUp(id)
	if key == nil && pending != nil {
		select {
		case <-pending:
			key, _, err = k.lookUp(id)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	switch {
	case key != nil:
		return key, nil
	case err != nil:
		return nil, unavailable("the server cannot check identity tokens at present; try again", err)
	}
	return nil, fault.New(fault.Unauthenticated, "the identity token is signed with a key that its issuer does not have")
}

// lookUp returns a key that is not too old, the running fetch, and the error of the latest one. It starts a fetch if
// the keys are old or do not contain the key, unless the latest fetch is recent.
func (k *issuerKeys) lookUp(id string) (key *jose.JSONWebKey, pending <-chan struct{}, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	age := now.Sub(k.fetched)
	for i := range k.keys {
		if k.keys[i].KeyID == id && age < keysMaxAge {
			key = &k.keys[i]
			break
		}
	}
	if k.pending == nil && now.Sub(k.tried) >= keysInterval && (key == nil || age >= keysRefresh) {
		k.tried, k.pending = now, make(chan struct{})
		k.running.Go(k.refresh)
	}
	return key, k.pending, k.err
}

// refresh fetches the keys.
func (k *issuerKeys) refresh() {
	keys, err := k.fetch()
	if err != nil {
		err = fmt.Errorf("fetch the keys of the issuer %s: %w", k.issuer, err)
	}
	k.source.report(err)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tried, k.err = k.now(), err
	if err == nil {
		k.keys, k.fetched = keys, k.tried
	}
	close(k.pending)
	k.pending = nil
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
	return httpreuse.Client(&http.Transport{TLSClientConfig: trust, DisableKeepAlives: true,
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
	response, body, err := httpreuse.Do(client, r, maxKeysBytes)
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
