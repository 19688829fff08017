package origin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/schedule/retry"
)

// lfsAuthenticate is the command with which an SSH origin names the LFS server of a repository.
const lfsAuthenticate protocol.Service = "git-lfs-authenticate"

const (
	maxLogin     = 64 << 10         // bytes of the command's output
	loginTime    = 5 * time.Minute  // how long a login is used if the origin does not say
	maxLoginTime = 24 * 3600        // seconds
	loginReserve = 10 * time.Second // a login that expires so soon is not used
)

// lfsLogin is the LFS server of a repository at an SSH origin, and the mirror's own credential for it.
type lfsLogin struct {
	url     *url.URL
	header  http.Header
	expires time.Time
}

// doAPI is Do for a request to the LFS server of a repository at an SSH origin. The caller's credential is not sent,
// and the mirror's own only reads. An LFS server that fails does not open the circuit breaker of the origin.
func (o *Origin) doAPI(ctx context.Context, q Request) (*Response, error) {
	if q.Writes {
		return nil, o.noRelay()
	}
	login, err := o.login(ctx, q.Path)
	if err != nil {
		return nil, err
	}
	header := login.header.Clone()
	maps.Copy(header, q.Header)
	q.Header, q.URL = header, login.url.JoinPath(strings.TrimPrefix(q.Suffix, "/info/lfs"))
	response, err := o.do(ctx, &q)
	if e, ok := errors.AsType[*Error](err); ok &&
		(e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden) {
		o.logins.Forget(q.Path) // it may have been revoked
	}
	return response, err
}

// login returns the login for a repository. Requests at the same time ask the origin once.
func (o *Origin) login(ctx context.Context, path string) (*lfsLogin, error) {
	login, _, err := o.logins.Ask(ctx, path, time.Time{}, func() (retry.Answer[*lfsLogin], error) {
		login, err := o.askLogin(o.closing, path)
		if err != nil {
			return retry.Answer[*lfsLogin]{}, err
		}
		return retry.Until(login, login.expires), nil
	})
	if err != nil && ctx.Err() != nil {
		err = o.transportError(ctx, ctx.Err())
	}
	return login, err
}

// askLogin asks the origin for a login.
func (o *Origin) askLogin(ctx context.Context, path string) (*lfsLogin, error) {
	now := time.Now()
	var output []byte
	start := func(ctx context.Context) (io.ReadWriteCloser, error) {
		return o.sessions.open(ctx, path, lfsAuthenticate, "download")
	}
	err := o.openSession(ctx, OperationAPI, path, start, func(a *answer, _ io.Writer) (err error) {
		if output, err = io.ReadAll(io.LimitReader(a, maxLogin)); err == nil {
			return a.Close()
		}
		const unknownCommand = 127 // status of a shell
		exit, hasStatus := errors.AsType[*ssh.ExitError](err)
		if hasStatus && (exit.ExitStatus() == unknownCommand || IsDown(err)) {
			return fault.Wrap(fault.Unavailable, "origin "+o.Host()+" has no LFS server for SSH (git-lfs-authenticate)",
				errors.New(err.Error())) // not an outage
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return o.parseLogin(output, path, now)
}

// parseLogin parses the output of git-lfs-authenticate. Without a URL, the LFS server is at the host of the origin.
func (o *Origin) parseLogin(output []byte, path string, now time.Time) (*lfsLogin, error) {
	var sent struct {
		Href      string            `json:"href"`
		Header    map[string]string `json:"header"`
		ExpiresIn int64             `json:"expires_in"` // seconds
		ExpiresAt time.Time         `json:"expires_at"`
	}
	err := json.Unmarshal(output, &sent)
	u := o.ownHTTPS()
	u.Path = o.base + strings.TrimSuffix(path, ".git") + ".git/info/lfs"
	if err == nil && sent.Href != "" {
		u, err = url.Parse(sent.Href)
	}
	if err != nil {
		return nil, fault.New(fault.Unavailable, "origin %s sent an invalid answer to git-lfs-authenticate", o.Host())
	}
	if err := o.CheckHost(u); err != nil {
		return nil, err
	}
	l := &lfsLogin{url: u, header: CleanHeader(sent.Header), expires: sent.ExpiresAt}
	if sent.ExpiresIn > 0 {
		l.expires = now.Add(time.Duration(min(sent.ExpiresIn, maxLoginTime)) * time.Second)
	}
	if l.expires.IsZero() {
		l.expires = now.Add(loginTime)
	}
	l.expires = l.expires.Add(-loginReserve)
	return l, nil
}

// ownHTTPS returns the URL of the HTTPS server at the host of an SSH origin.
func (o *Origin) ownHTTPS() *url.URL {
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(o.o.URL.Hostname(), "443")}
}

// CleanHeader returns the header fields that a server wants in requests, without those that belong to a connection or
// to ranges.
func CleanHeader(fields map[string]string) http.Header {
	h := make(http.Header, len(fields))
	for name, value := range fields {
		h.Set(name, value)
	}
	for _, name := range []string{"Connection", "Range", "If-Range", "Expect", "Accept-Encoding", "Te", "Upgrade"} {
		h.Del(name)
	}
	return h
}
