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
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
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

// counted are States that count reads.
type counted struct {
	InBucket
	loads *atomic.Int64
}

func (c counted) Load(ctx context.Context, name string) ([]byte, error) {
	c.loads.Add(1)
	return c.InBucket.Load(ctx, name)
}

// A node that waits for the end of another node's session reads the state now and then, whatever happens meanwhile. A
// node that ends gives up its session.
func TestEndedNode(t *testing.T) {
	t.Parallel()
	var up atomic.Bool
	s := newTarget(t, func(w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	j, states := openEvents(t, t.TempDir()), counted{InBucket{buckettest.NewMemory(1)}, &atomic.Int64{}}
	first, _ := openOn(t, j, states.InBucket, told("a", s.URL))
	first.takeAfter = time.Hour
	first.Start()
	if !eventually(func() bool {
		state, err := first.stateOf(t.Context(), "a")
		return err == nil && state.Session == first.session
	}) {
		t.Fatal("the first node has no session")
	}
	second, _ := openOn(t, j, states, told("a", s.URL))
	second.takeAfter = time.Hour
	second.Start()
	for i := range 5 {
		p := push(fmt.Sprint("P", i), "1", "2")
		do(t, first, p, p.Updates)
		time.Sleep(20 * time.Millisecond)
	}
	if loads := states.loads.Load(); loads > 10 {
		t.Errorf("a node that waits has read the state %d times", loads)
	}
	first.Close()
	if state, err := second.stateOf(t.Context(), "a"); err != nil || state.Session != "" {
		t.Errorf("after the end of the first node the session is %q (%v)", state.Session, err)
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
	asked := told("asked", s.URL)
	asked.Pre, asked.Post = true, false
	h, _ := open(t, dir, told("configured", s.URL), asked)
	h.Start()
	before := push("Before", "1", "2")
	do(t, h, before, before.Updates)
	s.wait(t, 1)
	ask := func(change func(*packhorsev1.WebhookServiceAddRequest)) *packhorsev1.WebhookServiceAddRequest {
		r := &packhorsev1.WebhookServiceAddRequest{Secret: "a secret of some length", Webhook: &packhorsev1.Webhook{Name: "a",
			Url: s.URL + "/x?token=sesame", AllowPrivate: true, Repositories: []string{"team/app"},
			Events: []string{"push", "delete"}}}
		change(r)
		return r
	}
	a := ask(func(*packhorsev1.WebhookServiceAddRequest) {})
	for i, test := range []struct {
		change func(*packhorsev1.WebhookServiceAddRequest)
		kind   fault.Kind
	}{
		{func(r *packhorsev1.WebhookServiceAddRequest) { r.Webhook = nil }, fault.Invalid},
		{func(r *packhorsev1.WebhookServiceAddRequest) { r.Webhook.Name = "../a" }, fault.Invalid},
		{func(r *packhorsev1.WebhookServiceAddRequest) { r.Webhook.Url = "ftp://x" }, fault.Invalid},
		{func(r *packhorsev1.WebhookServiceAddRequest) { r.Webhook.AllowPrivate = false }, fault.Invalid},
		{func(r *packhorsev1.WebhookServiceAddRequest) { r.Secret = "short" }, fault.Invalid},
		{func(r *packhorsev1.WebhookServiceAddRequest) { r.Webhook.Events = []string{"x"} }, fault.Invalid},
		{func(r *packhorsev1.WebhookServiceAddRequest) { r.Webhook.Format = "x" }, fault.Invalid},
		{func(r *packhorsev1.WebhookServiceAddRequest) { r.Webhook.Format = GitHub }, fault.Invalid},
		{func(r *packhorsev1.WebhookServiceAddRequest) { r.Webhook.Repositories = []string{"bad"} }, fault.Invalid},
		{func(r *packhorsev1.WebhookServiceAddRequest) { r.Webhook.Name, r.Replace = "configured", true }, fault.Exists},
	} {
		if err := h.Add(t.Context(), ask(test.change)); !fault.Is(err, test.kind) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("Add of bad request %d = %v, want %v", i, err, test.kind)
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
	if err != nil || len(list) != 3 || list[0].Name != "a" || !list[0].HasSecret ||
		list[0].Configured || !list[1].Configured || list[1].Events[0] != "pre-receive" || !list[2].Configured {
		t.Errorf("List = %+v, %v", list, err)
	}
	var deliveries []*packhorsev1.WebhookDelivery
	if !eventually(func() bool {
		deliveries, err = h.Deliveries(t.Context(), "a")
		return err == nil && len(deliveries) == 1
	}) || deliveries[0].Status != 200 || deliveries[0].Response != "thanks" {
		t.Fatalf("Deliveries = %+v, %v", deliveries, err)
	}
	fails.Store(true)
	again, err := h.Redeliver(t.Context(), "a", deliveries[0].Id)
	if err != nil || again.Status != 400 || again.Result != "failed" {
		t.Errorf("Redeliver = %+v, %v", again, err)
	}
	if _, err := h.Redeliver(t.Context(), "a", "other"); !fault.Is(err, fault.NotFound) {
		t.Errorf("Redeliver of an unknown delivery = %v", err)
	}
	for name, kind := range map[string]fault.Kind{"configured": fault.Denied, "asked": fault.Denied, "b": fault.NotFound} {
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

// TestAddedAgain replaces a target, removes it and adds another one of the same name. Another node follows. A target
// that is replaced gets no event twice, and keeps its secret.
func TestAddedAgain(t *testing.T) {
	t.Parallel()
	j, states := openEvents(t, t.TempDir()), InBucket{buckettest.NewMemory(1)}
	first, _ := openOn(t, j, states)
	second, _ := openOn(t, j, states)
	for i, step := range []string{"add", "replace", "add"} {
		s := newTarget(t, nil)
		r := &packhorsev1.WebhookServiceAddRequest{Webhook: &packhorsev1.Webhook{Name: "a", Url: s.URL, AllowPrivate: true},
			Replace: step == "replace"}
		if step == "add" {
			r.Secret = "a secret of some length"
		}
		if err := first.Add(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		list, err := second.List(t.Context())
		if err != nil || len(list) != 1 || list[0].Url != s.URL || second.queues["a"].target.URL != s.URL ||
			!list[0].HasSecret {
			t.Errorf("the other node has %+v, %v, want the URL %s", list, err, s.URL)
		}
		id := fmt.Sprint("P", i)
		p := push(id, "1", "2")
		do(t, first, p, p.Updates)
		s.wait(t, 1)
		if got := s.seen(); !slices.Equal(got, []string{id}) {
			t.Errorf("the target got %v, want %s", got, id)
		}
		if !eventually(func() bool { // the position is stored
			state, err := first.stateOf(t.Context(), "a")
			_, next, readErr := j.Read(t.Context(), event.Now, 1)
			return err == nil && readErr == nil && state.Position == next
		}) {
			t.Fatal("the position is not stored")
		}
		if i == 1 {
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
	requests, err := h.requestsOf(t.Context(), &to, &event.Event{ID: "R", Kind: event.Rename, Repository: "team/new",
		Former: "team/old"})
	if err != nil || len(requests) != 1 || !strings.Contains(string(requests[0].body),
		`"action":"renamed","changes":{"repository":{"name":{"from":"old"}}}`) {
		t.Errorf("the requests of a rename are %s, %v", requests, err)
	}
}
