package origin

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
)

// lfsHost is an SSH server, and the LFS server that it names.
type lfsHost struct {
	*sshServer
	web    *httptest.Server
	status atomic.Int32

	mu   sync.Mutex
	seen []string // "PATH Authorization"
}

func newLFSHost(t *testing.T) *lfsHost {
	h := &lfsHost{sshServer: newSSHServer(t)}
	h.status.Store(http.StatusOK)
	h.web = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.seen = append(h.seen, r.URL.Path+" "+r.Header.Get("Authorization")+r.Header.Get("Range"))
		w.WriteHeader(int(h.status.Load()))
	}))
	t.Cleanup(h.web.Close)
	h.answers(h.web.URL+"/team/game.git/info/lfs", `"expires_in": 600`)
	return h
}

// answers sets the output of git-lfs-authenticate.
func (h *lfsHost) answers(href, more string) {
	h.run.Store(fmt.Sprintf(`echo '{"href": %q, "header": {"Authorization": "RemoteAuth own", "Range": "x"}, %s}'`, href,
		more))
}

func (h *lfsHost) client(change ...func(*Options)) *Origin {
	roots := x509.NewCertPool()
	roots.AddCert(h.web.Certificate())
	return h.origin(append([]func(*Options){func(o *Options) {
		o.Authorities, o.Hosts = roots, []string{h.web.Listener.Addr().String()}
	}}, change...)...)
}

// batch sends a request of the API as a caller with a credential.
func (h *lfsHost) batch(o *Origin) error {
	r, err := o.Do(h.t.Context(), Request{Operation: OperationAPI, Path: "team/game.git",
		Suffix: "/info/lfs/objects/batch", Method: http.MethodPost, Header: http.Header{},
		Auth: node.NewSecret("Basic caller"), Body: strings.NewReader("{}"), Length: 2})
	if err == nil {
		r.Body.Close()
	}
	return err
}

// expect checks the requests since the last call, and the number of logins so far.
func (h *lfsHost) expect(logins int32, want ...string) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := fmt.Sprint(h.seen); got != fmt.Sprint(want) {
		h.t.Errorf("requests = %s, want %s", got, want)
	}
	if got := h.sessions.Load(); got != logins {
		h.t.Errorf("logins = %d, want %d", got, logins)
	}
	h.seen = nil
}

func TestLFSOverSSH(t *testing.T) {
	t.Parallel()
	const api = "/team/game.git/info/lfs/objects/batch RemoteAuth own"
	h := newLFSHost(t)
	o := h.client()
	for range 2 { // one login
		if err := h.batch(o); err != nil {
			t.Fatalf("Do() error = %v, want none", err)
		}
	}
	h.expect(1, api, api)
	if want := fmt.Sprintf("git-lfs-authenticate '%s/team/game.git' download", h.root); h.commands[0] != want {
		t.Errorf("command = %q, want %q", h.commands[0], want)
	}
	u, _ := url.Parse(h.web.URL + "/object")
	r, err := o.Do(t.Context(), Request{Operation: OperationDownload, Path: "team/game.git", URL: u,
		Method: http.MethodGet, Header: http.Header{"Authorization": {"of the action"}},
		Auth: node.NewSecret("Basic caller")})
	if err != nil {
		t.Fatalf("Do() of a download: error = %v, want none", err)
	}
	r.Body.Close()
	h.expect(1, "/object of the action")

	_, err = o.Do(t.Context(), Request{Operation: OperationAPI, Path: "team/game.git", Suffix: "/info/lfs/locks",
		Method: http.MethodPost, Header: http.Header{}, Writes: true})
	if !fault.Is(err, fault.Denied) {
		t.Errorf("Do() of a request that writes = %v, want a denial", err)
	}
	h.status.Store(http.StatusUnauthorized) // the login was revoked
	if err := h.batch(o); !fault.Is(err, fault.Unavailable) || IsDown(err) {
		t.Errorf("Do() with a revoked login = %v, want unavailable, but no outage", err)
	}
	h.status.Store(http.StatusOK)
	h.answers(h.web.URL+"/team/game.git/info/lfs", `"expires_in": 5`)
	for range 2 { // it expires too soon to be kept
		if err := h.batch(o); err != nil {
			t.Errorf("Do() with a new login: error = %v, want none", err)
		}
	}
	h.expect(3, api, api, api)
}

func TestLFSOverSSHRefused(t *testing.T) {
	t.Parallel()
	h := newLFSHost(t)
	for _, c := range []struct {
		run  string // "": as it is
		href string
		kind fault.Kind
		text string
	}{
		{"", "https://other.example.com/info/lfs", fault.Denied, "lfs_hosts"},
		{"", "http://" + h.web.Listener.Addr().String() + "/info/lfs", fault.Unavailable, "not allowed"},
		{"", "https://user:password@" + h.web.Listener.Addr().String() + "/", fault.Unavailable, "not allowed"},
		{"echo hello", "", fault.Unavailable, "invalid answer"},
		{"echo 'sh: git-lfs-authenticate: not found' >&2; exit 127", "", fault.Unavailable, "no LFS server"},
		{"echo 'Unknown git command' >&2; exit 1", "", fault.Unavailable, "no LFS server"},
		{"echo 'repository not found' >&2; exit 1", "", fault.NotFound, "no such repository"},
	} {
		h.answers(c.href, `"expires_in": 600`)
		if c.run != "" {
			h.run.Store(c.run)
		}
		err := h.batch(h.client())
		if !fault.Is(err, c.kind) || !strings.Contains(fault.Message(err), c.text) || IsDown(err) {
			t.Errorf("Do() after %q %q = %v, want %v with %q", c.run, c.href, err, c.kind, c.text)
		}
	}
	h.expect(7)
}

func TestCheckHostOfSSHOrigin(t *testing.T) {
	t.Parallel()
	o := newSSHServer(t).origin(func(o *Options) { o.URL.Host = "git.example.com:2222" })
	login, err := o.parseLogin([]byte("{}"), "game.git", time.Unix(0, 0))
	if want := "https://git.example.com:443" + o.base + "game.git/info/lfs"; err != nil || login.url.String() != want {
		t.Errorf("parseLogin() without a URL = %+v, error %v, want %s", login, err, want)
	}
	for target, want := range map[string]bool{
		"https://git.example.com/a":      true,
		"https://GIT.example.com:443/a":  true,
		"https://git.example.com:2222/a": false,
		"http://git.example.com/a":       false,
		"ssh://git.example.com:2222/a":   false,
		"https://x.git.example.com/a":    false,
	} {
		u, _ := url.Parse(target)
		if err := o.CheckHost(u); (err == nil) != want {
			t.Errorf("CheckHost(%s) = %v, want allowed: %t", target, err, want)
		}
	}
}
