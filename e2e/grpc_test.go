package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// storageNode is a running `packhorse storage` with some repositories.
type storageNode struct {
	t       *testing.T
	root    string
	address string // HOST:PORT
	secret  string
}

// rpcLimit is the deadline of calls that are expected to be answered, however busy the machine.
const rpcLimit = time.Minute

// startStorage starts a node that has copies of some templates (makeTemplates) and wants a secret, and ends it with the
// test.
func startStorage(t *testing.T, templates map[string]*gittest.Repo) *storageNode {
	t.Helper()
	dir := t.TempDir()
	n := &storageNode{t: t, root: filepath.Join(dir, "root"), secret: strings.Repeat("secret", 6)}
	if err := os.Mkdir(n.root, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, repo := range templates {
		if err := os.CopyFS(filepath.Join(n.root, name), os.DirFS(repo.Dir)); err != nil {
			t.Fatal(err)
		}
	}
	secret, config := filepath.Join(dir, "secret"), filepath.Join(dir, "node.toml")
	for name, text := range map[string]string{secret: n.secret + "\n",
		config: fmt.Sprintf("[storage]\nsecret_file = %q\n", secret)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.address = startRole(t, "storage", "--config", config, "--root", n.root, "--listen", "127.0.0.1:0").Listen
	return n
}

// dial is a client as grpc-go makes it by itself.
func (n *storageNode) dial() *grpc.ClientConn {
	n.t.Helper()
	conn, err := grpc.NewClient(n.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	return conn
}

// ctx shows the secret and has a deadline.
func (n *storageNode) ctx() context.Context {
	ctx, cancel := context.WithTimeout(n.t.Context(), rpcLimit)
	n.t.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+n.secret)
}

// call makes a unary call: a procedure is "RefService/Resolve".
func call[Response any](t *testing.T, n *storageNode, conn *grpc.ClientConn, procedure string,
	request proto.Message) *Response {
	t.Helper()
	response := new(Response)
	if err := conn.Invoke(n.ctx(), "/packhorse.v1."+procedure, request, response); err != nil {
		t.Fatalf("%s: %v", procedure, err)
	}
	return response
}

// begin opens a stream and sends its first message.
func begin(t *testing.T, ctx context.Context, conn *grpc.ClientConn, procedure string, request proto.Message,
	both bool) grpc.ClientStream {
	t.Helper()
	service := "/packhorse.v1."
	if strings.HasPrefix(procedure, "SessionService/") {
		service = "/packhorse.internal.v1."
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: both}, service+procedure)
	if err == nil {
		err = stream.SendMsg(request)
	}
	if err == nil && !both {
		err = stream.CloseSend()
	}
	if err != nil {
		t.Fatalf("%s: %v", procedure, err)
	}
	return stream
}

func receive[Message any](stream grpc.ClientStream) (*Message, error) {
	m := new(Message)
	return m, stream.RecvMsg(m)
}

// all makes a call that is answered by a stream.
func all[Message any](t *testing.T, n *storageNode, conn *grpc.ClientConn, procedure string,
	request proto.Message) (list []*Message) {
	t.Helper()
	stream := begin(t, n.ctx(), conn, procedure, request, false)
	for {
		m, err := receive[Message](stream)
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatalf("%s: %v", procedure, err)
		}
		list = append(list, m)
	}
}

// TestGRPC drives every service of a node with plain grpc-go, which knows nothing of Connect.
func TestGRPC(t *testing.T) {
	t.Parallel()
	repo := linear(t)
	n := startStorage(t, map[string]*gittest.Repo{"linear.git": repo})
	conn := n.dial()
	t.Run("repositories", func(t *testing.T) { t.Parallel(); grpcRepositories(t, n, conn) })
	t.Run("refs", func(t *testing.T) { t.Parallel(); grpcRefs(t, n, conn, repo) })
	t.Run("watch", func(t *testing.T) { t.Parallel(); grpcWatch(t, n, conn) })
	t.Run("objects", func(t *testing.T) { t.Parallel(); grpcObjects(t, n, conn, repo) })
	t.Run("clone", func(t *testing.T) { t.Parallel(); grpcClone(t, n, conn, repo) })
	t.Run("health", func(t *testing.T) { t.Parallel(); grpcHealth(t, n, conn) })
	t.Run("errors", func(t *testing.T) { t.Parallel(); grpcErrors(t, n, conn) })
}

func grpcRepositories(t *testing.T, n *storageNode, conn *grpc.ClientConn) {
	created := call[packhorsev1.CreateResponse](t, n, conn, "RepositoryService/Create",
		&packhorsev1.CreateRequest{Repository: "made/one", DefaultBranch: "trunk"}).GetRepository()
	if created.GetPath() != "made/one.git" || created.GetHead() != "refs/heads/trunk" ||
		created.GetObjectFormat() != "sha1" {
		t.Errorf("created %v", created)
	}
	gittest.At(t, filepath.Join(n.root, "made/one.git")).Git("fsck", "--strict")
	got := call[packhorsev1.GetResponse](t, n, conn, "RepositoryService/Get",
		&packhorsev1.GetRequest{Repository: "linear"}).GetRepository()
	if got.GetRefs() != 6 || got.GetObjects().GetPacks() != 1 || got.GetHeadOid() == "" || got.GetSize() == 0 {
		t.Errorf("linear is %v", got)
	}
	list := call[packhorsev1.ListResponse](t, n, conn, "RepositoryService/List", &packhorsev1.ListRequest{Prefix: "made/"})
	if !slices.Equal(list.GetRepositories(), []string{"made/one.git"}) {
		t.Errorf("listed %q", list.GetRepositories())
	}
	call[packhorsev1.MaintainResponse](t, n, conn, "RepositoryService/Maintain",
		&packhorsev1.MaintainRequest{Repository: "made/one"})
	call[packhorsev1.DeleteResponse](t, n, conn, "RepositoryService/Delete",
		&packhorsev1.DeleteRequest{Repository: "made/one", Incarnation: created.GetVersion().GetIncarnation()})
	if _, err := os.Stat(filepath.Join(n.root, "made/one.git")); !os.IsNotExist(err) {
		t.Errorf("after Delete: %v", err)
	}
}

func grpcRefs(t *testing.T, n *storageNode, conn *grpc.ClientConn, repo *gittest.Repo) {
	main := repo.Git("rev-parse", "main")
	resolve := &packhorsev1.ResolveRequest{Repository: "linear", Name: "main"}
	found := call[packhorsev1.ResolveResponse](t, n, conn, "RefService/Resolve", resolve)
	if found.GetRef().GetName() != "refs/heads/main" || found.GetRef().GetOid() != main ||
		found.GetVersion().GetIncarnation() == "" {
		t.Errorf("main is %v", found)
	}
	many := call[packhorsev1.ResolveManyResponse](t, n, conn, "RefService/ResolveMany", &packhorsev1.ResolveManyRequest{
		Requests: []*packhorsev1.ResolveRequest{resolve, {Repository: "linear", Name: "nothing"},
			{Repository: "linear", Name: "v5"}}}).GetResults()
	if len(many) != 3 || many[0].GetFound().GetRef().GetOid() != main ||
		many[1].GetFault().GetKind() != packhorsev1.FaultKind_FAULT_KIND_NOT_FOUND ||
		many[2].GetFound().GetRef().GetName() != "refs/tags/v5" {
		t.Errorf("many: %v", many)
	}
	for name, want := range map[string]bool{"refs/heads/main": true, "refs/heads/mai": false} {
		if got := call[packhorsev1.ExistsResponse](t, n, conn, "RefService/Exists",
			&packhorsev1.ExistsRequest{Repository: "linear", Name: name}); got.GetExists() != want {
			t.Errorf("%s exists: %v", name, got)
		}
	}
	var listed []string
	for _, batch := range all[packhorsev1.RefServiceListResponse](t, n, conn, "RefService/List",
		&packhorsev1.RefServiceListRequest{Repository: "linear", Prefix: "refs/tags/", Peel: true}) {
		for _, ref := range batch.GetRefs() {
			listed = append(listed, ref.GetName()+" "+ref.GetOid()+" "+ref.GetPeeled())
		}
	}
	want := strings.Split(repo.Git("for-each-ref", "--format=%(refname) %(objectname) %(*objectname)", "refs/tags/"), "\n")
	if !slices.Equal(listed, want) {
		t.Errorf("listed %q, want %q", listed, want)
	}
}

// grpcWatch checks that changes by other programs in the directory cause events too.
func grpcWatch(t *testing.T, n *storageNode, conn *grpc.ClientConn) {
	call[packhorsev1.CreateResponse](t, n, conn, "RepositoryService/Create",
		&packhorsev1.CreateRequest{Repository: "watched"})
	bare := gittest.At(t, filepath.Join(n.root, "watched.git"))
	stream := begin(t, n.ctx(), conn, "RefService/Watch",
		&packhorsev1.WatchRequest{Repositories: []*packhorsev1.WatchedRepository{{Repository: "watched"}}}, false)
	first, err := receive[packhorsev1.WatchResponse](stream)
	if err != nil || first.GetRepository() != "watched" || first.GetVersion().GetIncarnation() == "" {
		t.Fatalf("a watch begins with %v, %v", first, err)
	}
	tree := bare.GitIn("", "mktree")
	commit := bare.Git("-c", "user.name=A", "-c", "user.email=a@example.com", "commit-tree", "-m", "x", tree)
	bare.Git("update-ref", "refs/heads/new", commit)
	for {
		event, err := receive[packhorsev1.WatchResponse](stream)
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range event.GetChanges() {
			if change.GetName() == "refs/heads/new" && change.GetOldOid() == "" && change.GetNewOid() == commit {
				return
			}
		}
	}
}

func grpcObjects(t *testing.T, n *storageNode, conn *grpc.ClientConn, repo *gittest.Repo) {
	in := &packhorsev1.RevisionPath{Revision: "main", Path: "file01"}
	var content []byte
	parts := all[packhorsev1.BlobResponse](t, n, conn, "ObjectService/Blob",
		&packhorsev1.BlobRequest{Repository: "linear", Blob: &packhorsev1.BlobRequest_Path{Path: in}, Offset: 2, Length: 4})
	for _, part := range parts {
		content = append(content, part.GetData()...)
	}
	if header := parts[0].GetHeader(); string(content) != "nten" || header.GetSize() != 8 ||
		header.GetMode() != 0o100644 ||
		header.GetOid() != repo.Git("rev-parse", "main:file01") {
		t.Errorf("a part of a blob: %q, %v", content, header)
	}
	tree := call[packhorsev1.TreeResponse](t, n, conn, "ObjectService/Tree",
		&packhorsev1.TreeRequest{Repository: "linear", Path: &packhorsev1.RevisionPath{Revision: "v20"}, PageSize: 3})
	if tree.GetOid() != repo.Git("rev-parse", "v20^{tree}") || len(tree.GetEntries()) != 3 ||
		tree.GetNextPageToken() == "" ||
		string(tree.GetEntries()[2].GetPath()) != "file03" ||
		tree.GetEntries()[2].GetOid() != repo.Git("rev-parse", "main:file03") {
		t.Errorf("a page of a tree: %v", tree)
	}
	commit := call[packhorsev1.CommitResponse](t, n, conn, "ObjectService/Commit",
		&packhorsev1.CommitRequest{Repository: "linear", Revision: "old"}).GetCommit()
	if commit.GetOid() != repo.Git("rev-parse", "old") || string(commit.GetMessage()) != "commit10" ||
		string(commit.GetCommitter().GetEmail()) != "c@example.com" ||
		commit.GetCommitter().GetSeconds() != 1700000000+10*3600 {
		t.Errorf("a commit: %v", commit)
	}
	var log []string
	for _, batch := range all[packhorsev1.LogResponse](t, n, conn, "ObjectService/Log",
		&packhorsev1.LogRequest{Repository: "linear", Revisions: []string{"main"}, Exclude: []string{"old"}, Limit: 5,
			Skip: 1}) {
		for _, c := range batch.GetCommits() {
			log = append(log, c.GetOid())
		}
	}
	if want := strings.Fields(repo.Git("rev-list", "--skip=1", "--max-count=5", "main", "^old")); !slices.Equal(log,
		want) {
		t.Errorf("log %q, want %q", log, want)
	}
}

// A clone by the control call alone: its pack comes in band.
func grpcClone(t *testing.T, n *storageNode, conn *grpc.ClientConn, repo *gittest.Repo) {
	session := &internalv1.Session{Version: 2}
	advertise := begin(t, n.ctx(), conn, "SessionService/Advertise",
		&internalv1.SessionRequest{Part: &internalv1.SessionRequest_Start{
			Start: &internalv1.SessionStart{Repository: "linear", Session: session}}}, true)
	said := answer(t, advertise,
		&internalv1.SessionRequest{Part: &internalv1.SessionRequest_DataPath{DataPath: inBand}},
		func() (*internalv1.SessionResponse, error) { return receive[internalv1.SessionResponse](advertise) })
	if !bytes.Contains(said, []byte("version 2")) {
		t.Errorf("the advertisement is %q", said)
	}
	request := "0011command=fetch0001000dofs-delta" + fmt.Sprintf("%04xwant %s\n",
		4+5+len(repo.Git("rev-parse", "main"))+1, repo.Git("rev-parse", "main")) + "0009done\n0000"
	upload := begin(t, n.ctx(), conn, "SessionService/UploadPack",
		&internalv1.SessionRequest{Part: &internalv1.SessionRequest_Start{
			Start: &internalv1.SessionStart{Repository: "linear", Session: session,
				Data: &internalv1.RequestData{Data: []byte(request[:20])}}}}, true)
	if err := upload.SendMsg(&internalv1.SessionRequest{Part: &internalv1.SessionRequest_Data{
		Data: &internalv1.RequestData{Data: []byte(request[20:]), Last: true}}}); err != nil {
		t.Fatal(err)
	}
	bulk := false
	said = answer(t, upload, &internalv1.SessionRequest{Part: &internalv1.SessionRequest_DataPath{DataPath: inBand}},
		func() (*internalv1.SessionResponse, error) {
			m, err := receive[internalv1.SessionResponse](upload)
			bulk = bulk || m.GetDataPathRequest() != nil
			return m, err
		})
	if !bulk {
		t.Error("the node did not announce the pack")
	}
	pack, ok := packIn(answered{body: string(said)})
	if !ok {
		t.Fatalf("an answer of %d bytes is no whole pack", len(said))
	}
	clone := gittest.Init(t)
	clone.GitIn(string(pack), "index-pack", "--stdin", "--fix-thin", "--strict")
	if want, got := repo.Git("rev-list", "--count", "main"), clone.Git("rev-list", "--count",
		repo.Git("rev-parse", "main")); got != want {
		t.Errorf("the clone has %s commits, want %s", got, want)
	}
}

var inBand = &internalv1.DataPath{Path: &internalv1.DataPath_InBand{InBand: &internalv1.InBand{}}}

// answer reads a session's response to its end. The message dataPath is the reply to the announcement of bulk data.
func answer(t *testing.T, stream grpc.ClientStream, dataPath proto.Message,
	next func() (*internalv1.SessionResponse, error)) (all []byte) {
	t.Helper()
	for ended := false; ; {
		part, err := next()
		if errors.Is(err, io.EOF) && ended {
			return all
		}
		if err != nil {
			t.Fatalf("the answer breaks off after %d bytes: %v", len(all), err)
		}
		all = append(all, part.GetData()...)
		if part.GetDataPathRequest() != nil {
			if err := stream.SendMsg(dataPath); err != nil {
				t.Fatal(err)
			}
		}
		if end := part.GetEnd(); end != nil {
			ended = true
			if end.GetFault() != nil {
				t.Fatalf("the answer ends with %v", end)
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func grpcHealth(t *testing.T, n *storageNode, conn *grpc.ClientConn) {
	client := grpc_health_v1.NewHealthClient(conn)
	for _, service := range []string{"", "packhorse.v1.RepositoryService", "packhorse.v1.RefService",
		"packhorse.v1.ObjectService",
		"packhorse.internal.v1.NodeService", "packhorse.internal.v1.SessionService"} {
		got, err := client.Check(n.ctx(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("%q: got %v, %v; want SERVING", service, got, err)
		}
	}
	if _, err := client.Check(n.ctx(),
		&grpc_health_v1.HealthCheckRequest{Service: "nothing"}); status.Code(err) != codes.NotFound {
		t.Errorf("no such service: %v", err)
	}
	watch, err := client.Watch(n.ctx(), &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Unimplemented { // clients go on without
		t.Errorf("watch: %v", err)
	}
}

func grpcErrors(t *testing.T, n *storageNode, conn *grpc.ClientConn) {
	get := func(ctx context.Context, repository string) error {
		return conn.Invoke(ctx, "/packhorse.v1.RepositoryService/Get", &packhorsev1.GetRequest{Repository: repository},
			new(packhorsev1.GetResponse))
	}
	for repository, want := range map[string]struct {
		code codes.Code
		kind packhorsev1.FaultKind
	}{
		"nothing":  {codes.NotFound, packhorsev1.FaultKind_FAULT_KIND_NOT_FOUND},
		"../there": {codes.InvalidArgument, packhorsev1.FaultKind_FAULT_KIND_INVALID},
	} {
		s := status.Convert(get(n.ctx(), repository))
		if s.Code() != want.code || len(s.Details()) != 1 {
			t.Errorf("%q: got %v with details %v, want code %v with one detail", repository, s, s.Details(), want.code)
			continue
		}
		if f, ok := s.Details()[0].(*packhorsev1.Fault); !ok || f.GetKind() != want.kind || f.GetMessage() != s.Message() {
			t.Errorf("%q: the detail is %v", repository, s.Details())
		}
	}
	if err := get(t.Context(), "linear"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without the secret: %v", err)
	}
	if err := get(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer wrong"),
		"linear"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("with a wrong secret: %v", err)
	}
	// A deadline that is over ends a call that would go on for ever.
	ctx, cancel := context.WithTimeout(n.ctx(), 100*time.Millisecond)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/packhorse.v1.RefService/Watch")
	if err == nil { // it may be over before the call has begun
		// the error shows when receiving
		_ = stream.SendMsg(&packhorsev1.WatchRequest{Repositories: []*packhorsev1.WatchedRepository{{Repository: "linear"}}})
		_ = stream.CloseSend()
	}
	for err == nil {
		_, err = receive[packhorsev1.WatchResponse](stream)
	}
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a deadline: %v", err)
	}
}
