package mirror

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

// stall makes the host send the first half of each pack, and the rest when resume is called.
func (h *host) stall() (resume func()) {
	more := make(chan struct{})
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		body, _ := io.ReadAll(r.Body)
		if r.Body = io.NopCloser(bytes.NewReader(body)); !bytes.Contains(body, []byte("command=fetch")) {
			return false
		}
		h.fetches.Add(1)
		answer := httptest.NewRecorder()
		h.backend.ServeHTTP(answer, r)
		w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
		content := answer.Body.Bytes()
		_, _ = w.Write(content[:len(content)/2])
		w.(http.Flusher).Flush()
		select {
		case <-more:
			_, _ = w.Write(content[len(content)/2:])
		case <-r.Context().Done():
		}
		return true
	})
	return func() { close(more) }
}

// large adds a commit with a megabyte that cannot be compressed to main.
func large(from *gittest.Repo) {
	text := make([]byte, 1<<20)
	_, _ = rand.Read(text)
	id := from.CommitTree("large", fmt.Sprintf("100644 blob %v\tfile\n", from.Blob(string(text))), from.ID("main"))
	from.Git("update-ref", "refs/heads/main", id.String())
}

// quarantined waits until a pack arrives in the mirror.
func quarantined(t *testing.T, root, path string) {
	t.Helper()
	gittest.WaitFor(t, "a pack in the quarantine", func() bool {
		found, _ := filepath.Glob(filepath.Join(root, path+".git/objects/tmp_objdir*/pack/tmp_pack*"))
		return len(found) > 0
	})
}

// childRoot and childHost are variables of the environment of a test process to be killed.
const childRoot, childHost = "PACKHORSE_TEST_ROOT", "PACKHORSE_TEST_HOST"

// TestKilledChild is the process that TestKilled kills during a fetch.
func TestKilledChild(t *testing.T) {
	root := os.Getenv(childRoot)
	if root == "" {
		t.Skip("run by TestKilled")
	}
	w := newWorld(t, &host{Server: &httptest.Server{URL: os.Getenv(childHost)}}, root)
	r, err := w.open(t.Context(), w.path("host/app.git"), node.Secret{})
	w.do(err)
	_, err = r.check(t.Context(), node.Secret{}, true)
	t.Fatal("not killed:", err)
}

// A server that is killed during a fetch leaves a repository that git fsck accepts. The next server removes what it
// left and fetches again, for a first update without a request.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		h := newHost(t)
		from := h.repo(t, "app.git")
		root := t.TempDir()
		if !first {
			newWorld(t, h, root).use("host/app.git")
		}
		large(from)
		resume := h.stall()
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledChild$")
		child.Env = append(os.Environ(), childRoot+"="+root, childHost+"="+h.URL, "TMPDIR="+t.TempDir())
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		quarantined(t, root, "host/app")
		_ = child.Process.Kill()
		_ = child.Wait()
		gittest.At(t, filepath.Join(root, "host/app.git")).Git("fsck", "--full", "--strict")
		resume()
		h.set(nil)
		w := newWorld(t, h, root)
		if !first {
			w.use("host/app.git")
		}
		gittest.WaitFor(t, "the first update", func() bool {
			s, err := w.Status(t.Context(), w.path("host/app"))
			return err == nil && s.Complete
		})
		w.same("host/app", from)
		if left := gittest.At(t, filepath.Join(root, "host/app.git")).Git("count-objects", "-v"); !bytes.Contains(
			[]byte(left), []byte("garbage: 0")) {
			t.Errorf("left after a kill: %s", left)
		}
	}
}

// An update goes on without its callers. A shutdown ends it and leaves nothing.
func TestLongUpdate(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	root := t.TempDir()
	w := newWorld(t, h, root)
	r := w.use("host/app.git")
	before := r.status().Fresh
	large(from)
	resume := h.stall()
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := r.check(ctx, node.Secret{}, true)
		left <- err
	}()
	quarantined(t, root, "host/app")
	if s, err := w.Status(t.Context(), w.path("host/app")); err != nil || !s.Updating || !s.Complete {
		t.Errorf("Status during an update: %+v, %v; want a complete mirror and an update", s, err)
	}
	leave()
	if err := <-left; !fault.Is(err, fault.Cancelled) {
		t.Errorf("check of a caller that left: %v, want Cancelled", err)
	}
	second := make(chan error)
	go func() { // joins the running update
		_, err := r.check(t.Context(), node.Secret{}, true)
		second <- err
	}()
	fetches := h.fetches.Load()
	resume()
	w.do(<-second)
	w.same("host/app", from)
	if got := h.fetches.Load() - fetches; got > 1 { // the list of refs
		t.Errorf("%d more requests for a second caller, want none for a pack", got)
	}
	if fresh := r.status().Fresh; !fresh.After(before) {
		t.Errorf("the state is of %v after an update, want later than %v", fresh, before)
	}
	large(from)
	h.stall()
	go func() { _, _ = r.check(t.Context(), node.Secret{}, true) }()
	quarantined(t, root, "host/app")
	w.do(w.Close())
	made := gittest.At(t, filepath.Join(root, "host/app.git"))
	made.Git("fsck", "--full", "--strict")
	if found, _ := filepath.Glob(made.Dir + "/objects/tmp_objdir*"); len(found) > 0 {
		t.Errorf("left by a shutdown: %q", found)
	}
}

// A silent origin counts as down before the request to it ends, if the mirror can be used.
func TestSilentOrigin(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir())
	r := w.use("host/app.git")
	w.updateWait = 100 * time.Millisecond
	answer := make(chan struct{})
	h.set(func(http.ResponseWriter, *http.Request) bool {
		<-answer
		return false
	})
	w.later(time.Minute)
	for _, forced := range []bool{false, true} {
		result, err := r.check(t.Context(), node.Secret{}, forced)
		if err != nil || !origin.IsDown(result.Err) || result.Age < time.Minute {
			t.Errorf("check(forced %t) = %+v, %v, want an outage and an age of a minute", forced, result, err)
		}
	}
	if age, reason := r.outage(); age < time.Minute || !origin.IsDown(reason) {
		t.Errorf("outage() = %v, %v, want an age of a minute and a reason", age, reason)
	}
	close(answer)
	gittest.WaitFor(t, "an answer of the origin", func() bool {
		result, err := r.check(t.Context(), node.Secret{}, true)
		return err == nil && result.Err == nil
	})
	if age, reason := r.outage(); age != 0 {
		t.Errorf("outage() = %v, %v after an answer, want none", age, reason)
	}
}

// An update goes on when its rule is removed.
func TestRuleRemovedDuringUpdate(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir())
	r := w.use("host/app.git")
	from.Git("update-ref", "refs/heads/main", from.Commit("second", from.ID("main")).String())
	for range cap(w.updates) { // the update waits
		w.updates <- struct{}{}
	}
	checked := make(chan error)
	go func() {
		_, err := r.check(t.Context(), node.Secret{}, true)
		checked <- err
	}()
	gittest.WaitFor(t, "an update", func() bool {
		s, err := w.Status(t.Context(), w.path("host/app"))
		return err == nil && s.Updating
	})
	w.do(w.SetRules(nil))
	if list, err := w.List(t.Context(), ""); err != nil || len(list.Mirrors) != 1 || !list.Mirrors[0].Orphan {
		t.Errorf("List() = %+v, %v, want an orphan", list, err)
	}
	for range cap(w.updates) {
		<-w.updates
	}
	w.do(<-checked)
	w.same("host/app", from)
}

// A refusal for the credential of one caller is not passed on to another.
func TestRefusalIsNotShared(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.repo(t, "app.git")
	arrived, answer := make(chan struct{}, 10), make(chan struct{})
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		if _, password, _ := r.BasicAuth(); password == "good" {
			return false
		}
		arrived <- struct{}{}
		<-answer
		w.Header().Set("WWW-Authenticate", "Basic")
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	w := newWorld(t, h, t.TempDir())
	secret := func(password string) node.Secret {
		r, _ := http.NewRequest(http.MethodGet, "http://host/", nil)
		r.SetBasicAuth("user", password)
		return node.NewSecret(r.Header.Get("Authorization"))
	}
	results := make(chan error)
	use := func(auth node.Secret) {
		r, err := w.open(t.Context(), w.path("host/app.git"), auth)
		if err == nil {
			_, err = r.check(t.Context(), auth, false)
		}
		results <- err
	}
	go use(secret("bad"))
	<-arrived
	go use(secret("good"))
	close(answer)
	var errs []error
	for range 2 {
		if err := <-results; err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) != 1 || !fault.Is(errs[0], fault.Unauthenticated) {
		t.Errorf("errors %v, want one that is Unauthenticated", errs)
	}
	if r, err := w.open(t.Context(), w.path("host/app"), node.Secret{}); err != nil {
		t.Errorf("open of an existing mirror: %v", err)
	} else if _, err := r.check(t.Context(), node.Secret{}, true); !fault.Is(err, fault.Unauthenticated) {
		t.Errorf("check without a credential: %v, want Unauthenticated", err)
	}
}
