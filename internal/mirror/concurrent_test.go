package mirror

import (
	"bytes"
	"crypto/rand"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// basicAuth returns the credential of a user with a password.
func basicAuth(password string) node.Secret {
	r := &http.Request{Header: http.Header{}}
	r.SetBasicAuth("user", password)
	return node.NewSecret(r.Header.Get("Authorization"))
}

// intercept has answer answer the POST requests for which it returns true.
func (h *host) intercept(answer func(w http.ResponseWriter, r *http.Request, body []byte) (done bool)) {
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		return answer(w, r, body)
	})
}

func isFetch(body []byte) bool { return commandOf(body) == protocol.CommandFetch }

// A mirror can be removed while an update runs and another one waits.
func TestRemoveDuringUpdate(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir())
	r := w.use("host/app")
	large(from)
	h.stall()
	results := make(chan error, 2)
	check := func() {
		result, err := r.check(t.Context(), node.Secret{}, true)
		if err == nil {
			err = result.Err
		}
		results <- err
	}
	go check()
	quarantined(t, w.root, "host/app")
	from.Git("update-ref", "refs/heads/more", "main")
	go check()
	gittest.WaitFor(t, "an update that waits", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.waiting != nil
	})
	removed := make(chan error, 1)
	go func() { removed <- w.Remove(t.Context(), w.path("host/app")) }()
	select {
	case err := <-removed:
		w.do(err)
	case <-time.After(20 * time.Second):
		t.Fatal("Remove does not return")
	}
	for range 2 {
		if err := <-results; err == nil {
			t.Error("check of a removed mirror succeeded, want an error")
		}
	}
	if _, err := os.Stat(r.dir); err == nil {
		t.Error("a removed mirror still exists")
	}
}

// The origin refuses a pack to the caller whose credential an update has. Others that wait for it are not refused.
func TestRefusedUpdateIsNotShared(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir())
	r := w.use("host/app")
	from.Git("update-ref", "refs/heads/main", from.Commit("second", from.ID("main")).String())
	arrived, answer := make(chan struct{}, 10), make(chan struct{})
	h.intercept(func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		if _, password, _ := r.BasicAuth(); password != "expired" || !isFetch(body) {
			return false
		}
		arrived <- struct{}{}
		<-answer
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	check := func(password string) chan error {
		result := make(chan error, 1)
		go func() {
			_, err := r.check(t.Context(), basicAuth(password), true)
			result <- err
		}()
		return result
	}
	expired := check("expired")
	<-arrived
	r.mu.Lock()
	first := r.last
	r.mu.Unlock()
	good := check("good")
	gittest.WaitFor(t, "a second caller", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.last != first && r.last.ended()
	})
	close(answer)
	if err := <-expired; !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("check with an expired credential: %v, want Unauthenticated", err)
	}
	w.do(<-good)
	w.same("host/app", from)
	if r.last.update == nil || !r.last.update.auth.IsZero() || !first.update.auth.IsZero() {
		t.Error("an update that has ended still has a credential")
	}
}

// An update that failed is tried again long before the window of its check ends.
func TestFailedUpdateIsTriedAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir(), func(r *Rule) { r.Fresh.Every = time.Hour })
	r := w.use("host/app")
	from.Git("update-ref", "refs/heads/main", from.Commit("second", from.ID("main")).String())
	var failed atomic.Bool
	h.intercept(func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
		if !isFetch(body) || failed.Swap(true) {
			return false
		}
		w.WriteHeader(http.StatusInternalServerError)
		return true
	})
	if result, err := r.check(t.Context(), node.Secret{}, true); err != nil || result.Err == nil {
		t.Errorf("check = %+v, %v, want a state with an error", result, err)
	}
	w.later(time.Minute)
	if result, err := r.check(t.Context(), node.Secret{}, false); err != nil || result.Err != nil {
		t.Errorf("check a minute later = %+v, %v, want a current state", result, err)
	}
	w.same("host/app", from)
}

// A changed rule applies even if a check by the earlier one was running, and a check goes on if no rule covers the
// mirror any more.
func TestRulesChangeDuringCheck(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir(), func(r *Rule) { r.Fresh.Every = time.Hour })
	r := w.use("host/app")
	from.Git("update-ref", "refs/notes/x", "main")
	during := func(change func()) {
		t.Helper()
		arrived, answer := make(chan struct{}, 1), make(chan struct{})
		var once atomic.Bool
		h.intercept(func(http.ResponseWriter, *http.Request, []byte) bool {
			if !once.Swap(true) {
				arrived <- struct{}{}
				<-answer
			}
			return false
		})
		from.Git("update-ref", "refs/heads/"+from.ID("main").String()[:9], "main")
		from.Git("update-ref", "refs/heads/main", from.Commit("next", from.ID("main")).String())
		result := make(chan error, 1)
		go func() {
			_, err := r.check(t.Context(), node.Secret{}, true)
			result <- err
		}()
		<-arrived
		change()
		close(answer)
		w.do(<-result)
	}
	rule := w.rule
	rule.Refs = []string{"refs/heads/*", "refs/notes/x"}
	during(func() {
		w.do(w.SetRules([]Rule{rule}))
		_, err := w.open(t.Context(), w.path("host/app"), node.Secret{})
		w.do(err)
	})
	_, err := r.check(t.Context(), node.Secret{}, false)
	w.do(err)
	w.same("host/app", from)
	during(func() {
		w.do(w.SetRules(nil))
		list, err := w.List(t.Context(), "")
		w.do(err)
		if len(list.Mirrors) != 1 || !list.Mirrors[0].Orphan {
			t.Errorf("List = %+v, want one mirror without a rule", list)
		}
	})
	session := node.Session{Service: protocol.ReceivePack, Stateless: true}
	if _, err := w.Node().Advertise(t.Context(), r.path, session, newClient()); !fault.Is(err, fault.NotFound) {
		t.Errorf("push to a mirror without a rule: %v, want NotFound", err)
	}
}

// If the origin does not decide about callers, their credentials are for another server.
func TestForeignCredentialIsNotSent(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir())
	var sent atomic.Bool
	h.set(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "" {
			sent.Store(true)
		}
		return false
	})
	session := node.Session{Version: protocol.V2, Stateless: true, Authorization: basicAuth("secret")}
	if _, err := w.Node().Advertise(t.Context(), w.path("host/app"), session, newClient()); err != nil || sent.Load() {
		t.Errorf("Advertise: %v, credential sent = %v, want false", err, sent.Load())
	}
	session.Service = protocol.ReceivePack
	w.rule.PushToOrigin = true
	w.do(w.SetRules([]Rule{w.rule}))
	if _, err := w.Node().Advertise(t.Context(), w.path("host/app"), session, newClient()); !fault.Is(err, fault.Denied) {
		t.Errorf("Advertise for a push: %v, want Denied", err)
	}
}

// A request that names a ref gets its new value, even if the update takes long.
func TestRefInWantDuringUpdate(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	from.Git("config", "uploadpack.allowRefInWant", "true")
	w := newWorld(t, h, t.TempDir())
	w.use("host/app")
	w.updateWait = time.Second
	pushed := from.Commit("second", from.ID("main"))
	from.Git("update-ref", "refs/heads/main", pushed.String())
	ended := make(chan struct{})
	defer close(ended)
	h.intercept(func(_ http.ResponseWriter, _ *http.Request, body []byte) bool {
		if isFetch(body) && !namesRefs(body) {
			<-ended
		}
		return false
	})
	w.later(2 * time.Second)
	_, got := w.request(w.serve()+"app", "fetch", "done", "want-ref refs/heads/main")
	if !strings.Contains(got, pushed.String()+" refs/heads/main") || !strings.Contains(got, "PACK") {
		t.Errorf("fetch = %.300q, want commit %s", got, pushed)
	}
}

// Some servers send the header of their answer before they have read the push.
func TestPushToEarlyOrigin(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.history(t, "app.git", 1)
	w := newWorld(t, h, t.TempDir(), func(r *Rule) { r.OriginDecides, r.PushToOrigin = true, true })
	h.set(func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/git-receive-pack") {
			return false
		}
		c := http.NewResponseController(rw)
		_ = c.EnableFullDuplex()
		rw.Header().Set("Content-Type", "application/x-git-receive-pack-result")
		_ = c.Flush()
		cmd := exec.Command("git", "receive-pack", "--stateless-rpc", from.Dir)
		cmd.Env, cmd.Stdin, cmd.Stdout = gittest.Env(), r.Body, rw
		_ = cmd.Run()
		return true
	})
	url := strings.Replace(w.serve(), "://", "://me:secret@", 1) + "app"
	local := filepath.Join(t.TempDir(), "local")
	w.git("clone", url, local)
	noise := make([]byte, 2<<20)
	_, _ = io.ReadFull(rand.Reader, noise)
	w.do(os.WriteFile(filepath.Join(local, "large"), noise, 0o600))
	client := gittest.At(t, local)
	client.Git("add", "large")
	client.Git("commit", "-m", "large")
	w.git("-C", local, "push", url, "HEAD:main")
	w.same("host/app", from)
}
