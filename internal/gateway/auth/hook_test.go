package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// application is a hook's other end. Its answer may be changed.
type application struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []question
	header []http.Header
	answer func(w http.ResponseWriter, q question)
}

func newApplication(t *testing.T, answer func(w http.ResponseWriter, q question)) *application {
	t.Helper()
	a := &application{answer: answer}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.Method != http.MethodPost {
			t.Errorf("%s: %v", r.Method, err)
		}
		a.mu.Lock()
		a.asked, a.header = append(a.asked, q), append(a.header, r.Header.Clone())
		answer := a.answer
		a.mu.Unlock()
		answer(w, q)
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *application) questions() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.asked)
}

func (a *application) answers(answer func(w http.ResponseWriter, q question)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// decides answers for alice, whose password is "right". She may read all repositories except "none", and write
// "team/app".
func decides(w http.ResponseWriter, q question) {
	switch {
	case q.Question == identify:
		if q.Credential.User == "alice" && q.Credential.Secret == "right" {
			io.WriteString(w, `{"allow": true, "identity": "alice"}`)
			return
		}
	case q.Identity == nil:
		fmt.Fprintf(w, `{"allow": %v}`, q.Repository == "pub" && q.Operation == "read")
		return
	case q.Identity.Name == "alice":
		fmt.Fprintf(w, `{"allow": %v}`, q.Operation == "read" && q.Repository != "none" || q.Repository == "team/app")
		return
	}
	io.WriteString(w, `{"allow": false}`)
}

func fails(w http.ResponseWriter, _ question) { w.WriteHeader(http.StatusInternalServerError) }

func newHookWorld(t *testing.T, o Options, h HookOptions,
	answer func(w http.ResponseWriter, q question)) (*world, *application) {
	t.Helper()
	a := newApplication(t, answer)
	w := &world{}
	h.URL, h.Metrics, h.Log = a.URL, NewMetrics(nil), discard
	o.Metrics = h.Metrics
	if h.Timeout == 0 {
		h.Timeout = time.Minute
	}
	if h.TTL == 0 {
		h.TTL = time.Minute
	}
	if h.Size == 0 {
		h.Size = 100
	}
	*w = world{T: t, file: NewTokenFile(filepath.Join(t.TempDir(), "tokens")), clock: time.Now()}
	h.Now = func() time.Time { return w.clock }
	o.Sources = NewSources(o.Metrics, slog.New(slog.NewTextHandler(&w.log, nil)))
	h.Sources = o.Sources
	o.Hook = NewHook(h)
	o.Hook.readableTime = time.Minute
	w.start(o)
	t.Cleanup(func() { w.Auth.Close() })
	return w, a
}

func TestHook(t *testing.T) {
	t.Parallel()
	w, app := newHookWorld(t, Options{}, HookOptions{Secret: func() string { return "a-secret-of-the-hook" }}, decides)
	ctx := context.Background()
	for range 3 {
		id, err := w.who(basic("alice", "right"))
		if err != nil || id.Name != "alice" || id.By != ByHook || id.Address != "192.0.2.1" {
			t.Fatalf("identity = %+v, error = %v, want alice by hook", id, err)
		}
		for repo, want := range map[string][2]string{"a": {"ok", "denied"}, "team/app": {"ok", "ok"},
			"none": {"not_found", "not_found"}} {
			for op, want := range want {
				if err := w.May(ctx, id, repoPath(t, repo), Operation(op)); says(err) != want {
					t.Errorf("%s %s: %v, want %s", Operation(op), repo, err, want)
				}
			}
		}
		for repo, want := range map[string]string{"pub": "ok", "a": "unauthenticated"} {
			if err := w.May(ctx, Identity{Address: "192.0.2.7"}, repoPath(t, repo), Read); says(err) != want {
				t.Errorf("anonymous on %s: %v, want %s", repo, err, want)
			}
		}
		if err := w.May(ctx, Identity{}, repoPath(t, "pub"), Write); says(err) != "unauthenticated" {
			t.Errorf("anonymous write: error = %v, want unauthenticated", err)
		}
	}
	// One question to identify, six about reads and writes of three repositories, three about anonymous reads.
	if n := app.questions(); n != 1+6+3 {
		t.Errorf("questions = %d, want 10: %+v", n, app.asked)
	}
	if q := app.asked[0]; q.Question != identify || q.Credential.Type != "basic" || q.Client != "192.0.2.1" ||
		q.Repository != "" {
		t.Errorf("first question = %+v, want identify with Basic from 192.0.2.1", q)
	}
	if h := app.header[0]; h.Get("Authorization") != "Bearer a-secret-of-the-hook" ||
		h.Get("Content-Type") != "application/json" {
		t.Errorf("header = %v, want the secret and JSON", h)
	}
	// A wrong password is remembered as well, for a shorter time.
	before := app.questions()
	for range 3 {
		if _, err := w.from("198.51.100.1", basic("alice", "wrong")); !fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("from error = %v, want kind %v", err, fault.Unauthenticated)
		}
	}
	w.clock = w.clock.Add(refusalTTL)
	w.from("198.51.100.1", basic("alice", "wrong"))
	w.who(basic("alice", "right"))
	if n := app.questions() - before; n != 2 {
		t.Errorf("asked %d times about wrong passwords, want 2", n)
	}
	w.clock = w.clock.Add(time.Minute)
	w.who(basic("alice", "right"))
	if n := app.questions() - before; n != 3 {
		t.Errorf("questions after the TTL = %d, want 3", n)
	}
	// The hook never receives the server's own tokens, nor text that looks like one.
	token := w.token("ci", Write)
	before = app.questions()
	if id, err := w.who(basic("x", token)); err != nil || id.Name != "ci" {
		t.Errorf("identity = %+v, error = %v, want ci", id, err)
	}
	w.who(basic("x", newToken()))
	w.who(basic("x", token[:30]))
	if n := app.questions() - before; n != 0 {
		t.Errorf("questions to the hook about tokens = %d, want 0", n)
	}
	hash := w.o.Hook.hash(question{Credential: &hookCredential{User: "alice", Secret: "right"}})
	if strings.Contains(hash, "right") || strings.Contains(hash, "alice") || len(hash) != 32 {
		t.Errorf("key in the cache = %q, want a hash of 32 bytes", hash)
	}
}

// TestHookAndRules: where a rule is for a caller and a repository, the hook is not asked; a credential may be for less
// than its identity.
func TestHookAndRules(t *testing.T) {
	t.Parallel()
	w, app := newHookWorld(t, Options{Rules: rules(t, "alice team/** none", "anonymous pub/** read")}, HookOptions{},
		func(w http.ResponseWriter, q question) {
			if q.Question == identify {
				io.WriteString(w, `{"allow": true, "identity": "alice", "scope": "read", "repositories": ["team/**", "a/*"]}`)
				return
			}
			io.WriteString(w, `{"allow": true}`)
		})
	id, err := w.who("Bearer whatever")
	if err != nil {
		t.Fatal(err)
	}
	for repo, want := range map[string][2]string{"team/app": {"ok", "denied"}, "a/b": {"ok", "denied"},
		"b": {"ok", "denied"}, "pub/x": {"ok", "denied"}} {
		for op, want := range want {
			if err := w.May(context.Background(), id, repoPath(t, repo), Operation(op)); says(err) != want {
				t.Errorf("%s %s: %v, want %s", Operation(op), repo, err, want)
			}
		}
	}
	for _, q := range app.asked {
		if q.Repository == "pub/x" || q.Identity != nil && q.Repository != "a/b" {
			t.Errorf("question = %+v of %+v, want none: a rule decides", q, q.Identity)
		}
	}
}

// TestHookAnswers has a hook with invalid answers. Each is a failure and does not give access.
func TestHookAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(w http.ResponseWriter, q question){
		"status":     fails,
		"no content": func(w http.ResponseWriter, _ question) { w.WriteHeader(http.StatusNoContent) },
		"redirect":   func(w http.ResponseWriter, _ question) { w.Header().Set("Location", "/"); w.WriteHeader(302) },
		"empty":      func(http.ResponseWriter, question) {},
		"text":       func(w http.ResponseWriter, _ question) { io.WriteString(w, "yes") },
		"allow a text": func(w http.ResponseWriter, _ question) {
			io.WriteString(w,
				`{"allow": "true", "identity": "alice"}`)
		},
		"no identity": func(w http.ResponseWriter, _ question) { io.WriteString(w, `{"allow": true}`) },
		"bad identity": func(w http.ResponseWriter, _ question) {
			io.WriteString(w,
				`{"allow": true, "identity": "a\r\nX: y"}`)
		},
		"option": func(w http.ResponseWriter, _ question) { io.WriteString(w, `{"allow": true, "identity": "--x"}`) },
		"bad scope": func(w http.ResponseWriter, _ question) {
			io.WriteString(w, `{"allow": true, "identity": "a", "scope": "all"}`)
		},
		"bad pattern": func(w http.ResponseWriter, _ question) {
			io.WriteString(w, `{"allow": true, "identity": "a", "repositories": ["/"]}`)
		},
		"too much": func(w http.ResponseWriter, _ question) {
			io.WriteString(w, `{"allow": true, "identity": "alice"`)
			io.Copy(w, strings.NewReader(strings.Repeat(" ", 10<<20)))
			io.WriteString(w, `}`)
		},
		"cut off": func(w http.ResponseWriter, _ question) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"allow": true, "identity": "alice"}`)
		},
	} {
		w, app := newHookWorld(t, Options{}, HookOptions{}, answer)
		id, err := w.who(basic("alice", "right"))
		if !fault.Is(err, fault.Unavailable) || !id.Anonymous() || fault.RetryAfter(err) <= 0 ||
			strings.Contains(fault.Message(err), app.URL) {
			t.Errorf("%s: identity = %+v, error = %v, want kind %v with Retry-After and without the URL", name, id, err,
				fault.Unavailable)
		}
		if app.questions() != 1 {
			t.Errorf("%s: questions = %d, want 1", name, app.questions())
		}
	}
}

// TestHookRests: after several failures it is left alone, and then tried by one; answers of before may hold meanwhile.
func TestHookRests(t *testing.T) {
	t.Parallel()
	for _, stale := range []bool{false, true} {
		w, app := newHookWorld(t, Options{}, HookOptions{Stale: stale}, decides)
		if _, err := w.who(basic("alice", "right")); err != nil {
			t.Fatal(err)
		}
		w.clock = w.clock.Add(2 * time.Minute) // no longer than an hour
		app.answers(fails)
		for range 3 * failuresToPause {
			id, err := w.who(basic("alice", "right"))
			if stale != (err == nil && id.Name == "alice") || !stale && !fault.Is(err, fault.Unavailable) {
				t.Errorf("stale = %v: identity = %+v, error = %v, want alice only with stale answers", stale, id, err)
			}
		}
		if n := app.questions(); n != 1+failuresToPause {
			t.Errorf("asked %d times while it failed, want %d", n-1, failuresToPause)
		}
		w.clock = w.clock.Add(hookPause)
		w.who(basic("alice", "right"))
		if n := app.questions(); n != 2+failuresToPause {
			t.Errorf("asked %d times after it rested, want once", n-1-failuresToPause)
		}
		app.answers(decides)
		w.clock = w.clock.Add(hookPause)
		for range 2 {
			if id, err := w.who(basic("alice", "right")); err != nil || id.Name != "alice" {
				t.Errorf("identity = %+v, error = %v, want alice", id, err)
			}
		}
		if n := app.questions(); n != 3+failuresToPause {
			t.Errorf("questions = %d, want %d", n, 3+failuresToPause)
		}
		w.clock = w.clock.Add(time.Minute + maxStale)
		app.answers(fails)
		if _, err := w.who(basic("alice", "right")); !fault.Is(err, fault.Unavailable) {
			t.Errorf("error after %v = %v, want kind %v", maxStale, err, fault.Unavailable)
		}
	}
}

// TestHookIsCalledOnce asks equal questions at the same time, which share a request. A caller that leaves does not end
// it.
func TestHookIsCalledOnce(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}, 50), make(chan struct{})
	w, app := newHookWorld(t, Options{}, HookOptions{}, func(w http.ResponseWriter, q question) {
		asked <- struct{}{}
		<-release
		decides(w, q)
	})
	var waiting, all sync.WaitGroup
	var good atomic.Int32
	gone, goAway := context.WithCancel(context.Background())
	for i := range 50 {
		waiting.Add(1)
		all.Go(func() {
			r := (&http.Request{RemoteAddr: "192.0.2.1:1", Header: http.Header{"Authorization": {basic("alice", "right")}}})
			if i == 0 {
				r = r.WithContext(gone)
			}
			waiting.Done()
			_, err := w.HTTP(r)
			if err == nil {
				good.Add(1)
			} else if i != 0 || !errors.Is(err, context.Canceled) {
				t.Errorf("caller %d: error = %v, want none", i, err)
			}
		})
	}
	waiting.Wait()
	<-asked
	goAway()
	close(release)
	all.Wait()
	if n := app.questions(); n != 1 || good.Load() < 49 {
		t.Errorf("questions = %d, identified callers = %d, want 1 and at least 49", n, good.Load())
	}
}

// TestHookThatHangs has a hook that does not answer. Callers wait for its timeout only.
func TestHookThatHangs(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	w, _ := newHookWorld(t, Options{}, HookOptions{Timeout: 50 * time.Millisecond},
		func(http.ResponseWriter, question) { <-hang })
	t.Cleanup(func() { close(hang) })
	if _, err := w.who(basic("alice", "right")); !fault.Is(err, fault.Unavailable) {
		t.Errorf("who error = %v, want kind %v", err, fault.Unavailable)
	}
	if err := w.May(context.Background(), Identity{}, repoPath(t, "a"), Read); !fault.Is(err, fault.Unavailable) {
		t.Errorf("May error = %v, want kind %v", err, fault.Unavailable)
	}
}

func TestHookForgets(t *testing.T) {
	t.Parallel()
	w, app := newHookWorld(t, Options{}, HookOptions{Size: 10, PerAddress: true}, decides)
	for i := range 100 {
		w.from(fmt.Sprintf("192.0.2.%d", i), basic("alice", "right"))
	}
	if app.questions() != 100 {
		t.Errorf("questions = %d, want one for each of 100 addresses", app.questions())
	}
}

// fill takes all places that callers from an address have.
func fill(t *testing.T, h *Hook, address string) (leave func()) {
	t.Helper()
	var leaves []func()
	for range maxHookRequests / 2 {
		leave, err := h.slots.enter(address)
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	return func() {
		for _, leave := range leaves {
			leave()
		}
	}
}

// TestHookIsShared has many callers from one network. Others can still use the hook, and the excess is not its failure.
func TestHookIsShared(t *testing.T) {
	t.Parallel()
	w, app := newHookWorld(t, Options{}, HookOptions{Timeout: 10 * time.Millisecond, Stale: true}, decides)
	h := w.o.Hook
	leave := fill(t, h, "192.0.2.1")
	for i := range 2 * failuresToPause {
		if _, err := w.who(basic("alice", fmt.Sprint(i))); !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) == 0 {
			t.Errorf("who error = %v, want kind %v", err, fault.Exhausted)
		}
	}
	if h.failures != 0 || app.questions() != 0 {
		t.Errorf("failures = %d, questions = %d, want 0 and 0", h.failures, app.questions())
	}
	other, err := h.slots.enter("198.51.100.1")
	if err != nil {
		t.Fatalf("error for callers of another network = %v, want none", err)
	}
	other()
	leave()
	if len(h.slots.all) != 0 || len(h.slots.networks) != 0 {
		t.Errorf("%d slots and %d networks in use, want none", len(h.slots.all), len(h.slots.networks))
	}
}

// TestLockoutOfGuessesAtOnce: guesses that wait for their turn while others turn out to be wrong are locked out as
// well.
func TestLockoutOfGuessesAtOnce(t *testing.T) {
	t.Parallel()
	w, app := newHookWorld(t, Options{Guesses: 3}, HookOptions{}, decides)
	leave := fill(t, w.o.Hook, "192.0.2.1")
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			if _, err := w.who(basic("alice", fmt.Sprint(i))); !fault.Is(err, fault.Exhausted) {
				t.Errorf("guess %d: error = %v, want kind %v", i, err, fault.Exhausted)
			}
		})
	}
	for range 4 {
		w.guesses.wrong(&Credential{Secret: newToken(), Address: "192.0.2.1"}, wrongToken())
	}
	leave()
	all.Wait()
	if n := app.questions(); n != 0 {
		t.Errorf("questions = %d, want 0", n)
	}
}

// TestHookReceivesOneName: however a repository is spelled, the hook is asked about one, and about none whose name
// JSON cannot tell from others.
func TestHookReceivesOneName(t *testing.T) {
	t.Parallel()
	w, app := newHookWorld(t, Options{}, HookOptions{}, decides)
	alice := Identity{Name: "alice", By: ByHook}
	for _, name := range []string{"team/app", "team/app.git", "team/app/.git", "team/app.git.git", "team/app.git/.git"} {
		if err := w.May(context.Background(), alice, repoPath(t, name), Write); err != nil {
			t.Errorf("May(%s) = %v, want nil", name, err)
		}
	}
	if err := w.May(context.Background(), alice, repoPath(t, "team/\xff"), Read); !fault.Is(err, fault.NotFound) {
		t.Errorf("May error = %v, want kind %v", err, fault.NotFound)
	}
	if app.questions() != 1 || app.asked[0].Repository != "team/app" {
		t.Errorf("questions = %+v, want one about team/app", app.asked)
	}
}

// TestHookURLIsNotShown: it may hold a secret.
func TestHookURLIsNotShown(t *testing.T) {
	t.Parallel()
	nobody := httptest.NewServer(nil)
	nobody.Close()
	var log strings.Builder
	metrics := NewMetrics(nil)
	h := NewHook(HookOptions{
		URL: nobody.URL + "/?key=hush", Timeout: time.Minute, Metrics: metrics, Sources: NewSources(metrics, discard),
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if _, err := h.ask(context.Background(), question{}, nil); err == nil ||
		strings.Contains(err.Error()+log.String(), "hush") || log.Len() == 0 {
		t.Errorf("error = %v, want one without the secret; log:\n%s", err, &log)
	}
}
