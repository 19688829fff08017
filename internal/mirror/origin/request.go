package origin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// Request is a request of another protocol than Git's about a repository: of Git LFS.
type Request struct {
	Operation string // OperationAPI, OperationDownload or OperationUpload
	Path      string // of the repository
	// URL is the target that the origin named. Nil means the repository's own URL with ".git" and Suffix at its end.
	URL    *url.URL
	Suffix string // with a slash at its beginning
	Query  url.Values
	Method string
	Header http.Header
	// Auth is the caller's credential. It is only sent to the origin itself, and not if Header has an Authorization.
	Auth   Secret
	Writes bool // the mirror's own credential must not be used
	// Body is the body of the request. A bytes.Reader is sent again if the connection turns out to be dead.
	Body   io.Reader
	Length int64 // of Body in bytes
}

// Do sends a request. Its target has to pass CheckHost, and so has each redirect of a download, which Do follows.
// Of Header and Auth only a range follows to another host. Responses with another status than 2xx are errors.
func (o *Origin) Do(ctx context.Context, q Request) (*Response, error) {
	switch {
	case q.URL != nil:
	case o.sessions != nil:
		return o.doAPI(ctx, q)
	default:
		q.URL = &url.URL{Scheme: o.o.URL.Scheme, Host: o.o.URL.Host, RawQuery: q.Query.Encode(),
			Path: o.base + strings.TrimSuffix(q.Path, ".git") + ".git" + q.Suffix}
	}
	for range maxRedirects + 1 {
		if err := o.CheckHost(q.URL); err != nil {
			return nil, err
		}
		r, err := o.do(ctx, &q)
		e, isError := errors.AsType[*Error](err)
		if !isError || e.Moved == nil || q.Operation != OperationDownload {
			return r, err
		}
		if !sameOrigin(e.Moved, q.URL) {
			ranges := http.Header{}
			for _, name := range []string{"Range", "If-Range"} {
				ranges[name] = q.Header[name]
			}
			q.Header, q.Auth, q.Writes = ranges, Secret{}, true
		}
		q.URL = e.Moved
	}
	return nil, fault.New(fault.Unavailable, "origin %s redirects too often", o.Host())
}

// do sends a request without following redirects.
func (o *Origin) do(ctx context.Context, q *Request) (*Response, error) {
	c := &call{operation: q.Operation, path: q.Path, service: protocol.UploadPack, foreign: q, body: q.Body,
		length: q.Length, isPack: q.Operation != OperationAPI}
	if q.Writes {
		c.service = protocol.ReceivePack
	}
	var a *answer
	var err error
	if c.isElsewhere = !sameOrigin(q.URL, o.o.URL); c.isElsewhere {
		began := time.Now()
		a, err = o.send(ctx, c, func() {})
		o.count(q.Operation, began, err)
		if err != nil && !fault.Is(err, fault.Cancelled) {
			kind := fault.Unavailable
			if fault.Is(err, fault.Exhausted) {
				kind = fault.Exhausted
			}
			err = &fault.Error{Kind: kind, RetryAfter: fault.RetryAfter(err), CallerLimit: fault.IsCallerLimit(err), Err: err,
				Msg: "host " + Printable(q.URL.Host) + ", which has content of origin " + o.Host() + ", does not send it"}
		}
	} else {
		if q.Header.Get("Authorization") == "" {
			if c.auth, c.isOwn, err = o.credential(ctx, q.Auth, c.service); err != nil {
				return nil, err
			}
		}
		a, err = o.request(ctx, c, nil)
	}
	if err != nil {
		return nil, err
	}
	return &Response{Length: a.response.ContentLength, Status: a.response.StatusCode, Header: a.response.Header,
		Body: a}, nil
}

// build returns the HTTP request without its body.
func (q *Request) build(ctx context.Context, agent string, auth Secret) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, q.Method, q.URL.String(), nil)
	if err != nil { // of the URL; it is not an outage
		return nil, fault.Wrap(fault.Unavailable, "the origin sent an invalid URL", err)
	}
	maps.Copy(r.Header, q.Header)
	r.Header.Set("User-Agent", "git-lfs/3.0 ("+agent+")") // some hosts look for the name
	if !auth.IsZero() {
		r.Header.Set("Authorization", auth.Reveal())
	}
	if q.Operation == OperationDownload {
		r.Header.Set("Accept-Encoding", "identity") // otherwise some servers and proxies pack the content
	}
	if _, ok := q.Body.(*bytes.Reader); ok && !q.Writes {
		r.Header["Idempotency-Key"] = nil // as for a fetch
	}
	return r, nil
}

// CheckHost returns an error if the origin may not have requests sent to a URL. Allowed are the scheme, host and port
// of the origin (of an SSH origin: https at its host), and Options.Hosts, but http only if the origin has http. An
// entry of Hosts is a host with an optional port, or "*." and a domain for all hosts in it.
func (o *Origin) CheckHost(u *url.URL) error {
	switch {
	case u.Scheme != "https" && (u.Scheme != "http" || o.o.URL.Scheme != "http"), u.Opaque != "", u.User != nil,
		u.Hostname() == "":
		return fault.New(fault.Unavailable, "origin %s names content at %s, which is not allowed", o.Host(),
			Printable(u.Scheme+"://"+u.Host))
	case sameOrigin(u, o.o.URL), o.sessions != nil && sameOrigin(u, o.ownHTTPS()):
		return nil
	}
	for _, entry := range o.o.Hosts {
		if matchHost(entry, u) {
			return nil
		}
	}
	o.metrics.hosts.WithLabelValues(o.Host()).Inc()
	o.hostLog.Do(func() {
		o.log.Warn("origin names content at a host that is not allowed", "origin", o.Host(), "host", Printable(u.Host))
	})
	return fault.New(fault.Denied, "origin %s names content at host %[2]s: add %[2]q to lfs_hosts of the mirror, if the "+
		"host belongs to the origin", o.Host(), Printable(u.Host))
}

// ParseHost returns an error if an entry of Options.Hosts is invalid.
func ParseHost(entry string) error {
	u, err := url.Parse("https://" + strings.TrimPrefix(entry, "*."))
	if err != nil || u.Hostname() == "" || u.Host != strings.TrimPrefix(entry, "*.") || strings.Contains(u.Host, "*") {
		return fault.New(fault.Invalid, "%q is not a host: use HOST, HOST:PORT or *.DOMAIN", entry)
	}
	return nil
}

// matchHost reports whether an entry of Options.Hosts allows the host of a URL. A domain has no addresses.
func matchHost(entry string, u *url.URL) bool {
	domain, isDomain := strings.CutPrefix(entry, "*.")
	allowed := hostPort(&url.URL{Scheme: u.Scheme, Host: domain})
	if !isDomain {
		return strings.EqualFold(hostPort(u), allowed)
	}
	_, err := netip.ParseAddr(u.Hostname())
	return err != nil && strings.HasSuffix(strings.ToLower(hostPort(u)), "."+strings.ToLower(allowed))
}

// sameOrigin reports whether two URLs have the same scheme, host and port.
func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(hostPort(a), hostPort(b))
}
