package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gitnames "github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
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
// that are hidden later are left out. The end of the server ends streams with their position.
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
	other := askEvents(t, p.http, bob, "now", true)
	if other.StatusCode != http.StatusOK {
		t.Errorf("status %d of a stream of another caller", other.StatusCode)
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
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, err = io.ReadAll(other.Body)
	if err != nil || !strings.Contains(string(rest), "\n{\"next\":\"") {
		t.Errorf("a stream at the end of the server: %s, %v", rest, err)
	}
	if err := p.wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
}

// A stream of events follows the hook, as soon as the server forgets its answers. Repositories that the caller may not
// read any more are left out. Users that the hook does not know any more have no stream.
func TestEventStreamsOfHook(t *testing.T) {
	t.Parallel()
	var hidesApp, isGone atomic.Bool
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Question, Operation string
			Repositories        []string
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		isRead := q.Question == "readable" || q.Operation == "read"
		allow := !isGone.Load() && !(isRead && hidesApp.Load())
		text, _ := json.Marshal(map[string]any{"allow": allow, "identity": "alice", "scope": "write"})
		if q.Question == "readable" && allow {
			text, _ = json.Marshal(map[string]any{"allow": true, "repositories": q.Repositories})
		}
		_, _ = w.Write(text)
	}))
	defer hook.Close()
	dir := t.TempDir()
	root, state, config := filepath.Join(dir, "repos"), filepath.Join(dir, "state"), filepath.Join(dir, "config.toml")
	gittest.InitAt(t, filepath.Join(root, "app.git"))
	for name, text := range map[string]string{filepath.Join(dir, "secret"): strings.Repeat("s", 40),
		config: fmt.Sprintf("root = %q\nstate = %q\n[auth.hook]\nurl = %q\nsecret_file = %q\ncache_ttl = \"1h\"\n", root,
			state, hook.URL, filepath.Join(dir, "secret"))} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := startServer(dir, os.Environ(), []string{"serve", "--config", config, "--http", "127.0.0.1:0", "--ops", "",
		"--log-format", "json"})
	if err != nil {
		t.Fatal(err)
	}
	defer killAll(t, p)
	c := &pusher{Repo: gittest.Init(t), branch: "first", token: "right"}
	c.Git("update-ref", "refs/heads/main", c.Commit("first").String())
	lines := bufio.NewReader(askEvents(t, p.http, "right", "now", true).Body)
	if err := c.push(p.http, ""); err != nil {
		t.Fatal(err)
	}
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "refs/heads/first") {
		t.Fatalf("the stream has %q, %v, want the push", line, err)
	}
	hidesApp.Store(true)
	runPackhorse(t, "", "rules", "forget", "alice", "--config", config)
	runPackhorse(t, "", "repo", "set", "app", "--description", "second", "--config", config)
	isGone.Store(true)
	runPackhorse(t, "", "rules", "forget", "alice", "--config", config)
	rest, err := io.ReadAll(lines)
	if err == nil || !strings.Contains(string(rest), `{"error":{"kind":"unauthenticated"`) ||
		strings.Contains(string(rest), "configure") {
		t.Errorf("the stream of a user who is gone: %s, %v", rest, err)
	}
}

// A reader that was away for a week gets each event once and in order. If some of them were removed, the error names
// the oldest position.
func TestEventReaderBehind(t *testing.T) {
	t.Parallel()
	t.Run("disk", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		root, state := filepath.Join(dir, "repos"), filepath.Join(dir, "state")
		served := gittest.InitAt(t, filepath.Join(root, "app.git"))
		j, err := event.OpenJournal(event.JournalOptions{Dir: filepath.Join(state, "events")})
		if err != nil {
			t.Fatal(err)
		}
		const earlier = 100 // of 200 KB: in several files
		for i := range earlier {
			e := &event.Event{Kind: event.Configure, Repository: gitnames.Text(fmt.Sprint("old-", i)),
				Options: []gitnames.Text{gitnames.Text(strings.Repeat("x", 100_000))}}
			if err := j.Change(e, func() error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		all, _, err := j.Read(t.Context(), "", 10)
		if err != nil || j.Close() != nil {
			t.Fatal(err)
		}
		files, _ := filepath.Glob(filepath.Join(state, "events", "*"))
		for i, age := range []int{31, 7} {
			at := time.Now().AddDate(0, 0, -age)
			if err := os.Chtimes(files[i], at, at); err != nil {
				t.Fatal(err)
			}
		}
		p, err := startServer(dir, os.Environ(), []string{"serve", "--root", root, "--state", state, "--http",
			"127.0.0.1:0", "--ops", "", "--log-format", "json"})
		if err != nil {
			t.Fatal(err)
		}
		defer killAll(t, p)
		c := &pusher{Repo: gittest.Init(t), branch: "first", token: createToken(t, "alice", "--state", state)}
		c.Git("update-ref", "refs/heads/main", c.Commit("first").String())
		for i := range 3 {
			if err := c.push(p.http, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		oldest := checkRemoved(t, all[0].Position, "--root", root, "--state", state)
		response := askEvents(t, p.http, c.token, all[0].Position, false)
		if text, _ := io.ReadAll(response.Body); !strings.Contains(string(text), "out_of_range") ||
			!strings.Contains(string(text), oldest) {
			t.Errorf("the response of the gateway is %s", text)
		}
		list := readEvents(t, "--after", oldest, "--root", root, "--state", state)
		kept := slices.DeleteFunc(slices.Clone(list), func(e readEvent) bool { return e.Kind == "push" })
		for i, e := range kept {
			if want := fmt.Sprint("old-", earlier-len(kept)+i); e.Repository != want {
				t.Fatalf("event %d is of %s, want %s", i, e.Repository, want)
			}
		}
		if len(kept) == 0 || len(kept) == earlier || len(list) != len(kept)+3 {
			t.Errorf("%d events, %d of them old, want 3 others and some of %d", len(list), len(kept), earlier)
		}
		checkEvents(t, served.Git("for-each-ref", refsFormat), []*pusher{c}, "--after", oldest, "--root", root, "--state",
			state)
	})
	t.Run("store", func(t *testing.T) {
		t.Parallel()
		w := newStoreWorld(t)
		a := w.serve("a", "")
		var want []string
		create := func(on *storeServer) {
			name := fmt.Sprint("r", len(want))
			runPackhorse(t, "", "repo", "create", name, "--config", on.config())
			want = append(want, name)
			readEvents(t, "--config", on.config()) // publishes the event, so each has a batch of its own
		}
		for range 6 {
			create(a)
		}
		position := readEvents(t, "--config", a.config())[2].Position
		keys, b := []string{}, w.bucket.Bucket("git")
		batches := func() {
			keys = nil
			err := bucket.Each(t.Context(), b, "events/log/", func(i bucket.Info) error {
				keys = append(keys, i.Key)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		a.stop()
		c := w.serve("c", "") // another node, which has read none of them
		create(c)
		check := func(after string, want []string) {
			t.Helper()
			var got []string
			for _, e := range readEvents(t, "--after", after, "--config", c.config()) {
				got = append(got, e.Repository)
			}
			if !slices.Equal(got, want) {
				t.Errorf("the events after %q are of %q, want %q", after, got, want)
			}
		}
		check(position, want[3:])
		batches() // the newest first
		if err := b.Delete(t.Context(), keys[2:]...); err != nil {
			t.Fatal(err)
		}
		c.stop()
		c.start()
		oldest := checkRemoved(t, position, "--config", c.config())
		create(c)
		check(oldest, want[len(want)-3:])
		check("", want[len(want)-3:])
	})
}

// checkRemoved checks that the events after a position were removed, and returns the oldest position.
func checkRemoved(t *testing.T, after string, flags ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "packhorse"), append([]string{"events", "--after", after}, flags...)...)
	out, err := cmd.CombinedOutput()
	found := regexp.MustCompile(`after position \S+ are not kept any more.* the oldest ones follow position (\S+)\. List`).
		FindSubmatch(out)
	if err == nil || found == nil {
		t.Fatalf("events after a removed position: %v\n%s", err, out)
	}
	return string(found[1])
}

// Two servers of a store are killed while clients push. Each accepted push has one event, and both servers have the
// same ones in the same order.
func TestEventsOfKilledNodes(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	w := newStoreWorld(t)
	servers := []*storeServer{w.serve("a", ""), w.serve("b", "")}
	runPackhorse(t, "", "repo", "create", "app", "--config", servers[0].config())
	var all []*pusher
	for i := range 4 {
		c := &pusher{Repo: gittest.Init(t), branch: fmt.Sprint("client-", i), token: servers[i%2].token}
		c.Git("update-ref", "refs/heads/main", c.Commit(c.branch).String())
		all = append(all, c)
	}
	rounds := 3
	if !testing.Short() {
		rounds = 30
	}
	for round := range rounds {
		killed := make(chan struct{})
		var pushing sync.WaitGroup
		for i, c := range all {
			url := servers[i%2].http
			pushing.Go(func() { c.pushUntil(url, killed) })
		}
		time.Sleep(time.Duration(200+random.IntN(600)) * time.Millisecond)
		victims := servers[round%2 : round%2+1]
		if round%3 == 2 {
			victims = servers
		}
		for _, s := range victims {
			s.kill()
		}
		close(killed)
		pushing.Wait()
		for _, s := range victims {
			s.start()
		}
		for i, c := range all {
			if err := c.push(servers[i%2].http, ""); err != nil {
				t.Errorf("%s cannot push any more: %v", c.branch, err)
			}
		}
	}
	refs := w.git(w.clone(servers[0].url("app")), "for-each-ref", refsFormat)
	lists := [][]readEvent{}
	for _, s := range servers {
		lists = append(lists, checkEvents(t, refs, all, "--config", s.config()))
	}
	if a, b := fmt.Sprintf("%+v", lists[0]), fmt.Sprintf("%+v", lists[1]); a != b {
		t.Errorf("the events of the servers differ:\n%s\n%s", a, b)
	}
	t.Logf("%d events", len(lists[0]))
}

// The server that delivers to a webhook is killed while a delivery runs. The other one continues from the stored
// position: the webhook gets each event at least once and in order.
func TestWebhookTakeover(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []string // IDs of pushes
	arrived, isKilled := make(chan struct{}), make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m struct{ Push string }
		text, err := io.ReadAll(r.Body)
		if err = json.NewDecoder(bytes.NewReader(text)).Decode(&m); err != nil {
			t.Errorf("request %s: %v", text, err)
		}
		mu.Lock()
		got = append(got, m.Push)
		n := len(got)
		mu.Unlock()
		if n == 8 {
			close(arrived)
			<-isKilled
		}
	}))
	defer hook.Close()
	w := newStoreWorld(t)
	extra := fmt.Sprintf("[[webhook]]\nname = \"all\"\nurl = %q\nallow_private = true\n", hook.URL)
	a := w.serve("a", extra)
	runPackhorse(t, "", "repo", "create", "app", "--config", a.config())
	first := &pusher{Repo: gittest.Init(t), branch: "a", token: a.token}
	first.Git("update-ref", "refs/heads/main", first.Commit("first").String())
	if err := first.push(a.http, ""); err != nil {
		t.Fatal(err)
	}
	gittest.WaitFor(t, "the first server delivers", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) > 0
	})
	b := w.serve("b", extra)
	second := &pusher{Repo: gittest.Init(t), branch: "b", token: b.token}
	second.Git("update-ref", "refs/heads/main", second.Commit("second").String())
	over := make(chan struct{})
	var pushing sync.WaitGroup
	pushing.Go(func() { first.pushUntil(a.http, over) })
	for i := range 20 {
		if err := second.push(b.http, fmt.Sprint(i)); err != nil {
			t.Error(err)
		}
	}
	<-arrived
	a.kill()
	close(isKilled)
	close(over)
	pushing.Wait()
	for i := range 5 {
		if err := second.push(b.http, fmt.Sprint("after ", i)); err != nil {
			t.Error(err)
		}
	}
	var want []string
	refs := w.git(w.clone(b.url("app")), "for-each-ref", refsFormat)
	for _, e := range checkEvents(t, refs, []*pusher{first, second}, "--config", b.config()) {
		if e.Kind == "push" {
			want = append(want, e.ID)
		}
	}
	var distinct []string
	gittest.WaitFor(t, "the other server has delivered all events", func() bool {
		mu.Lock()
		defer mu.Unlock()
		distinct = nil
		for _, id := range got {
			if !slices.Contains(distinct, id) {
				distinct = append(distinct, id)
			}
		}
		return len(distinct) >= len(want)
	})
	if !slices.Equal(distinct, want) {
		t.Errorf("the webhook got %v, want %v", distinct, want)
	}
	if !strings.Contains(b.logged(), "took over the deliveries of a webhook from another node") {
		t.Error("the other server has not taken over")
	}
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d deliveries of %d events", len(got), len(want))
}
