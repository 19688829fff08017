package bench

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

// userAgent is what the requests call themselves; servers that look at it see a git client.
const userAgent = "git/2.39.5-packhorse-bench"

// target is the repository (or, raw, the resource) under test. Its String never shows a user name or password.
type target struct {
	scheme   string
	host     string // as the Host header has it
	addr     string // host:port to dial
	socket   string // a Unix socket to dial instead
	path     string // percent-encoded, without a slash at its end
	auth     string // value of the Authorization header, or empty
	tls      *tls.Config
	protocol string // Git's protocol version: "0", "1", "2"; "" is 2
}

// parseTarget reads an http or https URL. Its errors never repeat the URL, which may hold a secret.
func parseTarget(raw string, insecure bool) (*target, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("bad URL: want http://HOST/PATH or https://HOST/PATH")
	}
	t := &target{scheme: u.Scheme, host: u.Host, path: strings.TrimSuffix(u.EscapedPath(), "/")}
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
		t.tls = &tls.Config{
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
	t.addr = net.JoinHostPort(u.Hostname(), port)
	if u.User != nil {
		password, _ := u.User.Password()
		t.auth = "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
	}
	return t, nil
}

// String is the URL without its user and password.
func (t *target) String() string { return t.scheme + "://" + t.host + t.path }

// loopback tells whether the server is on this machine.
func (t *target) loopback() bool {
	host, _, err := net.SplitHostPort(t.addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// dial opens one connection, with its TLS handshake done.
func (t *target) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	network, address := "tcp", t.addr
	if t.socket != "" {
		network, address = "unix", t.socket
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil || t.tls == nil {
		return c, err
	}
	tc := tls.Client(c, t.tls)
	if err := tc.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("TLS with %s: %w", t.addr, err)
	}
	return tc, nil
}

// transport is for the few requests that are not measured.
func (t *target) transport() *http.Transport {
	return &http.Transport{
		TLSClientConfig:    t.tls,
		DisableCompression: true,
		ForceAttemptHTTP2:  false,
		TLSNextProto:       map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
}

// older tells that the protocol version is one in which a fetch has no sections (gitprotocol-pack(5)).
func (t *target) older() bool { return t.protocol == "0" || t.protocol == "1" }

// gitProtocol is the header that asks for the version; "" for none.
func (t *target) gitProtocol() string {
	switch t.protocol {
	case "0":
		return ""
	case "":
		return "version=2"
	}
	return "version=" + t.protocol
}

// post makes the bytes of one POST to the path's service ("git-upload-pack"), or to the path itself when service is empty.
func (t *target) post(service, encoding string, body []byte) []byte {
	path := t.path
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
	line("Host: ", t.host)
	line("User-Agent: ", userAgent)
	if service != "" {
		line("Content-Type: application/x-", service, "-request")
		line("Accept: application/x-", service, "-result")
		if h := t.gitProtocol(); h != "" {
			line("Git-Protocol: ", h)
		}
	}
	if encoding != "" {
		line("Content-Encoding: ", encoding)
	}
	if t.auth != "" {
		line("Authorization: ", t.auth)
	}
	line("Content-Length: ", strconv.Itoa(len(body)))
	line()
	return append(b, body...)
}

// get makes the bytes of one GET of what is below the path.
func (t *target) get(tail string) []byte {
	b := fmt.Appendf(nil, "GET %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nAccept: */*\r\nPragma: no-cache\r\nGit-Protocol: version=2\r\n",
		t.path, tail, t.host, userAgent)
	if t.auth != "" {
		b = fmt.Appendf(b, "Authorization: %s\r\n", t.auth)
	}
	return append(b, "\r\n"...)
}

// call makes the bytes of one unary call by the Connect protocol.
func (t *target) call(procedure string, message []byte) []byte {
	b := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nConnect-Protocol-Version: 1\r\nContent-Type: application/proto\r\nContent-Length: %d\r\n",
		procedure, t.host, userAgent, len(message))
	if t.auth != "" {
		b = fmt.Appendf(b, "Authorization: %s\r\n", t.auth)
	}
	return append(append(b, "\r\n"...), message...)
}
