package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// Of several nodes one delivers. When it is lost, another one continues from the stored position.
func TestLostNode(t *testing.T) {
	t.Parallel()
	var up atomic.Bool
	up.Store(true)
	s := newTarget(t, func(w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	j, states := openEvents(t, t.TempDir()), InBucket{buckettest.NewMemory(1)}
	open := func() *Hooks {
		h, _ := openOn(t, j, states, told("a", s.URL))
		h.takeAfter = 200 * time.Millisecond
		return h
	}
	first := open()
	do(t, first, push("P0", "1", "2"), nil)
	first.Start()
	for i := range 3 {
		p := push(fmt.Sprint("P", i), "1", "2")
		do(t, first, p, p.Updates)
	}
	s.wait(t, 3)
	if !eventually(func() bool { // the position is stored
		state, err := first.stateOf(t.Context(), "a")
		_, next, readErr := j.Read(t.Context(), event.Now, 1)
		return err == nil && readErr == nil && state.Position == next
	}) {
		t.Fatal("the position is not stored")
	}
	second := open()
	second.Start()
	up.Store(false)
	p := push("Pending", "1", "2")
	do(t, first, p, p.Updates)
	s.wait(t, 1)
	first.mu.Lock()
	first.queues["a"].hooks.o.States = lost{} // nothing of this process is stored any more
	first.mu.Unlock()
	up.Store(true)
	if !eventually(func() bool {
		state, err := second.stateOf(t.Context(), "a")
		return err == nil && state.Session == second.session && len(state.Recent) == 4
	}) {
		t.Errorf("the second node has not taken over; the target got %v", s.seen())
	}
	if got := slices.Compact(s.seen()); !slices.Equal(got, []string{"P0", "P1", "P2", "Pending"}) {
		t.Errorf("the target got %v", got)
	}
}

// lost are States that cannot be reached.
type lost struct{ Directory }

func (lost) Load(context.Context, string) ([]byte, error) {
	return nil, fault.New(fault.Unavailable, "lost")
}
func (lost) Save(context.Context, string, []byte) error { return fault.New(fault.Unavailable, "lost") }
func (lost) IsShared() bool                             { return true }

func TestAdded(t *testing.T) {
	t.Parallel()
	var fails atomic.Bool
	s := newTarget(t, func(w http.ResponseWriter, _ *http.Request) {
		if fails.Load() {
			w.WriteHeader(http.StatusBadRequest)
		}
		fmt.Fprint(w, "thanks")
	})
	dir := t.TempDir()
	h, _ := open(t, dir, told("configured", s.URL))
	h.Start()
	before := push("Before", "1", "2")
	do(t, h, before, before.Updates)
	s.wait(t, 1)
	a := Added{Name: "a", URL: s.URL + "/x?token=sesame", Secret: "a secret of some length", AllowPrivate: true,
		Repositories: []string{"team/app"}, Kinds: []event.Kind{event.Push, event.Delete}}
	for _, test := range []struct {
		change func(*Added)
		kind   fault.Kind
	}{
		{func(a *Added) { a.Name = "../a" }, fault.Invalid}, {func(a *Added) { a.URL = "ftp://x" }, fault.Invalid},
		{func(a *Added) { a.AllowPrivate = false }, fault.Invalid}, {func(a *Added) { a.Secret = "short" }, fault.Invalid},
		{func(a *Added) { a.Kinds = []event.Kind{"x"} }, fault.Invalid}, {func(a *Added) { a.Format = "x" }, fault.Invalid},
		{func(a *Added) { a.Format = GitHub }, fault.Invalid},
		{func(a *Added) { a.Repositories = []string{"bad"} }, fault.Invalid},
		{func(a *Added) { a.Name = "configured" }, fault.Exists},
	} {
		bad := a
		test.change(&bad)
		if err := h.Add(t.Context(), bad); !fault.Is(err, test.kind) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("Add(%+v) = %v, want %v", bad, err, test.kind)
		}
	}
	h.o.AllowPrivate = false
	if err := h.Add(t.Context(), a); !fault.Is(err, fault.Denied) {
		t.Errorf("Add with a private address = %v, want denied", err)
	}
	h.o.AllowPrivate = true
	if err := h.Add(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if err := h.Add(t.Context(), a); !fault.Is(err, fault.Exists) {
		t.Errorf("Add of the same name = %v, want exists", err)
	}
	h, _ = reopen(t, h) // it is durable
	h.Start()
	j := h.o.Events.(*event.Journal)
	if err := j.Change(&event.Event{Kind: event.Delete, Repository: "team/app"}, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	last := -1 // the position of the other target may be older than the restart: it gets a delivery again
	if !eventually(func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		last = slices.IndexFunc(s.head, func(h http.Header) bool { return h.Get("Packhorse-Event") == "delete" })
		return last >= 0
	}) {
		t.Fatalf("nothing comes after %v", s.seen())
	}
	s.mu.Lock()
	if head := s.head[last]; s.got[last].Event != "delete" ||
		head.Get("Packhorse-Signature") == "" {
		t.Errorf("the request is %s with %v", s.raw[last], s.head[last])
	}
	s.mu.Unlock()
	list, err := h.List(t.Context())
	if err != nil || len(list) != 2 || list[0].Name != "a" || list[0].Secret != "" || !list[0].HasSecret ||
		list[0].IsConfigured || !list[1].IsConfigured {
		t.Errorf("List = %+v, %v", list, err)
	}
	var deliveries []Delivery
	if !eventually(func() bool {
		deliveries, err = h.Deliveries(t.Context(), "a")
		return err == nil && len(deliveries) == 1
	}) || deliveries[0].Status != 200 || deliveries[0].Response != "thanks" {
		t.Fatalf("Deliveries = %+v, %v", deliveries, err)
	}
	fails.Store(true)
	again, err := h.Redeliver(t.Context(), "a", deliveries[0].ID)
	if err != nil || again.Status != 400 || again.Result != "failed" {
		t.Errorf("Redeliver = %+v, %v", again, err)
	}
	if _, err := h.Redeliver(t.Context(), "a", "other"); !fault.Is(err, fault.NotFound) {
		t.Errorf("Redeliver of an unknown delivery = %v", err)
	}
	for name, kind := range map[string]fault.Kind{"configured": fault.Denied, "b": fault.NotFound} {
		if err := h.Remove(t.Context(), name); !fault.Is(err, kind) {
			t.Errorf("Remove(%s) = %v, want %v", name, err, kind)
		}
	}
	if err := h.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if names, _ := h.o.States.List(t.Context()); !slices.Equal(names, []string{"configured"}) {
		t.Errorf("the states are %v", names)
	}
}

// TestAddedAgain removes a target and adds another one of the same name, before another node has seen the removal.
func TestAddedAgain(t *testing.T) {
	t.Parallel()
	old, s := newTarget(t, nil), newTarget(t, nil)
	j, states := openEvents(t, t.TempDir()), InBucket{buckettest.NewMemory(1)}
	first, _ := openOn(t, j, states)
	second, _ := openOn(t, j, states)
	for _, target := range []*target{old, s} {
		a := Added{Name: "a", URL: target.URL, Secret: "a secret of some length", AllowPrivate: true}
		if err := first.Add(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		list, err := second.List(t.Context())
		if err != nil || len(list) != 1 || list[0].URL != target.URL || second.queues["a"].target.URL != target.URL {
			t.Errorf("the other node has %+v, %v, want the URL %s", list, err, target.URL)
		}
		if target == old {
			if err := first.Remove(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The requests in the format of GitHub have the fields that CI systems read.
func TestGitHub(t *testing.T) {
	t.Parallel()
	s := newTarget(t, nil)
	to := told("a", s.URL)
	to.Format, to.BaseURL, to.Secret = GitHub, "https://git.example", func() string { return "a secret of some length" }
	h, _ := open(t, "", to)
	h.o.Head = func(context.Context, git.RepoPath) (string, error) { return "trunk", nil }
	h.o.Commits = func(_ context.Context, _ git.RepoPath, u receivepack.Update, _ int) ([]Commit, error) {
		return []Commit{{ID: u.New.String(), Message: "m", Timestamp: GitHubTime(0, 60),
			Author: GitHubPerson{Name: "Ada", Email: "ada@example"}}}, nil
	}
	p := push("P", "1", "2")
	p.Updates = append(p.Updates,
		receivepack.Update{Ref: "refs/heads/feature/x", New: id("3"), Kind: receivepack.Created},
		receivepack.Update{Ref: "refs/tags/v1", Old: id("4"), Kind: receivepack.Deleted},
		receivepack.Update{Ref: "refs/notes/x", New: id("5"), Kind: receivepack.Created})
	do(t, h, p, p.Updates)
	h.Start()
	s.wait(t, 5)
	var kinds []string
	for i, head := range s.head {
		kinds = append(kinds, head.Get("X-GitHub-Event"))
		if head.Get("X-GitHub-Delivery") != fmt.Sprintf("P-%d", i) ||
			!strings.HasPrefix(head.Get("X-Hub-Signature-256"), "sha256=") || head.Get("Packhorse-Event") != "" {
			t.Errorf("request %d has the header %v", i, head)
		}
	}
	if got := strings.Join(kinds, " "); got != "push push create push delete" {
		t.Errorf("the events are %s", got)
	}
	var m map[string]any
	if err := json.Unmarshal(s.raw[0], &m); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]any{
		// Argo CD reads repository and revision, Jenkins the URL, Drone also the names, the commit and the sender.
		"ref": "refs/heads/main", "before": strings.Repeat("1", 40), "after": strings.Repeat("2", 40), "forced": true,
		"created": false, "deleted": false, "repository.html_url": "https://git.example/team/app",
		"repository.url": "https://git.example/team/app", "repository.clone_url": "https://git.example/team/app.git",
		"repository.full_name": "team/app", "repository.name": "app", "repository.owner.login": "team",
		"repository.owner.name": "team", "repository.default_branch": "trunk", "repository.private": true,
		"head_commit.id": strings.Repeat("2", 40), "head_commit.message": "m", "head_commit.author.name": "Ada",
		"head_commit.author.email": "ada@example", "head_commit.timestamp": "1970-01-01T01:00:00+01:00",
		"head_commit.url": "https://git.example/team/app/commit/" + strings.Repeat("2", 40),
		"pusher.name":     "ada", "sender.login": "ada", "base_ref": nil,
	} {
		var at any = m
		for part := range strings.SplitSeq(path, ".") {
			at = at.(map[string]any)[part]
		}
		if at != want {
			t.Errorf("%s is %v, want %v", path, at, want)
		}
	}
	if commit := m["commits"].([]any)[0].(map[string]any); len(commit["added"].([]any)) != 0 {
		t.Errorf("the commit is %v", commit)
	}
	if !strings.Contains(string(s.raw[2]), `"ref":"feature/x","ref_type":"branch"`) ||
		!strings.Contains(string(s.raw[4]), `"ref":"v1","ref_type":"tag"`) {
		t.Errorf("create is %s, delete %s", s.raw[2], s.raw[4])
	}
}
