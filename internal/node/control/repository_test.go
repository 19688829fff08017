package control

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/inspect"
	"github.com/packhorse-git/packhorse/internal/node/merge"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// port is a node's port and what calls it.
type port struct {
	t            *testing.T
	dir          string
	lanes        admit.Lanes
	server       *Server
	repositories packhorsev1connect.RepositoryServiceClient
	refs         packhorsev1connect.RefServiceClient
	objects      packhorsev1connect.ObjectServiceClient
	merges       packhorsev1connect.MergeServiceClient
	diffs        packhorsev1connect.DiffServiceClient
	history      packhorsev1connect.HistoryServiceClient
	commits      packhorsev1connect.CommitServiceClient
}

const smallPlaces = 3 // in a port's small lane

func newPort(t *testing.T) *port {
	t.Helper()
	limits := process.Limits{Slots: 2, Queue: 10}
	runner, err := process.New(process.Options{Classes: map[process.Class]process.Limits{places.ClassManage: limits,
		places.ClassMaintain: limits, receivepack.ClassReceive: limits, receivepack.ClassHook: limits,
		merge.Class: limits, inspect.Class: limits}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	p := &port{t: t, dir: t.TempDir(), lanes: admit.NewLanes(admit.Sizes{Small: smallPlaces, Hit: 3, Cold: 3, Push: 3})}
	pushes, err := receivepack.New(receivepack.Options{Runner: runner, Agent: "test", Scripts: t.TempDir(),
		Journal: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	space, err := scratch.New(filepath.Join(t.TempDir(), "scratch"))
	if err != nil {
		t.Fatal(err)
	}
	node, err := storage.New(uploadpack.New(nil, uploadpack.Options{}), storage.Options{Root: p.dir, Runner: runner,
		Pushes: pushes, Space: space, Merger: merge.New(merge.Options{Runner: runner, Space: space})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	p.server = New(Options{
		Node: node, Pump: bulk.NewPump(bulk.PumpOptions{}), Lanes: p.lanes,
		Log:   slog.New(slog.DiscardHandler),
		Board: inflight.NewBoard(),
	})
	server := httptest.NewUnstartedServer(p.server)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	t.Cleanup(p.server.end)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	p.repositories = packhorsev1connect.NewRepositoryServiceClient(client, server.URL, connect.WithGRPC())
	p.refs = packhorsev1connect.NewRefServiceClient(client, server.URL, connect.WithGRPC())
	p.merges = packhorsev1connect.NewMergeServiceClient(client, server.URL, connect.WithGRPC())
	p.diffs = packhorsev1connect.NewDiffServiceClient(client, server.URL, connect.WithGRPC())
	p.history = packhorsev1connect.NewHistoryServiceClient(client, server.URL, connect.WithGRPC())
	p.commits = packhorsev1connect.NewCommitServiceClient(client, server.URL, connect.WithGRPC())
	p.objects = packhorsev1connect.NewObjectServiceClient(client, server.URL, connect.WithGRPC())
	return p
}

// code is a call's answer as an error: its code, and whether the detail says the same.
func (p *port) code(err error, want connect.Code) {
	p.t.Helper()
	if connect.CodeOf(err) != want {
		p.t.Errorf("%v, want %v", err, want)
	}
	if err == nil {
		return
	}
	if _, ok := faultrpc.Detail[*packhorsev1.Fault](err); !ok {
		p.t.Errorf("%v carries no fault", err)
	}
	if strings.Contains(err.Error(), p.dir) {
		p.t.Errorf("the caller is told a path of the server: %v", err)
	}
}

func (p *port) create(name string) *packhorsev1.Repository {
	p.t.Helper()
	r, err := p.repositories.Create(p.t.Context(), connect.NewRequest(&packhorsev1.CreateRequest{Repository: name}))
	if err != nil {
		p.t.Fatal(err)
	}
	if !strings.HasPrefix(r.Header().Get(inflight.UsageHeader), `{"Commands":1,`) {
		p.t.Errorf("the caller is not told what git has used: %q", r.Header().Get(inflight.UsageHeader))
	}
	return r.Msg.GetRepository()
}

// TestRepositoryService goes through a repository's life.
func TestRepositoryService(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	ctx := t.Context()
	made := p.create("team/app")
	if made.GetPath() != "team/app.git" || made.GetObjectFormat() != "sha1" || made.GetHead() != "refs/heads/main" ||
		made.GetHeadOid() != "" ||
		made.GetVersion().GetIncarnation() == "" || made.GetVersion().GetEpoch() == 0 ||
		made.GetConfig()["core.repositoryformatversion"] != "0" {
		t.Errorf("%v", made)
	}
	for request, code := range map[*packhorsev1.CreateRequest]connect.Code{
		{Repository: "team/app.git"}:                  connect.CodeAlreadyExists,
		{Repository: "team"}:                          connect.CodeAlreadyExists,
		{Repository: ""}:                              connect.CodeInvalidArgument,
		{Repository: "../x"}:                          connect.CodeInvalidArgument,
		{Repository: "/"}:                             connect.CodeInvalidArgument,
		{Repository: "a\x00b"}:                        connect.CodeInvalidArgument,
		{Repository: "x", ObjectFormat: "md5"}:        connect.CodeInvalidArgument,
		{Repository: "x", DefaultBranch: "--upload="}: connect.CodeInvalidArgument,
	} {
		_, err := p.repositories.Create(ctx, connect.NewRequest(request))
		p.code(err, code)
	}
	repo := gittest.At(t, filepath.Join(p.dir, "team/app.git"))
	id := repo.Commit("x")
	repo.Git("update-ref", "refs/heads/main", id.String())
	got, err := p.repositories.Get(ctx, connect.NewRequest(&packhorsev1.GetRequest{Repository: "team/app"}))
	if err != nil || got.Msg.GetRepository().GetHeadOid() != id.String() || got.Msg.GetRepository().GetRefs() != 1 ||
		got.Msg.GetRepository().GetObjects().GetLoose() != 3 {
		t.Errorf("%v, %v", got, err)
	}
	maintained, err := p.repositories.Maintain(ctx,
		connect.NewRequest(&packhorsev1.MaintainRequest{Repository: "team/app"}))
	if err != nil || maintained.Msg.GetAfter().GetPacks() != 1 || maintained.Msg.GetBefore().GetLoose() != 3 ||
		maintained.Msg.GetDuration().AsDuration() <= 0 {
		t.Errorf("%v, %v", maintained, err)
	}
	for request, code := range map[*packhorsev1.DropPacksRequest]connect.Code{
		{}:                                  connect.CodeInvalidArgument,
		{All: true, Repository: "team/app"}: connect.CodeInvalidArgument,
		{All: true}:                         connect.CodeInvalidArgument, // there is no cache
	} {
		_, err := p.repositories.DropPacks(ctx, connect.NewRequest(request))
		p.code(err, code)
	}
	_, err = p.repositories.Delete(ctx, connect.NewRequest(&packhorsev1.DeleteRequest{Repository: "team/app",
		Incarnation: "other"}))
	p.code(err, connect.CodeNotFound)
	_, err = p.repositories.Delete(ctx, connect.NewRequest(&packhorsev1.DeleteRequest{Repository: "team/app",
		Incarnation: made.GetVersion().GetIncarnation()}))
	if err != nil {
		t.Error(err)
	}
	_, err = p.repositories.Get(ctx, connect.NewRequest(&packhorsev1.GetRequest{Repository: "team/app"}))
	p.code(err, connect.CodeNotFound)
	_, err = p.repositories.Collect(ctx, connect.NewRequest(&packhorsev1.CollectRequest{Repository: "team/app"}))
	if err == nil {
		t.Error("a repository that does not exist was collected")
	}
	_, err = p.repositories.Maintain(ctx, connect.NewRequest(&packhorsev1.MaintainRequest{Repository: "team/app"}))
	p.code(err, connect.CodeNotFound)
}

func TestRepositoryPages(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	var want []string
	for i := range 7 {
		p.create(fmt.Sprintf("team/r%d", i))
		want = append(want, fmt.Sprintf("team/r%d.git", i))
	}
	var got, tokens []string
	request := &packhorsev1.ListRequest{Prefix: "team/", PageSize: 3}
	for {
		page, err := p.repositories.List(t.Context(), connect.NewRequest(request))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, page.Msg.GetRepositories()...)
		if request.PageToken = page.Msg.GetNextPageToken(); request.GetPageToken() == "" {
			break
		}
		tokens = append(tokens, request.GetPageToken())
	}
	if !slices.Equal(got, want) || len(tokens) != 2 {
		t.Errorf("%q in %d pages", got, len(tokens)+1)
	}
	for _, request := range []*packhorsev1.ListRequest{
		{Prefix: "team/", PageToken: "junk"}, {Prefix: "te", PageToken: tokens[0]},
		{Prefix: "team/", PageToken: tokens[0] + "x"}, {PageSize: -1},
		{Prefix: "team/", PageToken: pageToken(refToken, "team/", "team/r1.git")},
		{Prefix: "a", PageToken: pageToken(repositoryToken, "a", "../b")},
	} {
		_, err := p.repositories.List(t.Context(), connect.NewRequest(request))
		p.code(err, connect.CodeInvalidArgument)
	}
}

// TestRepositoryDetails lists repositories by labels, with details, and by their names.
func TestRepositoryDetails(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	ctx := t.Context()
	for name, labels := range map[string]map[string]string{"a": {"team": "web", "tier": "1"}, "b": {"team": "db"},
		"c": nil} {
		if _, err := p.repositories.Create(ctx, connect.NewRequest(&packhorsev1.CreateRequest{Repository: name,
			Settings: &packhorsev1.Settings{Labels: labels}})); err != nil {
			t.Fatal(err)
		}
	}
	made, err := p.repositories.Create(ctx, connect.NewRequest(&packhorsev1.CreateRequest{Repository: "d", ForkOf: "a",
		RequestId: "x", Settings: &packhorsev1.Settings{Labels: map[string]string{"team": "web"}}}))
	if err != nil || made.Msg.GetRepository().GetSettings().GetLabels()["team"] != "web" {
		t.Fatalf("%v, %v", made, err)
	}
	for _, test := range []struct {
		request *packhorsev1.ListRequest
		want    string
	}{
		{&packhorsev1.ListRequest{Labels: []string{"team"}}, "a.git b.git d.git"},
		{&packhorsev1.ListRequest{Labels: []string{"team=web"}}, "a.git d.git"},
		{&packhorsev1.ListRequest{Labels: []string{"team=web", "tier=1"}, Details: true}, "a.git"},
		{&packhorsev1.ListRequest{Labels: []string{"team=we"}}, ""},
		{&packhorsev1.ListRequest{After: "b.git"}, "c.git d.git"},
		{&packhorsev1.ListRequest{Only: []string{"c.git", "a.git", "none"}, Details: true}, "c.git a.git"},
	} {
		page, err := p.repositories.List(ctx, connect.NewRequest(test.request))
		if err != nil || strings.Join(page.Msg.GetRepositories(), " ") != test.want ||
			test.request.Details && len(page.Msg.GetDetails()) != len(page.Msg.GetRepositories()) {
			t.Errorf("%v: %v, want %s, error = %v", test.request, page, test.want, err)
		}
	}
	for _, request := range []*packhorsev1.ListRequest{
		{After: "a.git", PageToken: pageToken(repositoryToken, "", "a.git")}, {Only: []string{"a"}, Prefix: "a"},
		{Only: []string{"../a"}}, {Only: make([]string, 1001)}, {After: "../x"},
	} {
		_, err := p.repositories.List(ctx, connect.NewRequest(request))
		p.code(err, connect.CodeInvalidArgument)
	}
	for request, code := range map[*packhorsev1.CreateRequest]connect.Code{
		{Repository: "d", ForkOf: "a", RequestId: "x"}:        0,
		{Repository: "d", ForkOf: "a"}:                        connect.CodeAlreadyExists,
		{Repository: "e", ForkOf: "none"}:                     connect.CodeNotFound,
		{Repository: "e", ForkOf: ".."}:                       connect.CodeInvalidArgument,
		{Repository: "e", ForkOf: "a", ObjectFormat: "sha1"}:  connect.CodeInvalidArgument,
		{Repository: "e", ForkOf: "a", DefaultBranch: "main"}: connect.CodeInvalidArgument,
	} {
		_, err := p.repositories.Create(ctx, connect.NewRequest(request))
		if code != 0 || err != nil {
			p.code(err, code)
		}
	}
}

func TestRefService(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	ctx := t.Context()
	p.create("app")
	repo := gittest.At(t, filepath.Join(p.dir, "app.git"))
	id := repo.Commit("x")
	repo.Git("update-ref", "refs/heads/main", id.String())
	repo.Git("tag", "-a", "-m", "t", "v1", "main")
	repo.Git("update-ref", "refs/heads/\xff", id.String()) // which no message can hold
	found, err := p.refs.Resolve(ctx, connect.NewRequest(&packhorsev1.ResolveRequest{Repository: "app", Name: "v1"}))
	if err != nil || found.Msg.GetRef().GetName() != "refs/tags/v1" || found.Msg.GetRef().GetPeeled() != id.String() ||
		found.Msg.GetVersion().GetGeneration() == 0 {
		t.Errorf("%v, %v", found, err)
	}
	for name, code := range map[string]connect.Code{"none": connect.CodeNotFound, "a..b": connect.CodeInvalidArgument,
		"main\n": connect.CodeInvalidArgument, "": connect.CodeInvalidArgument} {
		_, err := p.refs.Resolve(ctx, connect.NewRequest(&packhorsev1.ResolveRequest{Repository: "app", Name: name}))
		p.code(err, code)
	}
	many, err := p.refs.ResolveMany(ctx,
		connect.NewRequest(&packhorsev1.ResolveManyRequest{Requests: []*packhorsev1.ResolveRequest{
			{Repository: "..", Name: "main"}, {Repository: "app", Name: "HEAD"}, {Repository: "gone", Name: "main"},
			{Repository: "app", Name: "none"},
		}}))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []fault.Kind
	for _, r := range many.Msg.GetResults() {
		kinds = append(kinds, fault.KindOf(faultrpc.Fault(r.GetFault())))
	}
	if !slices.Equal(kinds, []fault.Kind{fault.Invalid, fault.Internal, fault.NotFound, fault.NotFound}) ||
		many.Msg.GetResults()[1].GetFound().GetRef().GetTarget() != "refs/heads/main" {
		t.Errorf("%v", many.Msg)
	}
	_, err = p.refs.ResolveMany(ctx,
		connect.NewRequest(&packhorsev1.ResolveManyRequest{Requests: make([]*packhorsev1.ResolveRequest,
			storage.MaxNames+1)}))
	p.code(err, connect.CodeInvalidArgument)
	exists, err := p.refs.Exists(ctx, connect.NewRequest(&packhorsev1.ExistsRequest{Repository: "app",
		Name: "refs/heads/main"}))
	if err != nil || !exists.Msg.GetExists() {
		t.Errorf("%v, %v", exists, err)
	}
	_, err = p.refs.Exists(ctx, connect.NewRequest(&packhorsev1.ExistsRequest{Repository: "app", Name: "main"}))
	p.code(err, connect.CodeInvalidArgument)

	var names []string
	request := &packhorsev1.RefServiceListRequest{Repository: "app", PageSize: 1}
	for pages := 0; pages < 10; pages++ {
		stream, err := p.refs.List(ctx, connect.NewRequest(request))
		if err != nil {
			t.Fatal(err)
		}
		for stream.Receive() {
			for _, ref := range stream.Msg().GetRefs() {
				names = append(names, ref.GetName())
			}
			request.PageToken = stream.Msg().GetNextPageToken()
		}
		if stream.Err() != nil {
			t.Fatal(stream.Err())
		}
		if request.GetPageToken() == "" {
			break
		}
	}
	if !slices.Equal(names, []string{"refs/heads/main", "refs/tags/v1"}) {
		t.Errorf("%q", names)
	}
	stream, err := p.refs.List(ctx, connect.NewRequest(&packhorsev1.RefServiceListRequest{Repository: "gone"}))
	if err != nil || stream.Receive() {
		t.Errorf("refs of nothing: %v", err)
	}
	p.code(stream.Err(), connect.CodeNotFound)
}

func TestWatchService(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	p.create("app")
	repo := gittest.At(t, filepath.Join(p.dir, "app.git"))
	id := repo.Commit("x").String()
	var all []*connect.ServerStreamForClient[packhorsev1.WatchResponse]
	for range 5 { // more than the small lane holds
		stream, err := p.refs.Watch(t.Context(),
			connect.NewRequest(&packhorsev1.WatchRequest{Repositories: []*packhorsev1.WatchedRepository{{Repository: "/app/"}}}))
		if err != nil {
			t.Fatal(err)
		}
		if !stream.Receive() || !stream.Msg().GetReset_() || stream.Msg().GetRepository() != "/app/" {
			t.Fatalf("%v, %v", stream.Msg(), stream.Err())
		}
		all = append(all, stream)
	}
	repo.Git("update-ref", "refs/heads/main", id)
	for _, stream := range all {
		if !stream.Receive() || len(stream.Msg().GetChanges()) != 2 {
			t.Fatalf("%v, %v", stream.Msg(), stream.Err())
		}
		if c := stream.Msg().GetChanges()[0]; c.GetName() != "HEAD" || c.GetOldOid() != "" || c.GetNewOid() != id ||
			c.GetNewTarget() != "refs/heads/main" {
			t.Errorf("%v", c)
		}
	}
	p.server.end()
	for _, stream := range all {
		if stream.Receive() {
			t.Errorf("%v", stream.Msg())
		}
		p.code(stream.Err(), connect.CodeUnavailable)
	}
	bad, err := p.refs.Watch(t.Context(),
		connect.NewRequest(&packhorsev1.WatchRequest{Repositories: []*packhorsev1.WatchedRepository{{Repository: ".."}}}))
	if err != nil || bad.Receive() {
		t.Fatalf("%v", err)
	}
	p.code(bad.Err(), connect.CodeInvalidArgument)
}

// Look-ups have their lane; maintenance does not take a place in it.
func TestLookupsUseTheSmallLane(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	p.create("app")
	var err error
	for err == nil { // until it is full
		_, err = p.lanes.Small.Enter("")
	}
	_, err = p.refs.Resolve(t.Context(), connect.NewRequest(&packhorsev1.ResolveRequest{Repository: "app", Name: "main"}))
	p.code(err, connect.CodeResourceExhausted)
	stream, err := p.refs.List(t.Context(), connect.NewRequest(&packhorsev1.RefServiceListRequest{Repository: "app"}))
	if err != nil || stream.Receive() {
		t.Errorf("a list: %v", err)
	}
	p.code(stream.Err(), connect.CodeResourceExhausted)
	if _, err := p.repositories.Maintain(t.Context(),
		connect.NewRequest(&packhorsev1.MaintainRequest{Repository: "app"})); err != nil {
		t.Error(err)
	}
}
