package githttp_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/git"
)

// knownMayRead permits identified callers to read repositories that are not hidden.
func knownMayRead(id auth.Identity, repo git.RepoPath, _ auth.Operation) error {
	switch name := strings.TrimSuffix(repo.String(), ".git"); {
	case id.Anonymous() && name != "open":
		return fault.New(fault.Unauthenticated, "say who you are")
	case name == "team/secret":
		return auth.NoRepository(repo)
	}
	return nil
}

// TestPrivatePagesAreNotStored checks the cache headers of answers to identified callers: caches and browsers must not
// store them. Answers to Git have the headers of git http-backend.
func TestPrivatePagesAreNotStored(t *testing.T) {
	t.Parallel()
	s := serve(t, &recorder{fakeNode: fakeNode{advertise: advertise, serve: echo}},
		options{auth: callers{knownMayRead}, pages: sitePages})
	const private, git = "private, no-store", "no-cache, max-age=0, must-revalidate"
	for target, want := range map[string][2]string{ // to alice, and to anybody
		"/-/search":           {private, git},
		"/-/api/v1/search":    {private, git},
		"/-/none":             {private, git},
		"/-/blob/team/secret": {private, "no-store"},
		"/team/app/info/refs?service=git-upload-pack": {git, "no-store"},
		"/team/app/info/lfs/objects/batch":            {git, "no-store"},
	} {
		for i, header := range []string{"Authorization: Bearer alice\r\n", ""} {
			c := s.dial()
			c.send("GET " + target + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + header + "\r\n")
			response, err := http.ReadResponse(c.r, nil)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if got := response.Header.Get("Cache-Control"); got != want[i] ||
				response.Header.Get("Vary") != "Authorization" {
				t.Errorf("%s with %q: %s, %v", target, header, response.Status, response.Header)
			}
		}
	}
}

// TestNoLFS: clients of Git LFS learn that there is none, in their own words, and nothing of repositories that they may
// not read.
func TestNoLFS(t *testing.T) {
	t.Parallel()
	n := &recorder{fakeNode: fakeNode{advertise: advertise, serve: echo}}
	s := serve(t, n, options{auth: callers{knownMayRead}})
	for _, path := range []string{"/info/lfs/locks/verify", "/info/lfs/objects/batch", "/info/lfs/locks"} {
		for _, test := range []struct {
			repo, who string
			status    int
			message   string
		}{
			{"open", "", 404, "Git LFS is not supported by this server"},
			{"team/app", "", 401, "say who you are"},
			{"team/app", "wrong", 401, "wrong"},
			{"team/app", "down", 503, "down"},
			{"team/app", "alice", 404, "Git LFS is not supported by this server"},
			{"team/secret", "alice", 404, "Git LFS is not supported by this server"},
			{"none", "alice", 404, "Git LFS is not supported by this server"},
		} {
			header := ""
			if test.who != "" {
				header = "Authorization: Bearer " + test.who + "\r\n"
			}
			c := s.dial()
			c.send("POST /" + test.repo + ".git" + path +
				" HTTP/1.1\r\nHost: h\r\nContent-Type: application/vnd.git-lfs+json\r\nContent-Length: 2\r\n" + header +
				"\r\n{}")
			response, body, err := c.answer()
			if err != nil {
				t.Fatal(err)
			}
			var document map[string]string
			if err := json.Unmarshal([]byte(body), &document); err != nil || document["message"] != test.message ||
				!strings.HasPrefix(document["documentation_url"], "https://") {
				t.Errorf("%s as %q: %q, %v", path, test.who, body, err)
			}
			h := response.Header
			if response.StatusCode != test.status || h.Get("Content-Type") != "application/vnd.git-lfs+json" ||
				(test.status == 401) != strings.HasPrefix(h.Get("LFS-Authenticate"), "Basic realm=") ||
				h.Get("LFS-Authenticate") != h.Get("WWW-Authenticate") {
				t.Errorf("%s of %s as %q: %s, %v", path, test.repo, test.who, response.Status, h)
			}
		}
	}
	if len(n.asked) != 0 {
		t.Errorf("questions to a node = %q, want none", n.asked)
	}
}
