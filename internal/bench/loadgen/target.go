package loadgen

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
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

// Loopback reports whether the server is on this machine.
func (t *Target) Loopback() bool {
	host, _, err := net.SplitHostPort(t.Addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

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

// Transport returns a client for the few requests that are not measured.
func (t *Target) Transport() *http.Transport {
	return &http.Transport{
		TLSClientConfig:    t.TLS,
		DisableCompression: true,
		ForceAttemptHTTP2:  false,
		TLSNextProto:       map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
}

// Post encodes a POST request to a service of the path ("git-upload-pack"), or to the path itself if service is empty.
func (t *Target) Post(service, encoding string, body []byte) []byte {
	path := t.Path
	if service != "" {
		path += "/" + service
	}
	if path == "" {
		path = "/"
	}
	var b []byte
	line := func(parts ...string) {
		for _, p := range parts {
			b = append(b, p...)
		}
		b = append(b, "\r\n"...)
	}
	line("POST ", path, " HTTP/1.1")
	line("Host: ", t.Host)
	line("User-Agent: ", UserAgent)
	if service != "" {
		line("Content-Type: application/x-", service, "-request")
		line("Accept: application/x-", service, "-result")
		line("Git-Protocol: version=2")
	}
	if encoding != "" {
		line("Content-Encoding: ", encoding)
	}
	if t.Auth != "" {
		line("Authorization: ", t.Auth)
	}
	line("Content-Length: ", strconv.Itoa(len(body)))
	line()
	return append(b, body...)
}

// Get encodes a GET request to the path with tail appended.
func (t *Target) Get(tail string) []byte {
	b := fmt.Appendf(nil, "GET %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nAccept: */*\r\nPragma: "+
		"no-cache\r\nGit-Protocol: version=2\r\n",
		t.Path, tail, t.Host, UserAgent)
	if t.Auth != "" {
		b = fmt.Appendf(b, "Authorization: %s\r\n", t.Auth)
	}
	return append(b, "\r\n"...)
}

// Call encodes a unary call of the Connect protocol.
func (t *Target) Call(procedure string, message []byte) []byte {
	b := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nConnect-Protocol-Version: "+
		"1\r\nContent-Type: application/proto\r\nContent-Length: %d\r\n",
		procedure, t.Host, UserAgent, len(message))
	if t.Auth != "" {
		b = fmt.Appendf(b, "Authorization: %s\r\n", t.Auth)
	}
	return append(append(b, "\r\n"...), message...)
}

// Plain encodes a GET request as a browser without a cache would send it.
func (t *Target) Plain(path string, keep bool) []byte {
	b := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: packhorse-bench\r\nAccept: */*\r\n", path, t.Host)
	if t.Auth != "" {
		b = fmt.Appendf(b, "Authorization: %s\r\n", t.Auth)
	}
	if !keep {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, "\r\n"...)
}
