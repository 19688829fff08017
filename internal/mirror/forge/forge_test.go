package forge

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

const secret = "correct horse battery"

func mac(body, key string) string {
	sum := hmac.New(sha256.New, []byte(key))
	sum.Write([]byte(body))
	return hex.EncodeToString(sum.Sum(nil))
}

// sign returns the header of a delivery.
func sign(k Kind, id, body, key string) http.Header {
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	switch k {
	case GitHub:
		h.Set("X-Hub-Signature-256", "sha256="+mac(body, key))
		h.Set("X-GitHub-Delivery", id)
	case GitLab:
		h.Set("X-Gitlab-Token", key)
		h.Set("Idempotency-Key", id)
	case Gitea:
		h.Set("X-Gitea-Signature", mac(body, key))
		h.Set("X-Gitea-Delivery", id)
	case Forgejo:
		h.Set("X-Forgejo-Signature", mac(body, key))
		h.Set("X-Forgejo-Delivery", id)
	case Bitbucket:
		h.Set("X-Hub-Signature", "sha256="+mac(body, key))
		h.Set("X-Request-UUID", id)
	}
	return h
}

func reader(body string) func() ([]byte, error) {
	return func() ([]byte, error) { return []byte(body), nil }
}

// newReceiver returns a receiver for the mirrors below host, and the channel of its refreshes.
func newReceiver(t *testing.T) (*Receiver, <-chan string) {
	refreshed := make(chan string, 100)
	r := NewReceiver(Options{Log: slog.New(slog.DiscardHandler),
		Refresh: func(_ context.Context, repo git.RepoPath) error {
			refreshed <- repo.String()
			return nil
		}})
	t.Cleanup(r.Close)
	r.SetTables([]Table{
		{Secret: func() string { return "the secret of another table" }, Prefix: "other"},
		{Secret: func() string { return secret }, Prefix: "host"},
	})
	return r, refreshed
}

// payloads are the bodies of pushes, shortened, with the first path that they name.
var payloads = []struct {
	kind       Kind
	body, want string
}{
	{GitHub, `{"ref":"refs/heads/main","repository":{"full_name":"octo/app","owner":{"login":"octo"},` +
		`"clone_url":"https://github.com/octo/app.git"}}`, "octo/app"},
	{GitLab, `{"object_kind":"push","project":{"git_http_url":"https://gitlab.example.com/group/sub/app.git",` +
		`"path_with_namespace":"group/sub/app"},"repository":{"name":"app"}}`, "group/sub/app"},
	{Gitea, `{"ref":"refs/tags/v1","repository":{"full_name":"team/app",` +
		`"clone_url":"https://example.com/team/app.git"}}`, "team/app"},
	{Forgejo, `{"repository":{"full_name":"team/app"}}`, "team/app"},
	{Bitbucket, `{"push":{"changes":[]},"repository":{"full_name":"space/app","project":{"key":"P"},` +
		`"links":{"html":{"href":"https://bitbucket.org/space/app"}}}}`, "space/app"},
	{Bitbucket, `{"eventKey":"repo:refs_changed","repository":{"slug":"app","project":{"key":"PROJ"},` +
		`"links":{"self":[{"href":"https://example.com"}]}}}`, "scm/PROJ/app"},
}

func TestReceive(t *testing.T) {
	t.Parallel()
	for _, p := range payloads {
		r, refreshed := newReceiver(t)
		repo, err := r.Receive(string(p.kind), sign(p.kind, "1", p.body, secret), reader(p.body))
		if err != nil {
			t.Errorf("%s: %v, want the delivery to be accepted", p.kind, err)
			continue
		}
		if got := <-refreshed; got != "host/"+p.want {
			t.Errorf("%s: refreshed %s, want host/%s", p.kind, got, p.want)
		}
		if !strings.HasPrefix(repo.String(), "host/") {
			t.Errorf("%s: repository %q, want the one of the delivery", p.kind, repo)
		}
	}
}

func TestForm(t *testing.T) {
	t.Parallel()
	r, refreshed := newReceiver(t)
	body := "payload=" + url.QueryEscape(payloads[0].body)
	h := sign(GitHub, "1", body, secret)
	h.Set("Content-Type", "application/x-www-form-urlencoded")
	if _, err := r.Receive("github", h, reader(body)); err != nil {
		t.Fatal(err)
	}
	if got := <-refreshed; got != "host/octo/app" {
		t.Errorf("refreshed %s, want host/octo/app", got)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	unread := func() ([]byte, error) {
		t.Error("the body of a delivery without a proof was read")
		return nil, io.EOF
	}
	for _, p := range payloads {
		for _, test := range []struct {
			name string
			h    http.Header
			body func() ([]byte, error)
			want fault.Kind
		}{
			{"unsigned", http.Header{}, unread, fault.Unauthenticated},
			{"wrong", sign(p.kind, "1", p.body, "another secret"), reader(p.body), fault.Unauthenticated},
			{"not JSON", sign(p.kind, "1", "{", secret), reader("{"), fault.Invalid},
			{"too large", sign(p.kind, "1", p.body, secret), func() ([]byte, error) {
				return nil, fault.New(fault.Invalid, "too large")
			}, fault.Invalid},
		} {
			r, refreshed := newReceiver(t)
			_, err := r.Receive(string(p.kind), test.h, test.body)
			if !fault.Is(err, test.want) || len(refreshed) > 0 {
				t.Errorf("%s, %s: %v and %d refreshes, want %v and none", p.kind, test.name, err, len(refreshed), test.want)
			}
		}
		if p.kind != GitLab { // whose token does not depend on the body
			r, _ := newReceiver(t)
			if _, err := r.Receive(string(p.kind), sign(p.kind, "1", p.body, secret), reader(p.body+" ")); !fault.Is(err,
				fault.Unauthenticated) {
				t.Errorf("%s with a changed body: %v, want %v", p.kind, err, fault.Unauthenticated)
			}
		}
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, refreshed := newReceiver(t)
		p := payloads[0]
		send := func(id string) int {
			if _, err := r.Receive(string(p.kind), sign(p.kind, id, p.body, secret), reader(p.body)); err != nil {
				t.Errorf("delivery %s: %v, want none", id, err)
			}
			synctest.Wait()
			return len(refreshed)
		}
		got := []int{send("1"), send("1"), send("2"), send("1")}
		time.Sleep(replayWindow)
		if got = append(got, send("1")); !slices.Equal(got, []int{1, 1, 2, 2, 3}) {
			t.Errorf("got %v refreshes after each delivery, want [1 1 2 2 3]", got)
		}
	})
}

// TestMany sends 10,000 deliveries of one repository at once. One refresh runs, and one more for the others.
func TestMany(t *testing.T) {
	t.Parallel()
	var refreshes, concurrent atomic.Int32
	started, proceed := make(chan bool, 10), make(chan bool)
	r := NewReceiver(Options{Log: slog.New(slog.DiscardHandler),
		Refresh: func(context.Context, git.RepoPath) error {
			refreshes.Add(1)
			if concurrent.Add(1) > 1 {
				t.Error("two refreshes of a repository at once, want one")
			}
			defer concurrent.Add(-1)
			started <- true
			<-proceed
			return nil
		}})
	r.SetTables([]Table{{Secret: func() string { return secret }, Prefix: "host"}})
	body := payloads[0].body
	h := sign(GitHub, "", body, secret)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for range 1000 {
				if _, err := r.Receive("github", h, reader(body)); err != nil {
					t.Errorf("got %v, want the delivery to be accepted", err)
				}
			}
		})
	}
	all.Wait()
	close(proceed)
	<-started
	<-started
	r.work.Wait()
	r.Close()
	if n := refreshes.Load(); n != 2 {
		t.Errorf("%d refreshes, want 2", n)
	}
}

func TestBoundedQueue(t *testing.T) {
	t.Parallel()
	r := NewReceiver(Options{Log: slog.New(slog.DiscardHandler),
		Refresh: func(ctx context.Context, _ git.RepoPath) error {
			<-ctx.Done()
			return ctx.Err()
		}})
	defer r.Close()
	for i := range maxPending + 1 {
		path, err := git.ParseRepoPath("host/" + strings.Repeat("a/", i%100) + mac("", string(rune(i))))
		if err != nil {
			t.Fatal(err)
		}
		if ok := r.enqueue(path); ok != (i < maxPending) {
			t.Fatalf("enqueue of repository %d = %v", i, ok)
		}
	}
	r.SetTables([]Table{{Secret: func() string { return secret }, Prefix: "host"}})
	body := payloads[0].body
	h := sign(GitHub, "1", body, secret)
	for range 2 { // the forge repeats what was refused
		if _, err := r.Receive("github", h, reader(body)); !fault.Is(err, fault.Exhausted) {
			t.Errorf("Receive = %v, want Exhausted", err)
		}
	}
}

func TestTablePath(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		table        Table
		origin, want string
	}{
		{Table{Prefix: "host"}, "team/app", "host/team/app"},
		{Table{Prefix: "host", Base: "forge"}, "forge/team/app", "host/team/app"},
		{Table{Prefix: "host", Base: "forge"}, "team/app", ""},
		{Table{Prefix: "host"}, "../app", ""},
		{Table{Prefix: "host"}, "a//b", ""},
	} {
		if got, _ := test.table.path(test.origin); got.String() != test.want {
			t.Errorf("path of %q in %+v: %q, want %q", test.origin, test.table, got, test.want)
		}
	}
}

func FuzzRepositories(f *testing.F) {
	for _, p := range payloads {
		f.Add(string(p.kind), []byte(p.body))
	}
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		found, err := Kind(kind).repositories("application/json", body)
		if err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("repositories(%q) = %v, want an error of kind Invalid", body, err)
		}
		if slices.Contains(found, "") || len(found) > 8 || !bytes.Contains(body, []byte(":")) && len(found) > 0 {
			t.Errorf("repositories(%q) = %q", body, found)
		}
	})
}
