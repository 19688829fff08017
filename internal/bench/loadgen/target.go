package loadgen

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// UserAgent is the User-Agent of the requests. Servers that check it see a git client.
const UserAgent = "git/2.39.5-packhorse-bench"

// Target is the repository (or, raw, the resource) under test. Its String never shows a user name or password.
type Target struct {
	Scheme string
	Host   string // for the Host header
	Addr   string // host:port to dial
	Socket string // a Unix socket to use instead of Addr
	Path   string // percent-encoded, without a trailing slash
	Auth   string // value of the Authorization header, or ""
	TLS    *tls.Config
}

// ParseTarget parses an http or https URL. Its errors never contain the URL, which may contain a secret.
func ParseTarget(raw string, insecure bool) (*Target, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("bad URL: want http://HOST/PATH or https://HOST/PATH")
	}
	t := &Target{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimSuffix(u.EscapedPath(), "/")}
	port := u.Port()
	switch u.Scheme {
	case "http":
		if port == "" {
			port = "80"
		}
	case "https":
		if port == "" {
			port = "443"
		}
		t.TLS = &tls.Config{
			ServerName:         u.Hostname(),
			NextProtos:         []string{"http/1.1"},
			MinVersion:         tls.VersionTLS12,
			InsecureSkipVerify: insecure, //nolint:gosec // asked for by --insecure
		}
	default:
		return nil, errors.New("bad URL: want http:// or https://")
	}
	if u.Hostname() == "" {
		return nil, errors.New("bad URL: it names no host")
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("bad URL: a repository's URL has no query and no fragment")
	}
	t.Addr = net.JoinHostPort(u.Hostname(), port)
	if u.User != nil {
		password, _ := u.User.Password()
		t.Auth = "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
	}
	return t, nil
}

// String is the URL without its user and password.
func (t *Target) String() string { return t.Scheme + "://" + t.Host + t.Path }

// dial opens a connection and completes its TLS handshake.
func (t *Target) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	network, address := "tcp", t.Addr
	if t.Socket != "" {
		network, address = "unix", t.Socket
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil || t.TLS == nil {
		return c, err
	}
	tc := tls.Client(c, t.TLS)
	if err := tc.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("TLS with %s: %w", t.Addr, err)
	}
	return tc, nil
}

// Encode encodes a request. The header has complete lines.
func (t *Target) Encode(method, path, header string, body []byte) []byte {
	b := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\n%s", method, cmp.Or(path, "/"), t.Host, header)
	if t.Auth != "" {
		b = fmt.Appendf(b, "Authorization: %s\r\n", t.Auth)
	}
	if method == http.MethodPost {
		b = fmt.Appendf(b, "Content-Length: %d\r\n", len(body))
	}
	return append(append(b, "\r\n"...), body...)
}

// Post encodes a POST request to a service of the repository, as "git-upload-pack". An encoding of "" means none.
func (t *Target) Post(service, encoding string, body []byte) []byte {
	header := fmt.Sprintf("User-Agent: %s\r\nContent-Type: application/x-%s-request\r\n"+
		"Accept: application/x-%[2]s-result\r\nGit-Protocol: version=2\r\n", UserAgent, service)
	if encoding != "" {
		header += "Content-Encoding: " + encoding + "\r\n"
	}
	return t.Encode(http.MethodPost, t.Path+"/"+service, header, body)
}

// Discover encodes the request for the capabilities of the repository's server.
func (t *Target) Discover() []byte {
	return t.Encode(http.MethodGet, t.Path+"/info/refs?service=git-upload-pack", "User-Agent: "+UserAgent+
		"\r\nAccept: */*\r\nPragma: no-cache\r\nGit-Protocol: version=2\r\n", nil)
}
