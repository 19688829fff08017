package githttp_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// callers is a gateway.Auth of functions. A Bearer token is the name of its caller.
type callers struct {
	may func(id auth.Identity, repo git.RepoPath, op auth.Operation) error
}

func (c callers) HTTP(r *http.Request) (auth.Identity, error) {
	switch name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); {
	case name == "wrong":
		return auth.Identity{}, fault.New(fault.Unauthenticated, "wrong")
	case name == "guesser":
		return auth.Identity{}, fault.Retry(fault.Exhausted, 7*time.Second, "too many")
	case name == "down":
		return auth.Identity{}, fault.Retry(fault.Unavailable, 3*time.Second, "down")
	case ok:
		return auth.Identity{Name: name, By: auth.ByToken}, nil
	}
	if user, name, _ := r.BasicAuth(); user == "session" {
		return auth.Identity{Name: name, By: auth.ByToken}, nil
	}
	return auth.Identity{}, nil
}

func (c callers) May(_ context.Context, id auth.Identity, repo git.RepoPath, op auth.Operation) error {
	return c.may(id, repo, op)
}

func (c callers) Configured() bool { return true }

func (callers) RefRules(context.Context, auth.Identity, git.RepoPath) (node.RefRules, error) {
	return node.RefRules{}, nil
}

func (c callers) Reader(_ context.Context, id auth.Identity) func([]git.RepoPath) ([]bool, bool) {
	return func(repos []git.RepoPath) (may []bool, whole bool) {
		for _, repo := range repos {
			may = append(may, c.may(id, repo, auth.Read) == nil)
		}
		return may, true
	}
}

// recorder is a node that knows one repository and notes what it is asked for.
type recorder struct {
	fakeNode
	mu    sync.Mutex
	asked []string
}

func (n *recorder) note(repo git.RepoPath, session node.Session) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, repo.String())
	if !session.Reachable {
		n.asked = append(n.asked, "a session that may want anything")
	}
	if repo.String() != "team/app" && repo.String() != "team/secret" {
		return fault.New(fault.NotFound, "no repository %s here", repo)
	}
	return nil
}

func (n *recorder) Advertise(ctx context.Context, repo git.RepoPath, s node.Session,
	r node.ResponseWriter) (node.Outcome, error) {
	if err := n.note(repo, s); err != nil {
		return node.Outcome{}, err
	}
	return n.fakeNode.Advertise(ctx, repo, s, r)
}

func (n *recorder) UploadPack(ctx context.Context, repo git.RepoPath, s node.Session, request io.Reader,
	r node.ResponseWriter) (node.Outcome, error) {
	if err := n.note(repo, s); err != nil {
		return node.Outcome{}, err
	}
	return n.fakeNode.UploadPack(ctx, repo, s, request, r)
}

func (n *recorder) ReceivePack(ctx context.Context, repo git.RepoPath, s node.Session, _ node.Pusher, request io.Reader,
	r node.ResponseWriter) (
	node.Outcome, error) {
	return n.UploadPack(ctx, repo, s, request, r)
}

// TestResponsesToRefusedCallers: each kind of refusal before a node is asked, in each request of a session.
func TestResponsesToRefusedCallers(t *testing.T) {
	t.Parallel()
	n := &recorder{fakeNode: fakeNode{advertise: advertise, serve: echo}}
	s := serve(t, n, options{auth: callers{func(id auth.Identity, _ git.RepoPath, op auth.Operation) error {
		switch {
		case id.Anonymous():
			return fault.New(fault.Unauthenticated, "say who you are")
		case op != auth.Read:
			return fault.New(fault.Denied, "not for you")
		}
		return nil
	}}})
	for _, request := range []string{
		"GET /team/app/info/refs?service=git-upload-pack HTTP/1.1\r\n",
		"GET /team/app/info/refs?service=git-receive-pack HTTP/1.1\r\n",
		"HEAD /team/app/info/refs?service=git-upload-pack HTTP/1.1\r\n",
		"POST /team/app/git-upload-pack HTTP/1.1\r\nContent-Type: " +
			"application/x-git-upload-pack-request\r\nContent-Length: 0\r\n",
		"POST /team/app/git-receive-pack HTTP/1.1\r\nContent-Type: " +
			"application/x-git-receive-pack-request\r\nContent-Length: 0\r\n",
	} {
		for who, want := range map[string]struct {
			status            int
			challenge, cached string
			after             string
		}{
			"":        {401, `Basic realm="packhorse", charset="UTF-8"`, "no-store", ""},
			"wrong":   {401, `Basic realm="packhorse", charset="UTF-8"`, "no-store", ""},
			"guesser": {429, "", "no-cache, max-age=0, must-revalidate", "7"},
			"down":    {503, "", "no-cache, max-age=0, must-revalidate", "3"},
		} {
			header := "Host: h\r\nConnection: close\r\n"
			if who != "" {
				header += "Authorization: Bearer " + who + "\r\n"
			}
			c := s.dial()
			c.send(request + header + "\r\n")
			response, err := http.ReadResponse(c.r, &http.Request{Method: strings.Fields(request)[0]})
			if err != nil {
				t.Fatal(err)
			}
			h := response.Header
			if response.StatusCode != want.status || h.Get("WWW-Authenticate") != want.challenge ||
				h.Get("Cache-Control") != want.cached ||
				h.Get("Retry-After") != want.after || h.Get("Vary") != "Authorization" {
				t.Errorf("%q as %q: %s, %v", request, who, response.Status, h)
			}
		}
	}
	if len(n.asked) != 0 {
		t.Errorf("questions to the node = %q, want none", n.asked)
	}
	c := s.dial()
	c.send("GET /team/app/info/refs?service=git-receive-pack HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer alice\r\n\r\n")
	response, body, err := c.answer()
	if err != nil || response.StatusCode != 403 || body != "not for you\n" ||
		response.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("status = %s, body = %q, error = %v, want 403 without a challenge", response.Status, body, err)
	}
}

// TestHiddenRepositories requests repositories that are hidden from the caller. The node is asked for a name that
// cannot exist, so that its answer is the same, byte for byte, as for a missing repository.
func TestHiddenRepositories(t *testing.T) {
	t.Parallel()
	n := &recorder{fakeNode: fakeNode{advertise: advertise, serve: echo}}
	s := serve(t, n, options{auth: callers{func(_ auth.Identity, repo git.RepoPath, _ auth.Operation) error {
		if repo.String() == "team/secret" {
			return auth.NoRepository(repo)
		}
		return nil
	}}})
	get := func(text string) string {
		t.Helper()
		c := s.dial()
		c.send(text)
		response, body, err := c.answer()
		if err != nil {
			t.Fatal(err)
		}
		response.Header.Del("Date")
		var head strings.Builder
		response.Header.Write(&head)
		return response.Status + "\n" + head.String() + body
	}
	for _, request := range []string{
		"GET /team/NAME/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nGit-Protocol: " +
			"version=2\r\nAuthorization: Bearer bob\r\n\r\n",
		"GET /team/NAME/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer bob\r\n\r\n",
		"GET /team/NAME/info/refs?service=git-receive-pack HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer bob\r\n\r\n",
		strings.Replace(post("Content-Length: 24", "Authorization: Bearer bob"), "/repo/", "/team/NAME/", 1) + lsRefs,
		"POST /team/NAME/git-receive-pack HTTP/1.1\r\nHost: h\r\nContent-Type: " +
			"application/x-git-receive-pack-request\r\nAuthorization: Bearer bob\r\nContent-Length: 4\r\n\r\n0000",
		"POST /team/NAME/git-upload-pack HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nAuthorization: Bearer " +
			"bob\r\nContent-Length: 4\r\n\r\n0000",
	} {
		n.asked = nil
		hidden, missing := get(strings.Replace(request, "NAME", "secret", 1)),
			get(strings.Replace(request, "NAME", "nobody", 1))
		if strings.ReplaceAll(hidden, "secret", "nobody") != missing {
			t.Errorf("%q: hidden\n%s\nmissing\n%s", request, hidden, missing)
		}
		if strings.Contains(request, "text/plain") || strings.HasSuffix(request, "\r\n0000") && len(n.asked) == 0 {
			continue // before any node; an empty push is answered without one
		}
		if len(n.asked) != 2 || n.asked[0] != ".packhorse/absent/team/secret" || n.asked[1] != "team/nobody" {
			t.Errorf("%q: the node was asked for %q", request, n.asked)
		}
	}
	if !strings.Contains(s.log.String(), "repository=team/secret") ||
		!strings.Contains(s.log.String(), "hidden=true") || !strings.Contains(s.log.String(), "user=bob") {
		t.Errorf("log = %s, want the repository, hidden=true and bob", s.log)
	}
	if all := get("GET /team/app/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " +
		"bob\r\n\r\n"); !strings.HasPrefix(all, "200") {
		t.Error(all)
	}
}
