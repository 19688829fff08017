package mirror

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
)

// TestMirrorFollows compares a mirror with its origin after random changes of refs.
func TestMirrorFollows(t *testing.T) {
	t.Parallel()
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 1))
		h := newHost(t)
		from := h.repo(t, "team/app.git", "--object-format="+format.String())
		w := newWorld(t, h, t.TempDir())
		for round := range 8 {
			for range rnd.IntN(4) {
				name := fmt.Sprintf("refs/%s/%d", []string{"heads", "tags"}[rnd.IntN(2)], rnd.IntN(3))
				switch rnd.IntN(4) {
				case 0:
					from.Git("update-ref", "-d", name)
				case 1: // a rewind or a copy
					from.Git("update-ref", name, "main")
				default:
					from.Git("update-ref", name, from.Commit(fmt.Sprint(rnd.Uint64()), from.ID("main")).String())
				}
			}
			if rnd.IntN(2) == 0 {
				from.Git("update-ref", "refs/heads/main", from.Commit(fmt.Sprint(round), from.ID("main")).String())
			}
			r := w.use("host/team/app.git")
			w.same("host/team/app", from)
			if !r.complete() || r.path.String() != "host/team/app" {
				t.Fatalf("complete %t, path %s", r.complete(), r.path)
			}
		}
	}
}

// A hundred callers at once cost one list of refs and one fetch, and callers in the window of a check none.
func TestCallersShare(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir())
	w.use("host/app.git")
	from.Git("update-ref", "refs/heads/main", from.Commit("second", from.ID("main")).String())
	w.later(2 * time.Second)
	before := h.fetches.Load()
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() {
			r, err := w.open(t.Context(), w.path("host/app"), node.Secret{})
			if err != nil {
				t.Error(err)
				return
			}
			if result, err := r.check(t.Context(), node.Secret{}, false); err != nil || result.Err != nil {
				t.Errorf("check: %v, %v", err, result.Err)
			}
		})
	}
	callers.Wait()
	w.same("host/app", from)
	if got := h.fetches.Load() - before; got != 2 {
		t.Errorf("%d requests for refs and packs, want 2", got)
	}
}

// While the origin is down, the mirror is used for StaleFor. Then it is refused.
func TestOutage(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir())
	r := w.use("host/app.git")
	h.set(func(w http.ResponseWriter, _ *http.Request) bool {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return true
	})
	w.later(time.Minute)
	result, err := r.check(t.Context(), node.Secret{}, false)
	if err != nil || result.Err == nil || result.Age < time.Minute || result.Age > 2*time.Minute {
		t.Errorf("check during an outage: %+v, %v; want an age of a minute", result, err)
	}
	if s, err := w.Status(t.Context(), w.path("host/app")); err != nil || s.Error == "" || !s.Complete || s.Stale {
		t.Errorf("Status: %+v, %v; want an error", s, err)
	}
	w.later(time.Hour)
	if s, err := w.Status(t.Context(), w.path("host/app")); err != nil || !s.Stale {
		t.Errorf("Status after StaleFor: %+v, %v; want stale", s, err)
	}
	if _, err := r.check(t.Context(), node.Secret{}, false); !fault.Is(err, fault.Unavailable) ||
		fault.RetryAfter(err) == 0 ||
		!strings.Contains(fault.Message(err), "1h1m") {
		t.Errorf("check after StaleFor: %v, want Unavailable with the age", err)
	}
	if _, err := w.open(t.Context(), w.path("host/other"), node.Secret{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("first use during an outage: %v, want Unavailable", err)
	}
	h.set(nil)
	from.Git("update-ref", "refs/heads/new", "main")
	gittest.WaitFor(t, "an answer of the origin", func() bool { // the circuit breaker closes
		result, err := r.check(t.Context(), node.Secret{}, true)
		return err == nil && result.Err == nil
	})
	w.same("host/app", from)
}

// Freshness: a check holds for its window, except for a webhook or a forced check.
func TestFreshness(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir(), func(r *Rule) { r.Fresh = Freshness{Webhook: true} })
	r := w.use("host/app.git")
	requests := func(want int32, use func()) {
		t.Helper()
		before := h.fetches.Load()
		use()
		if got := h.fetches.Load() - before; got != want {
			t.Errorf("%d requests, want %d", got, want)
		}
	}
	look := func() {
		_, err := r.check(t.Context(), node.Secret{}, false)
		w.do(err)
	}
	requests(0, look)
	w.later(9 * time.Minute)
	requests(0, look)
	w.later(2 * time.Minute)
	requests(1, look)
	requests(1, func() {
		_, err := w.Refresh(t.Context(), w.path("host/app"))
		w.do(err)
	})
	requests(0, look)
	rule := w.rule
	rule.Fresh = Freshness{Every: time.Minute}
	w.do(w.SetRules([]Rule{rule}))
	w.use("host/app")
	w.later(59 * time.Second)
	requests(0, look)
	w.later(2 * time.Second)
	requests(1, look)
}

// Own repositories below the prefix stay what they are, and a detached mirror becomes one.
func TestManage(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	root := t.TempDir()
	gittest.InitAt(t, filepath.Join(root, "host/own.git"))
	w := newWorld(t, h, root, func(r *Rule) { r.OriginDecides = true })
	if r, err := w.open(t.Context(), w.path("host/own"), node.Secret{}); r != nil || err != nil ||
		w.Find(w.path("host/own")) != nil {
		t.Errorf("an own repository is a mirror: %v, %v", r, err)
	}
	if _, err := w.Add(t.Context(), w.path("host/own")); !fault.Is(err, fault.Exists) {
		t.Errorf("Add of an own repository: %v, want Exists", err)
	}
	if _, err := w.Add(t.Context(), w.path("host/missing")); !fault.Is(err, fault.NotFound) {
		t.Errorf("Add of a missing repository: %v, want NotFound", err)
	}
	s, err := w.Add(t.Context(), w.path("host/app.git"))
	if err != nil || s.Path != "host/app" || s.Origin != h.URL+"/app.git" {
		t.Fatalf("Add: %+v, %v", s, err)
	}
	w.use("host/app")
	list, err := w.List(t.Context(), "")
	if err != nil || len(list.Mirrors) != 1 || !list.Mirrors[0].Complete || list.Mirrors[0].Path != "host/app" {
		t.Errorf("List: %+v, %v; want the mirror host/app", list, err)
	}
	if w.Find(w.path("host/app")) == nil || w.Find(w.path("host/other")) == nil || w.Find(w.path("else/app")) != nil {
		t.Error("Find: want host/app and host/other, and not else/app")
	}
	w.do(w.SetRules(nil)) // no caller can read the mirror without its rule
	if _, err := w.open(t.Context(), w.path("host/app"), node.Secret{}); !fault.Is(err, fault.NotFound) ||
		w.Find(w.path("host/app")) == nil {
		t.Errorf("a mirror without a rule: %v, want NotFound, and covered", err)
	}
	if s, err := w.Status(t.Context(), w.path("host/app")); err != nil || !s.Orphan {
		t.Errorf("Status without a rule: %+v, %v; want an orphan", s, err)
	}
	w.do(w.SetRules([]Rule{w.rule}))
	w.do(w.Detach(t.Context(), w.path("host/app")))
	if r, err := w.open(t.Context(), w.path("host/app"), node.Secret{}); r != nil || err != nil ||
		w.Find(w.path("host/app")) != nil {
		t.Errorf("a detached mirror: %v, %v; want an own repository", r, err)
	}
	w.same("host/app", from)
	h.repo(t, "two.git")
	w.use("host/two.git")
	w.do(w.Remove(t.Context(), w.path("host/two")))
	if _, err := os.Stat(filepath.Join(root, "host/two.git")); err == nil {
		t.Error("a removed mirror still exists")
	}
	if _, err := w.Status(t.Context(), w.path("host/two")); !fault.Is(err, fault.NotFound) {
		t.Errorf("Status of a removed mirror: %v, want NotFound", err)
	}
}

// A repository that moves to a path that the rule denies is not followed, neither at the first use nor later.
func TestMoveToDeniedPath(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.repo(t, "a.git")
	w := newWorld(t, h, t.TempDir(), func(r *Rule) {
		r.Allowed = func(path git.RepoPath) bool { return !strings.HasPrefix(path.String(), "secret") }
	})
	r := w.use("host/a.git")
	h.repo(t, "secret.git")
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		_, rest, _ := strings.Cut(r.URL.RequestURI(), ".git/")
		moved := !strings.HasPrefix(r.URL.Path, "/secret.git/")
		if moved {
			http.Redirect(w, r, "/secret.git/"+rest, http.StatusMovedPermanently)
		}
		return moved
	})
	if _, err := r.check(t.Context(), node.Secret{}, true); !fault.Is(err, fault.Denied) {
		t.Errorf("check after the move: %v, want denied", err)
	}
	for _, path := range []string{"host/a.git", "host/b.git"} {
		err := w.probe(path)
		if !fault.Is(err, fault.NotFound) {
			t.Errorf("Probe(%s) = %v, want not found", path, err)
		}
	}
	if _, err := w.open(t.Context(), w.path("host/b.git"), node.Secret{}); !fault.Is(err, fault.Denied) {
		t.Errorf("first use of a moved repository: %v, want denied", err)
	}
}

// A moved repository is followed, and another object format is refused while the old state is served.
func TestOriginChanges(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.repo(t, "old.git")
	w := newWorld(t, h, t.TempDir())
	r := w.use("host/old.git")
	w.do(os.Rename(filepath.Join(h.dir, "old.git"), filepath.Join(h.dir, "new.git")))
	h.set(func(w http.ResponseWriter, r *http.Request) bool {
		rest, moved := strings.CutPrefix(r.URL.RequestURI(), "/old.git/")
		if moved {
			http.Redirect(w, r, "/new.git/"+rest, http.StatusMovedPermanently)
		}
		return moved
	})
	from := gittest.At(t, filepath.Join(h.dir, "new.git"))
	from.Git("update-ref", "refs/heads/moved", from.Commit("moved").String())
	w.use("host/old.git")
	w.same("host/old", from)
	if got := r.originPath(); got != "new.git" {
		t.Errorf("path at the origin: %s, want new.git", got)
	}
	w.do(os.RemoveAll(from.Dir))
	h.repo(t, "new.git", "--object-format=sha256")
	result, err := r.check(t.Context(), node.Secret{}, true)
	if err != nil || result.Err == nil || !strings.Contains(result.Err.Error(), "sha256") {
		t.Errorf("check after a change of the object format: %+v, %v; want an error that names it", result, err)
	}
}

// Bad objects change nothing. The same state is not fetched again at once, except by force.
func TestFailedUpdatePauses(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	w := newWorld(t, h, t.TempDir())
	r := w.use("host/app.git")
	before := gittest.At(t, filepath.Join(w.root, "host/app.git")).Git("for-each-ref")
	bad := from.GitIn("tree "+from.Git("rev-parse", "main^{tree}")+"\nauthor x\ncommitter x\n\nx",
		"hash-object", "-t", "commit", "-w", "--stdin", "--literally")
	from.Git("update-ref", "refs/heads/main", bad)
	for i, step := range []struct {
		later    time.Duration
		forced   bool
		requests int32
	}{{2 * time.Second, false, 3}, {0, false, 0}, {0, true, 3}, {time.Second, false, 1},
		{4 * time.Second, false, 3}} { // refs, the pack, and refs again to see whether they have changed
		w.later(step.later)
		fetches := h.fetches.Load()
		result, err := r.check(t.Context(), node.Secret{}, step.forced)
		if err != nil || !fault.Is(result.Err, fault.Corrupt) {
			t.Errorf("check %d of bad objects: %+v, %v; want a state with an error", i, result, err)
		}
		if got := h.fetches.Load() - fetches; got != step.requests {
			t.Errorf("check %d of bad objects: %d requests, want %d", i, got, step.requests)
		}
	}
	if got := gittest.At(t, filepath.Join(w.root, "host/app.git")).Git("for-each-ref"); got != before {
		t.Errorf("refs after bad objects:\n%s\nwant\n%s", got, before)
	}
	from.Git("update-ref", "refs/heads/main", from.Commit("good").String())
	w.use("host/app.git")
	w.same("host/app", from)
}

// Only refs that match a pattern of the rule are mirrored, and a new rule applies to existing mirrors.
func TestRefPatterns(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	from := h.repo(t, "app.git")
	for _, name := range []string{"refs/pull/1/head", "refs/pull/1/merge", "refs/notes/x", "refs/tags/a/b"} {
		from.Git("update-ref", name, "main")
	}
	w := newWorld(t, h, t.TempDir())
	refs := func(want string) {
		t.Helper()
		w.use("host/app.git")
		got := gittest.At(t, filepath.Join(w.root, "host/app.git")).Git("for-each-ref", "--format=%(refname)")
		if got = strings.ReplaceAll(got, "\n", " "); got != want {
			t.Errorf("refs %s, want %s", got, want)
		}
	}
	refs("refs/heads/main refs/tags/a/b")
	rule := w.rule
	rule.Refs = []string{"refs/heads/*", "refs/pull/*/head", "refs/notes/x"}
	w.do(w.SetRules([]Rule{rule}))
	refs("refs/heads/main refs/notes/x refs/pull/1/head")
	for _, bad := range []string{"refs/heads/**", "heads/*", "HEAD", "refs/*..", ""} {
		if err := CheckRefPattern(bad); err == nil {
			t.Errorf("CheckRefPattern(%q) = nil, want an error", bad)
		}
	}
}

// Names that only other hosts have are mirrored, too.
func TestNames(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	w := newWorld(t, h, t.TempDir())
	for _, name := range []string{"acme/.github", "acme/-dash", "acme/été", "acme/a.git.b", "acme/x y"} {
		from := h.repo(t, name)
		w.use("host/" + name)
		w.same("host/"+name, from)
	}
	for _, bad := range []string{"acme/.packhorse/x", "acme/x.lock", "acme/.git/x"} {
		h.repo(t, bad)
		if _, err := w.open(t.Context(), w.path("host/"+bad), node.Secret{}); !fault.Is(err, fault.Invalid) {
			t.Errorf("open(%q) = %v, want Invalid", bad, err)
		}
	}
}

// PathOf finds mirrors by the URLs in webhooks.
func TestPathOf(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	w := newWorld(t, h, t.TempDir(), func(r *Rule) {
		r.FoldCase = true
		r.URL = r.URL.JoinPath("base/")
		r.Allowed = func(path git.RepoPath) bool { return !strings.HasPrefix(path.String(), "secret/") }
	})
	for text, want := range map[string]string{
		"http://127.0.0.1/base/Team/App.git": "host/team/app", "ssh://git@127.0.0.1/base/team/app": "host/team/app",
		"http://127.0.0.1/team/app": "", "http://other/base/team/app": "", "http://127.0.0.1/base/secret/app": "",
		"http://127.0.0.1/base/../x": "", "http://127.0.0.1/base/": "",
	} {
		u, err := url.Parse(text)
		w.do(err)
		if path, ok := w.PathOf(u); ok != (want != "") || path.String() != want {
			t.Errorf("PathOf(%s) = %s, %t, want %q", text, path, ok, want)
		}
	}
}
