package githttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// named is a replica that answers with its own name.
func named(name string) *router.Replica {
	n := answerWith(name)
	n.advertise = func(node.Session) ([]byte, error) { return []byte(name), nil }
	return &router.Replica{Name: name, Node: n}
}

// get asks for an advertisement in version 2.
func (s *server) get(repo string) (response *http.Response, body string) {
	s.t.Helper()
	c := s.dial()
	c.send("GET /" + repo + "/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nConnection: " +
		"close\r\nGit-Protocol: version=2\r\n\r\n")
	response, body, err := c.answer()
	if err != nil {
		s.t.Fatal(err)
	}
	return response, body
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	s := serveRoutes(t, []router.Route{
		{Prefix: "team", Replicas: []*router.Replica{named("team")}},
		{Prefix: "/team/app/", Replicas: []*router.Replica{named("app")}},
		{Prefix: "team/tool.git", Replicas: []*router.Replica{named("tool")}},
		{Prefix: "a/b/c", Replicas: []*router.Replica{named("deep")}},
	}, options{})
	for repo, want := range map[string]string{
		"team": "team", "team.git": "team", "team/x": "team", "team/x/y.git": "team", "team/application": "team",
		"team/apple.git": "team",
		"team/app":       "app", "team/app.git": "app", "team/app/x": "app", "team//app": "", "team/tool": "tool",
		"team/tool.git": "tool",
		"team/tool/x":   "tool", "team/.git": "team", "teamwork": "", "teamwork/app": "", "x/team": "", "a/b": "",
		"a/b/c": "deep", "a/b/cd": "",
		"a/b/c/" + strings.Repeat("d/", 400) + "e": "deep",
	} {
		response, body := s.get(repo)
		if want == "" {
			if response.StatusCode != 404 || !strings.HasPrefix(body, "no ") || !strings.HasSuffix(body, "\n") {
				t.Errorf("%s: %s %q, want 404", repo, response.Status, body)
			}
		} else if body != want {
			t.Errorf("%s goes to %q, want %q", repo, body, want)
		}
	}
	if err := s.router.Set([]router.Route{
		{Replicas: []*router.Replica{named("rest")}}, {Prefix: "team", Replicas: []*router.Replica{named("team2")}},
	}); err != nil {
		t.Fatal(err)
	}
	for repo, want := range map[string]string{"team/app": "team2", "teamwork": "rest", "x": "rest"} {
		if _, body := s.get(repo); body != want {
			t.Errorf("then %s goes to %q, want %q", repo, body, want)
		}
	}
}

func TestBadRoutes(t *testing.T) {
	t.Parallel()
	a, b := named("a"), named("b")
	r := router.New(nil)
	if err := r.Set([]router.Route{{Replicas: []*router.Replica{a, b}}}); err != nil {
		t.Fatal(err)
	}
	for says, routes := range map[string][]router.Route{
		`two routes for "team"`: {{Prefix: "team", Replicas: []*router.Replica{a}},
			{Prefix: "/team.git", Replicas: []*router.Replica{b}}},
		`two routes for ""`: {{Prefix: "/", Replicas: []*router.Replica{a}}, {Replicas: []*router.Replica{b}}},
		"names no node":     {{Prefix: "team"}},
		`two called "a"`: {{Prefix: "team", Replicas: []*router.Replica{a}},
			{Replicas: []*router.Replica{named("a")}}},
		`two called ""`:           {{Replicas: []*router.Replica{named("")}}},
		"names the node a twice":  {{Replicas: []*router.Replica{a, b, a}}},
		`for "a/../b" can cover`:  {{Prefix: "a/../b", Replicas: []*router.Replica{a}}},
		`for "-/x" can cover`:     {{Prefix: "-/x", Replicas: []*router.Replica{a}}},
		`for "a\nb" can cover no`: {{Prefix: "a\nb", Replicas: []*router.Replica{a}}},
	} {
		if err := r.Set(routes); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("want %s, got: %v", says, err)
		}
	}
	if n := r.Status(); len(n) != 2 || n[0].Name != "a" || n[1].Name != "b" {
		t.Errorf("nodes = %+v, want the previous a and b", n)
	}
}

// switched is a replica that can be down.
func switched(r *router.Replica) (*router.Replica, *atomic.Bool) {
	down := &atomic.Bool{}
	r.Ready = func() error {
		if down.Load() {
			return errors.New("connection refused")
		}
		return nil
	}
	return r, down
}

func TestNodesThatTakeNoRequests(t *testing.T) {
	t.Parallel()
	a, aDown := switched(named("a"))
	b, bDown := switched(named("b"))
	s := serveRoutes(t, []router.Route{
		{Replicas: []*router.Replica{a, b}}, {Prefix: "one", Replicas: []*router.Replica{a}},
		{Prefix: "many", Replicas: []*router.Replica{a, b, named("c"), named("d"), named("e"), named("f"), named("g")}},
	}, options{})
	expect := func(repo, want, after string) {
		t.Helper()
		response, body := s.get(repo)
		if after == "" && (response.StatusCode != 200 || body != want) {
			t.Errorf("%s: %s %q, want %q", repo, response.Status, body, want)
		} else if after != "" && (response.StatusCode != 503 || body != want+"\n" ||
			response.Header.Get("Retry-After") != after ||
			response.Header.Get("Content-Type") != "text/plain; charset=utf-8") {
			t.Errorf("%s: %s %v %q, want %q", repo, response.Status, response.Header, body, want)
		}
	}
	expect("x", "a", "")
	aDown.Store(true)
	expect("x", "b", "")
	expect("x", "b", "")
	expect("one", "the storage node a, which has this repository, cannot be reached; try again", "1")
	bDown.Store(true)
	expect("x", "the storage nodes a and b, which have this repository, cannot be reached; try again", "1")
	if n := s.router.Status(); n[0].Down == nil || n[0].Down.Error() != "connection refused" ||
		len(n[0].Prefixes) != 3 || n[2].Down != nil {
		t.Errorf("nodes = %+v, want a down and c up", n)
	}
	if s.value("packhorse_node_up{node=a}") != 0 || s.value("packhorse_node_up{node=c}") != 1 {
		t.Error("metrics: a is up or c is down, want a down and c up")
	}
	for _, name := range []string{"b", "c", "d", "e", "f", "g"} {
		if err := s.router.Drain(name); err != nil {
			t.Fatal(err)
		}
	}
	expect("x", "no storage node that has this repository takes requests now: a cannot be reached and b is being taken "+
		"out of service; try again", "1")
	expect("many", "no storage node that has this repository takes requests now: a cannot be reached, b is being taken "+
		"out of service, "+
		"c is being taken out of service, d is being taken out of service, e is being taken out of service and 2 more; "+
		"try again", "1")
	aDown.Store(false)
	expect("x", "a", "")
	if err := s.router.Drain("a"); err != nil {
		t.Fatal(err)
	}
	expect("one", "the storage node a, which has this repository, is being taken out of service; try again later", "10")
	expect("x", "the storage nodes a and b, which have this repository, are being taken out of service; try again later",
		"10")
	bDown.Store(false)
	if err := s.router.Undrain("b"); err != nil {
		t.Fatal(err)
	}
	expect("x", "b", "")
	if err := s.router.Drain("y"); !fault.Is(err, fault.NotFound) ||
		!strings.Contains(err.Error(), `"y" does not exist: known are a, b, c, d, e, f, g`) {
		t.Errorf("Drain error = %v, want kind %v", err, fault.NotFound)
	}
	if !eventually(func() bool { return strings.Contains(s.log.String(), "connection refused") }) {
		t.Errorf("log = %s, want the reason why a node is down", s.log)
	}
}

// A node that is about to end answers as long as it can, if there is no other.
func TestNodesThatAreNotReady(t *testing.T) {
	t.Parallel()
	a, aDown := switched(named("a"))
	b, bDown := switched(named("b"))
	var reachable atomic.Bool
	b.Usable = reachable.Load
	s := serveRoutes(t, []router.Route{{Replicas: []*router.Replica{a, b}}}, options{})
	bDown.Store(true)
	reachable.Store(true)
	for range 3 {
		if _, body := s.get("x"); body != "a" {
			t.Errorf("answer of %q, want a: it is ready", body)
		}
	}
	aDown.Store(true)
	if _, body := s.get("x"); body != "b" {
		t.Errorf("answer of %q, want b: it can be reached", body)
	}
	reachable.Store(false)
	if response, body := s.get("x"); response.StatusCode != 503 {
		t.Errorf("status = %s, body = %q, want 503", response.Status, body)
	}
}

// TestDrainOutlastsRoutes drains a node and changes the routes.
func TestDrainOutlastsRoutes(t *testing.T) {
	t.Parallel()
	b := named("b")
	s := serveRoutes(t, []router.Route{{Replicas: []*router.Replica{named("a"), b}}}, options{})
	if err := s.router.Drain("b"); err != nil {
		t.Fatal(err)
	}
	if err := s.router.Set([]router.Route{{Replicas: []*router.Replica{b}}}); err != nil {
		t.Fatal(err)
	}
	if response, _ := s.get("other"); response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("status with only a drained node = %d, want %d", response.StatusCode, http.StatusServiceUnavailable)
	}
}

// TestGitShowsTheSentence checks the error messages of real git.
func TestGitShowsTheSentence(t *testing.T) {
	t.Parallel()
	a, down := switched(&router.Replica{Name: "n1", Node: &fakeNode{advertise: func(node.Session) ([]byte, error) {
		return protocol.Capabilities{Agent: "test"}.Append(nil), nil
	}}})
	a.Node.(*fakeNode).serve = failing(fault.New(fault.Unavailable, "the storage node n1 went away")).serve
	s := serveRoutes(t, []router.Route{{Prefix: "team", Replicas: []*router.Replica{a}}}, options{})
	lsRemote := func(repo string, says ...string) {
		t.Helper()
		_, err := gittest.At(t, t.TempDir()).Try("-c", "protocol.version=2", "ls-remote", "http://"+s.addr+"/"+repo)
		for _, text := range says {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("error of git = %v, want %q", err, text)
			}
		}
	}
	lsRemote("work", "remote: no storage node serves repositories at work; check the path", "not found")
	lsRemote("team/app", "503") // for a failed POST git shows the status only
	down.Store(true)
	lsRemote("team/app", "remote: the storage node n1, which has this repository, cannot be reached; try again",
		"error: 503")
}

// A replica goes when no route names it any more and its last request has ended: once, and not before.
func TestReplicasGo(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	var gone [3]atomic.Int64
	replica := func(i int, n router.Node) *router.Replica {
		return &router.Replica{Name: "n", Node: n, Gone: func() { gone[i].Add(1) }}
	}
	first := replica(0, session(func(_ context.Context, reply node.ResponseWriter) error {
		entered <- struct{}{}
		<-leave
		_, err := reply.Write([]byte("old"))
		return err
	}))
	s := serveRoutes(t, []router.Route{{Replicas: []*router.Replica{first}}}, options{})
	set := func(routes ...router.Route) {
		t.Helper()
		if err := s.router.Set(routes); err != nil {
			t.Fatal(err)
		}
	}
	c := s.dial()
	c.send(post("Content-Length: 24") + lsRefs)
	<-entered
	if err := s.router.Drain("n"); err != nil {
		t.Fatal(err)
	}
	set(router.Route{Replicas: []*router.Replica{first}}, router.Route{Prefix: "x", Replicas: []*router.Replica{first}})
	set(router.Route{Replicas: []*router.Replica{replica(1, answerWith("new"))}})
	if n := s.router.Status()[0]; n.InFlight != 1 || !n.Draining {
		t.Errorf("node that stays = %+v, want it draining with 1 in flight", n)
	}
	if err := s.router.Undrain("n"); err != nil {
		t.Fatal(err)
	}
	other := s.dial()
	other.send(post("Content-Length: 24") + lsRefs)
	if _, body, _ := other.answer(); body != "new" {
		t.Errorf("body = %q, want new", body)
	}
	if n := gone[0].Load(); n != 0 {
		t.Errorf("released during a request = %d, want 0", n)
	}
	set()
	if n := gone[1].Load(); n != 1 || len(s.router.Status()) != 0 {
		t.Errorf("released idle replica = %d times, want 1", n)
	}
	if response, _ := s.get("repo"); response.StatusCode != 404 {
		t.Errorf("without routes: status = %s, want 404", response.Status)
	}
	close(leave)
	if _, body, err := c.answer(); body != "old" || err != nil {
		t.Errorf("running request: body = %q, error = %v, want old", body, err)
	}
	if !eventually(func() bool { return gone[0].Load() == 1 }) {
		t.Errorf("released after the last request = %d times, want 1", gone[0].Load())
	}
	if n := s.value("packhorse_route_assignments_total{node=n,reason=only}"); n != 0 {
		t.Errorf("assignments of a removed node = %v, want no series", n)
	}
}

// unsteady is a node that fails some requests, but none that another one has failed.
type unsteady struct {
	router.Node
	failed *sync.Map // repositories
	count  atomic.Int64
	closed atomic.Bool
	asked  atomic.Int64 // after it was closed
}

func (n *unsteady) Advertise(context.Context, git.RepoPath, node.Session, node.ResponseWriter) (node.Outcome, error) {
	return node.Outcome{}, nil
}

func (n *unsteady) ReceivePack(ctx context.Context, repo git.RepoPath, s node.Session, _ node.Pusher, request io.Reader,
	reply node.ResponseWriter) (
	node.Outcome, error) {
	return n.UploadPack(ctx, repo, s, request, reply)
}

func (n *unsteady) UploadPack(ctx context.Context, repo git.RepoPath, _ node.Session, request io.Reader,
	reply node.ResponseWriter) (node.Outcome, error) {
	if n.closed.Load() {
		n.asked.Add(1)
	}
	answers := answerWith("0000")
	if n.count.Add(1)%3 == 0 {
		if _, before := n.failed.LoadOrStore(repo, true); !before {
			answers = failAt("read, bulk, length", fault.New(fault.Unavailable, "shutting down"))
		}
	}
	return answers.serve(ctx, request, reply)
}

// Routes and marks change while clients clone: none of them fails, and no replica goes while it is used.
func TestChangesUnderLoad(t *testing.T) {
	t.Parallel()
	var failed sync.Map
	var gone atomic.Int64
	var nodes []*unsteady
	replica := func(name string) *router.Replica {
		n := &unsteady{failed: &failed}
		nodes = append(nodes, n)
		return &router.Replica{Name: name, Node: n, Gone: func() { n.closed.Store(true); gone.Add(1) }}
	}
	stays := []*router.Replica{replica("stays"), replica("stays too"), replica("and this")}
	s := serveRoutes(t, []router.Route{{Replicas: stays}}, options{})
	var stop atomic.Bool
	var changes, clients sync.WaitGroup
	changes.Go(func() {
		for !stop.Load() {
			if err := s.router.Set([]router.Route{{Replicas: append([]*router.Replica{replica("comes and goes")},
				stays...)}}); err != nil {
				t.Error(err)
			}
			for _, name := range []string{"comes and goes", "stays"} {
				if err := s.router.Drain(name); err != nil {
					t.Errorf("Drain error = %v, want none", err)
				}
			}
			if n := s.router.Status(); len(n) != 4 {
				t.Errorf("nodes = %+v, want 4", n)
			}
			if err := s.router.Undrain("stays"); err != nil {
				t.Errorf("Undrain error = %v, want none", err)
			}
		}
	})
	for client := range 8 {
		c := s.dial()
		clients.Go(func() {
			for i := range 100 {
				c.send(strings.Replace(post("Content-Length: 24"), "/repo/", fmt.Sprintf("/repo-%d-%d/", client, i),
					1) + lsRefs)
				if response, body, err := c.answer(); body != "0000" || err != nil {
					t.Errorf("status = %s, body = %q, error = %v, want 0000", response.Status, body, err)
				}
			}
		})
	}
	clients.Wait()
	stop.Store(true)
	changes.Wait()
	if err := s.router.Set(nil); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return gone.Load() == int64(len(nodes)) }) {
		t.Errorf("released replicas = %d, want %d", gone.Load(), len(nodes))
	}
	for _, n := range nodes {
		if n.asked.Load() > 0 {
			t.Error("a released replica was asked, want not")
		}
	}
}
