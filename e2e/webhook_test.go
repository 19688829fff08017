package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// hooked is the server of a webhook.
type hooked struct {
	mu   sync.Mutex
	told map[string]map[string]bool // by ref, what it was changed to
}

func (h *hooked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		Event   string
		Pusher  struct{ Name string }
		Updates []struct{ Ref, Old, New string }
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil || m.Pusher.Name != "alice" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for _, u := range m.Updates {
		if m.Event == "pre-receive" && u.Ref == "refs/heads/forbidden" {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintln(w, "not on Fridays")
			return
		}
	}
	if m.Event != "post-receive" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range m.Updates {
		if h.told[u.Ref] == nil {
			h.told[u.Ref] = map[string]bool{}
		}
		h.told[u.Ref][u.New] = true
	}
}

// TestWebhooks kills the server in the middle of pushes. The webhook gets a delivery for each push that a client got a
// success for. A webhook can also refuse a push, and the client sees its message.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	hook := &hooked{told: map[string]map[string]bool{}}
	listener := httptest.NewServer(hook)
	defer listener.Close()
	dir := t.TempDir()
	root, state, config := filepath.Join(dir, "repos"), filepath.Join(dir, "state"), filepath.Join(dir, "config.toml")
	served := gittest.InitAt(t, filepath.Join(root, "app.git"))
	text := fmt.Sprintf("[[webhook]]\nname = \"all\"\nurl = %q\nevents = [\"pre-receive\", "+
		"\"post-receive\"]\nallow_private = true\n", listener.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() *serverProcess {
		p, err := startServer(dir, os.Environ(), []string{
			"serve", "--config", config, "--root", root, "--state", state, "--http", "127.0.0.1:0", "--ops", "", "--log-format",
			"json",
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := start()
	defer func() { p.cmd.Process.Kill(); <-p.ended }()
	token := createToken(t, "alice", "--state", state)
	c := &pusher{Repo: gittest.Init(t), branch: "client", token: token}
	c.Git("update-ref", "refs/heads/main", c.Commit("first").String())
	for i := range 3 {
		url, killed := p.http, make(chan struct{})
		var pushing sync.WaitGroup
		pushing.Go(func() { c.pushUntil(url, killed) })
		time.Sleep(time.Duration(150+100*i) * time.Millisecond)
		p.cmd.Process.Kill()
		<-p.ended
		close(killed)
		pushing.Wait()
		now := ""
		if id, err := served.Try("rev-parse", "--verify", "-q", "refs/heads/client"); err == nil {
			now = strings.TrimSpace(id)
		}
		p = start()
		if now != "" && !gittest.Eventually(func() bool { return hook.knows("refs/heads/client", now) }) {
			t.Fatalf("the webhook got no delivery about %s, want one", now)
		}
	}
	if c.told != "" && !hook.knows("refs/heads/client", c.told) {
		t.Errorf("nobody was told of %s, which was pushed", c.told)
	}
	c.branch = "forbidden"
	if err := c.push(p.http, ""); err == nil || !strings.Contains(err.Error(), "remote: not on Fridays") {
		t.Errorf("a push that the webhook refuses: %v", err)
	}
}

func (h *hooked) knows(ref, id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.told[ref][id]
}
