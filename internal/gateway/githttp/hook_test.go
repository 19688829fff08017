package githttp_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// fakeHooks accepts webhooks of github with the secret "right".
type fakeHooks struct{ accepted []string }

func (h *fakeHooks) Accepts(forge string) bool { return forge == "github" }

func (h *fakeHooks) Receive(_ string, header http.Header, body func() ([]byte, error)) (repo git.RepoPath, err error) {
	if header.Get("Secret") != "right" {
		return repo, fault.New(fault.Denied, "wrong secret")
	}
	text, err := body()
	if err == nil {
		h.accepted = append(h.accepted, string(text))
	}
	return repo, err
}

func TestHook(t *testing.T) {
	t.Parallel()
	hooks := &fakeHooks{}
	s := serve(t, &fakeNode{}, options{hooks: hooks})
	for _, test := range []struct {
		method, path, secret, body string
		status                     int
	}{
		{"POST", "/-/hooks/github", "right", "payload", 202},
		{"POST", "/-/hooks/github", "wrong", "payload", 403},
		{"POST", "/-/hooks/github", "right", strings.Repeat("x", 1<<20+1), 400},
		{"GET", "/-/hooks/github", "right", "", 405},
		{"POST", "/-/hooks/other", "right", "payload", 404},
	} {
		c := s.dial()
		_, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: git.example\r\nSecret: %s\r\nContent-Length: %d\r\n\r\n%s",
			test.method, test.path, test.secret, len(test.body), test.body)
		if response, failed := http.ReadResponse(c.r, nil); errors.Join(err, failed) != nil ||
			response.StatusCode != test.status {
			t.Errorf("%s %s with the secret %q and %d bytes: %v, %v, want %d", test.method, test.path, test.secret,
				len(test.body), response, errors.Join(err, failed), test.status)
		}
	}
	if fmt.Sprint(hooks.accepted) != "[payload]" {
		t.Errorf("accepted %.100q, want [payload]", hooks.accepted)
	}
}

// Large webhooks take their memory from that of all requests, because anybody can send them. Small ones do not need it.
func TestHookMemory(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeNode{}, options{hooks: &fakeHooks{}, memory: 512 << 10})
	for _, test := range []struct {
		size   int
		body   string
		status int
	}{{60 << 10, strings.Repeat("x", 60<<10), 202}, {1 << 20, "", 400}} { // without reading the body
		c := s.dial()
		_, err := fmt.Fprintf(c, "POST /-/hooks/github HTTP/1.1\r\nHost: git.example\r\nSecret: right\r\n"+
			"Content-Length: %d\r\n\r\n%s", test.size, test.body)
		response, failed := http.ReadResponse(c.r, nil)
		if errors.Join(err, failed) != nil || response.StatusCode != test.status {
			t.Errorf("%d bytes: %v, %v, want %d", test.size, response, errors.Join(err, failed), test.status)
		}
	}
}
