package remote_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/remote"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

func repoPath(t testing.TB, path string) git.RepoPath {
	t.Helper()
	parsed, err := git.ParseRepoPath(path)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// The node elsewhere answers what the node itself answers.
func TestResolveElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, options{})
	app := gittest.InitAt(t, w.root+"/app.git")
	app.Git("update-ref", "refs/heads/main", app.Commit("one").String())
	app.Git("tag", "-a", "-m", "t", "v1", "main")
	var questions []node.Question
	for _, revision := range []string{"", "main", "v1", "v1^{}", "main^{tree}", "main~1", "none", "a b",
		app.ID("main").String(), app.ID("main").String()[:8], "\u00e9"} {
		questions = append(questions, node.Question{Repository: repoPath(t, "app"), Revision: revision},
			node.Question{Repository: repoPath(t, "none"), Revision: revision})
	}
	ctx := t.Context()
	ours, err := w.remote.Resolve(ctx, questions)
	w.do(err)
	theirs, err := w.node.ResolveRevisions(ctx, questions)
	w.do(err)
	for i, q := range questions {
		if !reflect.DeepEqual(ours[i].Answer, theirs[i].Answer) ||
			fault.KindOf(ours[i].Err) != fault.KindOf(theirs[i].Err) ||
			ours[i].Err != nil && fault.Message(ours[i].Err) != fault.Message(theirs[i].Err) {
			t.Errorf("%v: %+v, the node says %+v", q, ours[i], theirs[i])
		}
	}
	if _, err := w.remote.Resolve(ctx, make([]node.Question, storage.MaxNames+1)); !fault.Is(err,
		fault.Invalid) {
		t.Errorf("too many: %v", err)
	}
	if _, err := w.remote.Resolve(ctx, []node.Question{{Repository: repoPath(t, "app"),
		Revision: strings.Repeat("a", 2<<20)}}); !fault.Is(err, fault.Invalid) {
		t.Errorf("too long: %v", err)
	}

	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	events, ended := make(chan node.Event, 10), make(chan error, 1)
	go func() {
		ended <- w.remote.Watch(ctx, []node.Known{{Repository: repoPath(t, "app")},
			{Repository: repoPath(t, "none")}}, func(e node.Event) error {
			events <- e
			return nil
		})
	}()
	first := map[string]node.Event{}
	for range 2 {
		e := <-events
		first[e.Repository.String()] = e
	}
	if e := first["app"]; e.Gone || e.Version.Incarnation != theirs[0].Version.Incarnation ||
		e.Version.Generation < theirs[0].Version.Generation || !first["none"].Gone {
		t.Errorf("a watch begins with %+v", first)
	}
	app.Git("update-ref", "refs/heads/main", app.Commit("two").String())
	if e := <-events; e.Gone || e.Version.Generation <= first["app"].Version.Generation ||
		e.Version.Epoch != first["app"].Version.Epoch {
		t.Errorf("after a change: %+v", e)
	}
	w.kill()
	if err := <-ended; !fault.Is(err, fault.Unavailable) {
		t.Errorf("the node is gone: %v", err)
	}
}

// liar answers revisions as a test says.
type liar struct {
	packhorsev1connect.UnimplementedRefServiceHandler
	answer *packhorsev1.ResolveRevisionsResponse
}

func (l *liar) ResolveRevisions(context.Context,
	*connect.Request[packhorsev1.ResolveRevisionsRequest]) (*connect.Response[packhorsev1.ResolveRevisionsResponse],
	error) {
	return connect.NewResponse(l.answer), nil
}

func TestResolveNonsense(t *testing.T) {
	t.Parallel()
	found := func(oid, typ string) *packhorsev1.RevisionResult {
		return &packhorsev1.RevisionResult{Result: &packhorsev1.RevisionResult_Found{
			Found: &packhorsev1.RevisionFound{Oid: oid, Type: typ}}}
	}
	const id = "0123456789012345678901234567890123456789"
	for name, results := range map[string][]*packhorsev1.RevisionResult{
		"none": nil, "two": {found(id, "blob"), found(id, "blob")}, "empty": {{}}, "bad ID": {found("main", "commit")},
		"bad type": {found(id, "thing")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nodeOf(t, &liar{answer: &packhorsev1.ResolveRevisionsResponse{Results: results}})
			if results, err := n.Resolve(t.Context(), []node.Question{{Repository: repoPath(t, "app"),
				Revision: "main"}}); err == nil {
				t.Errorf("taken for an answer: %+v", results)
			}
		})
	}
}

// nodeOf is the gateway's side of a node that has this for revisions.
func nodeOf(t *testing.T, revisions packhorsev1connect.RefServiceHandler) *remote.Node {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(packhorsev1connect.NewRefServiceHandler(revisions))
	if waits, ok := revisions.(internalv1connect.NodeServiceHandler); ok {
		mux.Handle(internalv1connect.NewNodeServiceHandler(waits))
	}
	healthy(mux)
	port := &http.Server{Handler: mux, Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute}
	port.Protocols.SetUnencryptedHTTP2(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go port.Serve(l)
	t.Cleanup(func() { port.Close() })
	return newRemote(t, l.Addr().String())
}

// spender answers revisions, and fails waits, for which git has run.
type spender struct {
	packhorsev1connect.UnimplementedRefServiceHandler
	internalv1connect.UnimplementedNodeServiceHandler
	used inflight.Usage
}

func (s *spender) ResolveRevisions(context.Context,
	*connect.Request[packhorsev1.ResolveRevisionsRequest]) (*connect.Response[packhorsev1.ResolveRevisionsResponse],
	error) {
	answer := connect.NewResponse(&packhorsev1.ResolveRevisionsResponse{})
	answer.Header().Set(inflight.UsageHeader, s.used.Header())
	return answer, nil
}

func (s *spender) Wait(context.Context,
	*connect.Request[internalv1.WaitRequest]) (*connect.Response[internalv1.WaitResponse], error) {
	err := connect.NewError(connect.CodeDeadlineExceeded, errors.New("not yet"))
	err.Meta().Set(inflight.UsageHeader, s.used.Header())
	return nil, err
}

// Resources that git uses on a node for a look-up count for the request here, with any result.
func TestUsageOfLookups(t *testing.T) {
	t.Parallel()
	used := inflight.Usage{Commands: 1, User: 2 * time.Millisecond, System: time.Millisecond, MaxRSS: 1 << 20,
		In: 3, Out: 4}
	n := nodeOf(t, &spender{used: used})
	board := inflight.NewBoard()
	for name, ask := range map[string]func(context.Context) error{
		"resolve": func(ctx context.Context) error { _, err := n.Resolve(ctx, nil); return err },
		"wait": func(ctx context.Context) error {
			_, err := n.Wait(ctx, repoPath(t, "app"), node.WaitCondition{Generation: 1})
			if !fault.Is(err, fault.Deadline) {
				return fmt.Errorf("the wait ended with %w", err)
			}
			return nil
		},
	} {
		ctx, request := board.Begin(t.Context(), name, "")
		if err := ask(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := request.Usage(); got != used {
			t.Errorf("%s: git has used %+v", name, got)
		}
		request.End()
	}
}

// newRemote is the gateway's side of a node at an address.
func newRemote(t *testing.T, address string) *remote.Node {
	t.Helper()
	n, err := remote.New(remote.Options{Name: "one", Address: address, InBand: true,
		Log: (&world{log: &lockedBuffer{}}).logger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}
