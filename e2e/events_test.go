package e2e

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// askEvents sends a request for events. With isStream it is for a stream.
func askEvents(t *testing.T, url, token, after string, isStream bool) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/-/api/v1/events?after="+after, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth("x", token)
	if isStream {
		r.Header.Set("Accept", "application/jsonl")
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// A stream of events ends when the token of its caller is revoked. A caller cannot take the streams of others. Refs
// that are hidden later are left out.
func TestEventStreams(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, state := filepath.Join(dir, "repos"), filepath.Join(dir, "state")
	gittest.InitAt(t, filepath.Join(root, "app.git"))
	p, err := startServer(dir, os.Environ(), []string{"serve", "--root", root, "--state", state, "--http", "127.0.0.1:0",
		"--ops", "", "--log-format", "json"})
	if err != nil {
		t.Fatal(err)
	}
	defer killAll(t, p)
	alice, bob := createToken(t, "alice", "--state", state), createToken(t, "bob", "--state", state)
	c := &pusher{Repo: gittest.Init(t), branch: "first", token: alice}
	c.Git("update-ref", "refs/heads/main", c.Commit("first").String())
	stream := askEvents(t, p.http, alice, "now", true)
	if err := c.push(p.http, ""); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stream.Body)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "refs/heads/first") {
		t.Fatalf("the stream has %q, %v, want the push", line, err)
	}
	for range 9 {
		if r := askEvents(t, p.http, alice, "now", true); r.StatusCode != http.StatusOK {
			t.Fatalf("status %d of a stream", r.StatusCode)
		}
	}
	refused := askEvents(t, p.http, alice, "now", true)
	text, _ := io.ReadAll(refused.Body)
	if refused.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(text), "a caller has at most 10") {
		t.Errorf("the 11th stream: %d %s", refused.StatusCode, text)
	}
	if r := askEvents(t, p.http, bob, "now", true); r.StatusCode != http.StatusOK {
		t.Errorf("status %d of a stream of another caller", r.StatusCode)
	}
	c.branch = "second"
	if err := c.push(p.http, ""); err != nil {
		t.Fatal(err)
	}
	runPackhorse(t, "", "repo", "set", "app", "--hide", "refs/heads/first", "--root", root, "--state", state)
	text, _ = io.ReadAll(askEvents(t, p.http, bob, "", false).Body)
	if strings.Contains(string(text), "refs/heads/first") || !strings.Contains(string(text), "refs/heads/second") {
		t.Errorf("the events of a repository with a hidden ref: %s", text)
	}
	runPackhorse(t, "", "token", "revoke", "alice", "--state", state)
	rest, err := io.ReadAll(lines)
	if err == nil || !strings.Contains(string(rest), `{"error":{"kind":"unauthenticated"`) {
		t.Errorf("the stream after the revocation: %s, %v", rest, err)
	}
}
