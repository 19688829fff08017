package githttp_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
)

// corsServer has a repository that alice may read, and one that is busy for her.
func corsServer(t *testing.T, origins ...string) *server {
	t.Helper()
	n := &fakeNode{advertise: advertise, serve: echo}
	return serve(t, n, options{corsOrigins: origins, auth: callers{
		may: func(id auth.Identity, repo git.RepoPath, op auth.Operation) error {
			switch {
			case id.Anonymous():
				return fault.New(fault.Unauthenticated, "who are you?")
			case op > auth.Read:
				return fault.New(fault.Denied, "read only")
			case repo.String() == "busy":
				return fault.Retry(fault.Exhausted, time.Second, "busy")
			case repo.String() != "app":
				return fault.New(fault.NotFound, "no such repository")
			}
			return nil
		}}})
}

// from sends a request of a script of an origin.
func (s *server) from(origin, request string, headers ...string) *http.Response {
	s.t.Helper()
	c := s.dial()
	if origin != "" {
		headers = append(headers, "Origin: "+origin)
	}
	c.send(request + " HTTP/1.1\r\nHost: git.example\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n")
	response, body, err := c.answer()
	if err != nil {
		s.t.Fatalf("%s: %q, %v", request, body, err)
	}
	return response
}

const (
	ide       = "https://ide.example"
	preflight = "Access-Control-Request-Method: POST"
)

func TestPreflights(t *testing.T) {
	t.Parallel()
	none, listed, all := corsServer(t), corsServer(t, "https://other.example", ide), corsServer(t, "*")
	for _, test := range []struct {
		server          *server
		origin, path    string
		status          int
		allowed, method string
	}{
		{listed, ide, "/app/info/refs?service=git-upload-pack", 204, ide, "GET"},
		{listed, ide, "/app/git-upload-pack", 204, ide, "POST"},
		{listed, ide, "/app.git/git-receive-pack", 204, ide, "POST"},
		{listed, ide, "/no/such/git-upload-pack", 204, ide, "POST"},
		{listed, ide, "/app/info/lfs/objects/batch", 204, ide, "PUT"},
		{all, ide, "/app/git-upload-pack", 204, "*", "POST"},
		{all, "null", "/app/git-upload-pack", 204, "*", "POST"},
		{none, ide, "/app/git-upload-pack", 405, "", ""},
		{listed, "https://ide.example.evil", "/app/git-upload-pack", 405, "", ""},
		{listed, "http://ide.example", "/app/git-upload-pack", 405, "", ""},
		{listed, "null", "/app/git-upload-pack", 405, "", ""},
		{listed, "", "/app/git-upload-pack", 405, "", ""},
		{listed, ide, "/-/api/v1/wait", 405, "", ""},
		{listed, ide, "/-/x/info/refs", 404, "", ""},
		{listed, ide, "/app", 404, "", ""},
		{listed, ide, "/", 404, "", ""},
	} {
		response := test.server.from(test.origin, "OPTIONS "+test.path, preflight)
		h := response.Header
		if response.StatusCode != test.status || h.Get("Access-Control-Allow-Origin") != test.allowed ||
			!strings.Contains(h.Get("Access-Control-Allow-Methods"), test.method) {
			t.Errorf("OPTIONS %s from %q: %s, %v, want %d, origin %q and method %q", test.path, test.origin, response.Status,
				h, test.status, test.allowed, test.method)
		}
		if (h.Get("Access-Control-Allow-Credentials") == "true") != (test.allowed == ide) {
			t.Errorf("OPTIONS %s from %q: %v, want credentials for a listed origin only", test.path, test.origin, h)
		}
		for _, name := range []string{"Authorization", "Content-Type", "Git-Protocol", "Accept"} {
			if test.status == 204 && !strings.Contains(h.Get("Access-Control-Allow-Headers"), name) {
				t.Errorf("OPTIONS %s: %v, want %s allowed", test.path, h, name)
			}
		}
	}
	if response := listed.from(ide, "OPTIONS /app/git-upload-pack"); response.StatusCode != 405 {
		t.Errorf("OPTIONS that is no preflight: %s, want 405", response.Status)
	}
}

// TestCORS checks that scripts can read all responses to Git's requests, errors included, and no others.
func TestCORS(t *testing.T) {
	t.Parallel()
	listed, all := corsServer(t, ide), corsServer(t, "*")
	const alice = "Authorization: Bearer alice"
	for _, test := range []struct {
		request, authorization string
		status                 int
	}{
		{"GET /app/info/refs?service=git-upload-pack", alice, 200},
		{"GET /app/info/refs?service=git-upload-pack", "X: ", 401},
		{"GET /app/info/refs?service=git-upload-pack", "Authorization: Bearer guesser", 429},
		{"GET /app/info/refs?service=git-receive-pack", alice, 403},
		{"GET /busy/info/refs?service=git-upload-pack", alice, 429},
		{"GET /no%20such/info/refs?service=git-upload-pack", "X: ", 401},
		{"GET /../info/refs?service=git-upload-pack", alice, 404},
		{"GET /app/git-upload-pack", alice, 405},
		{"GET /app/info/lfs/locks", alice, 404},
	} {
		response := listed.from(ide, test.request, test.authorization)
		h := response.Header
		if response.StatusCode != test.status || h.Get("Access-Control-Allow-Origin") != ide ||
			h.Get("Access-Control-Allow-Credentials") != "true" ||
			!strings.Contains(h.Get("Access-Control-Expose-Headers"), "WWW-Authenticate") ||
			!strings.Contains(fmt.Sprint(h["Vary"]), "Origin") {
			t.Errorf("%s, %s: %s, %v, want %d with the headers of CORS", test.request, test.authorization,
				response.Status, h, test.status)
		}
		h = all.from(ide, test.request, test.authorization).Header
		if h.Get("Access-Control-Allow-Origin") != "*" || h["Access-Control-Allow-Credentials"] != nil {
			t.Errorf("%s, all origins: %v, want * without credentials", test.request, h)
		}
		h = listed.from("https://evil.example", test.request, test.authorization).Header
		if h["Access-Control-Allow-Origin"] != nil || !strings.Contains(fmt.Sprint(h["Vary"]), "Origin") {
			t.Errorf("%s from another origin: %v, want nothing allowed, and Vary: Origin", test.request, h)
		}
	}
	for _, path := range []string{"/", "/-/api/v1/wait?repo=app", "/app", "/app/HEAD"} {
		if h := listed.from(ide, "GET "+path, alice).Header; h["Access-Control-Allow-Origin"] != nil || h["Vary"] != nil &&
			strings.Contains(fmt.Sprint(h["Vary"]), "Origin") {
			t.Errorf("GET %s: %v, want no header of CORS", path, h)
		}
	}
}
