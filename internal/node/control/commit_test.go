package control

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	v1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// writer is a node's port that takes commits, and the repository "app".
type writer struct {
	*gittest.Repo
	t       *testing.T
	url     string
	commits packhorsev1connect.CommitServiceClient
	restart func()
}

func newWriter(t *testing.T, o receivepack.Options, args ...string) *writer {
	t.Helper()
	w := &writer{t: t}
	limits := process.Limits{Slots: 4, Queue: 1000}
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		receivepack.ClassReceive: limits, receivepack.ClassUpdate: limits, receivepack.ClassHook: limits,
		repo.ClassRefs: limits}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	o.Runner, o.Agent, o.Scripts, o.Journal = runner, "test", t.TempDir(), t.TempDir()
	root := t.TempDir()
	w.Repo = gittest.InitAt(t, filepath.Join(root, "app"), args...)
	var server *Server
	var node *storage.Node
	stop := func() {
		server.end()
		_ = node.Close()
	}
	start := func() {
		pushes, err := receivepack.New(o)
		if err != nil {
			t.Fatal(err)
		}
		node, err = storage.New(uploadpack.New(nil, uploadpack.Options{}), storage.Options{Root: root, Runner: runner,
			Pushes: pushes, Scratch: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		server = New(Options{Node: node, Pump: bulk.NewPump(bulk.PumpOptions{}), Log: slog.New(slog.DiscardHandler),
			Lanes: admit.NewLanes(admit.Sizes{Small: 100, Hit: 3, Cold: 3, Push: 100})})
	}
	start()
	t.Cleanup(func() { stop() })
	w.restart = func() {
		stop()
		start()
	}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		server.ServeHTTP(rw, r)
	}))
	front.Config.Protocols = new(http.Protocols)
	front.Config.Protocols.SetHTTP1(true)
	front.Config.Protocols.SetUnencryptedHTTP2(true)
	front.Start()
	t.Cleanup(front.Close)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	w.url = front.URL
	client := &http.Client{Transport: transport}
	w.commits = packhorsev1connect.NewCommitServiceClient(client, front.URL, connect.WithGRPC())
	return w
}

func put(path, text string) *v1.FileChange {
	return &v1.FileChange{Change: &v1.FileChange_Put{Put: &v1.PutFile{Path: path, Source: &v1.PutFile_Text{Text: text}}}}
}

func putBlob(path, oid string) *v1.FileChange {
	return &v1.FileChange{Change: &v1.FileChange_Put{Put: &v1.PutFile{Path: path, Source: &v1.PutFile_Oid{Oid: oid}}}}
}

func remove(path string) *v1.FileChange {
	return &v1.FileChange{Change: &v1.FileChange_Delete{Delete: &v1.DeleteFile{Path: path}}}
}

func move(from, to string) *v1.FileChange {
	return &v1.FileChange{Change: &v1.FileChange_Move{Move: &v1.MoveFile{From: from, To: to}}}
}

func commitOf(message string, changes ...*v1.FileChange) *v1.CommitServiceCreateRequest {
	return &v1.CommitServiceCreateRequest{Repository: "app", Branch: "main", Message: message, Changes: changes}
}

func (w *writer) try(r *v1.CommitServiceCreateRequest) (*v1.CommitServiceCreateResponse, error) {
	answer, err := w.commits.Create(w.t.Context(), connect.NewRequest(r))
	if err != nil {
		return nil, err
	}
	return answer.Msg, nil
}

func (w *writer) create(r *v1.CommitServiceCreateRequest) *v1.CommitServiceCreateResponse {
	w.t.Helper()
	answer, err := w.try(r)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer
}

func (w *writer) first() *v1.CommitServiceCreateResponse {
	w.t.Helper()
	r := commitOf("First", put("a.txt", "hello\n"), put("dir/b", "b\n"), put("dir/c", "c\n"))
	r.Create = true
	return w.create(r)
}

// A call becomes a commit, and its files have the right content.
func TestCreate(t *testing.T) {
	t.Parallel()
	w := newWriter(t, receivepack.Options{})
	first := w.first()
	if got := w.Git("rev-parse", "main"); got != first.GetCommit() || first.GetVersion().GetIncarnation() == "" ||
		first.GetTree() != w.Git("rev-parse", "main^{tree}") {
		t.Fatalf("main is %s, %v", got, first)
	}
	r := commitOf("Second", put("b.txt", "b\n"), remove("a.txt"), move("dir", "new/dir"),
		&v1.FileChange{Change: &v1.FileChange_Submodule{Submodule: &v1.PutSubmodule{Path: "sub", Oid: first.GetCommit()}}})
	r.ExpectedHead, r.DryRun, r.Actor = first.GetCommit(), true, &v1.Actor{Name: "alice", Address: "192.0.2.7"}
	dry := w.create(r)
	r.DryRun = false
	if got := w.Git("rev-parse", "main"); got != first.GetCommit() || dry.GetTree() == "" {
		t.Fatalf("a dry run changed main to %s, %v", got, dry)
	}
	second := w.create(r)
	if second.GetTree() != dry.GetTree() {
		t.Errorf("the dry run had the tree %s, want %s", dry.GetTree(), second.GetTree())
	}
	want := "100644 blob 61780798228d17af2d34fce4cfbdf35556832472\tb.txt\n" +
		"100644 blob 61780798228d17af2d34fce4cfbdf35556832472\tnew/dir/b\n" +
		"100644 blob f2ad6c76f0115a6ba5b00456a849810e7ec0af20\tnew/dir/c\n160000 commit " + first.GetCommit() + "\tsub"
	if got := w.Git("ls-tree", "-r", "main"); got != want {
		t.Errorf("main has\n%s\nwant\n%s", got, want)
	}
	if got := w.Git("log", "-1", "--format=%an <%ae> %cn|%s|%P", "main"); got !=
		"alice <alice@api.192.0.2.7> alice|Second|"+first.GetCommit() {
		t.Errorf("the commit is by %s", got)
	}
	topic := commitOf("Topic", put("t", "t"))
	topic.Branch, topic.Create, topic.Start = "topic", true, "main~1"
	w.create(topic)
	topic = commitOf("Topic", put("t", "t"))
	topic.Branch, topic.Create, topic.Start = "refs/heads/other", true, "main"
	if other := w.create(topic); w.Git("rev-parse", "other~1") != second.GetCommit() || w.Git("rev-parse", "topic~1") !=
		first.GetCommit() {
		t.Errorf("the branches start elsewhere: %v", other)
	}
	merge := commitOf("Merge", put("m", "m"))
	merge.Parents = []string{w.Git("rev-parse", "topic")}
	w.create(merge)
	if got := w.Git("rev-parse", "main^2"); got != merge.GetParents()[0] {
		t.Errorf("the second parent is %s", got)
	}
	w.Git("fsck", "--strict")
}

func TestCreateInSHA256(t *testing.T) {
	t.Parallel()
	w := newWriter(t, receivepack.Options{}, "--object-format=sha256")
	first := w.first()
	r := commitOf("Second", put("dir/d", "d\n"))
	r.ExpectedHead = first.GetCommit()
	if made := w.create(r); len(made.GetCommit()) != 64 || w.Git("rev-parse", "main") != made.GetCommit() {
		t.Errorf("main is not %v", made)
	}
	bad := commitOf("Third", putBlob("x", strings.Repeat("ab", 20)))
	if _, err := w.try(bad); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("an object ID of SHA-1: %v", err)
	}
	w.Git("fsck", "--strict")
}

// A document of JSON, as curl sends it.
func TestCreateByJSON(t *testing.T) {
	t.Parallel()
	w := newWriter(t, receivepack.Options{})
	body := `{"repository":"app","branch":"main","create":true,"message":"First","changes":[{"put":{"path":"a.txt",` +
		`"text":"hello\n"}}]}`
	url := w.url + packhorsev1connect.CommitServiceCreateProcedure
	answer, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(text), w.Git("rev-parse", "main")) {
		t.Errorf("%s: %s", answer.Status, text)
	}
}

// Bad requests name their field, and change nothing.
// A client of a gateway can set refs only to objects that it could fetch.
func TestRefsToInvisibleObjects(t *testing.T) {
	t.Parallel()
	w := newWriter(t, receivepack.Options{})
	head := w.first().GetCommit()
	unreachable := w.Commit("no ref reaches this").String()
	refs := packhorsev1connect.NewRefServiceClient(http.DefaultClient, w.url)
	for _, test := range []struct {
		reachable, id string
		code          connect.Code
	}{
		{"1", unreachable, connect.CodeNotFound}, {"0", w.Git("rev-parse", unreachable+"^{tree}"), connect.CodeNotFound},
		{"1", head, 0}, {"", unreachable, 0},
	} {
		q := connect.NewRequest(&v1.UpdateRequest{Repository: "app", Updates: []*v1.UpdatedRef{
			{Name: "refs/tags/a", NewOid: head}, {Name: "refs/tags/b", NewOid: test.id}}})
		q.Header().Set(node.ReachableHeader, test.reachable)
		_, err := refs.Update(t.Context(), q)
		detail, _ := faultrpc.Detail[*v1.Fault](err)
		if (err != nil) != (test.code != 0) || err != nil && (connect.CodeOf(err) != test.code ||
			detail.GetField() != "updates[1].new_oid") {
			t.Errorf("%q, %s: %v of %q", test.reachable, test.id, err, detail.GetField())
		}
	}
}

func TestInvalidCommits(t *testing.T) {
	t.Parallel()
	w := newWriter(t, receivepack.Options{MaxSize: 3 << 20})
	head := w.first().GetCommit()
	blob := w.Git("rev-parse", "main:a.txt")
	loose := w.Blob("no ref reaches this\n").String()
	w.Git("branch", "above/x", "main")
	unreachable := w.Commit("no ref reaches this").String()
	elsewhere := strings.Repeat("ab", 20)
	long := strings.Repeat("x", 5000)
	deep := strings.Repeat("d/", 2040)
	changes := func(c ...*v1.FileChange) *v1.CommitServiceCreateRequest { return commitOf("bad", c...) }
	with := func(set func(*v1.CommitServiceCreateRequest)) *v1.CommitServiceCreateRequest {
		r := changes(put("x", "x"))
		set(r)
		return r
	}
	mode := func(path, mode string) *v1.FileChange {
		return &v1.FileChange{Change: &v1.FileChange_Mode{Mode: &v1.SetFileMode{Path: path, Mode: mode}}}
	}
	putWith := func(set func(*v1.PutFile)) *v1.CommitServiceCreateRequest {
		c := put("x", "x")
		set(c.GetPut())
		return changes(c)
	}
	var deepOnes []*v1.FileChange
	for i := range 60 {
		deepOnes = append(deepOnes, put(fmt.Sprint(i, "/", deep[:4000], "x"), "x"))
	}
	for i, test := range []struct {
		request *v1.CommitServiceCreateRequest
		kind    fault.Kind
		field   string
	}{
		{changes(put("", "x")), fault.Invalid, "changes[0].put.path"},
		{changes(put("a/../b", "x")), fault.Invalid, "changes[0].put.path"},
		{changes(put(".git/config", "x")), fault.Invalid, "changes[0].put.path"},
		{changes(put("a/.GIT/x", "x")), fault.Invalid, "changes[0].put.path"},
		{changes(put("git~1", "x")), fault.Invalid, "changes[0].put.path"},
		{changes(put("a\x00b", "x")), fault.Invalid, "changes[0].put.path"},
		{changes(put(long, "x")), fault.Invalid, "changes[0].put.path"},
		{changes(deepOnes...), fault.Invalid, "changes"},
		{changes(put("x", "x"), put("x", "y")), fault.Invalid, "changes[1].put.path"},
		{changes(put("x", "x"), move("dir/b", "x")), fault.Invalid, "changes[1].move.to"},
		{changes(remove("dir"), remove("dir/b")), fault.Invalid, "changes[1].delete.path"},
		{changes(put("x/y", "x"), put("x", "y")), fault.Invalid, "changes[0].put.path"},
		{changes(put("dir", "x")), fault.Precondition, "changes[0].put.path"},
		{changes(put("a.txt/x", "x")), fault.Precondition, "changes[0].put.path"},
		{changes(remove("none")), fault.NotFound, "changes[0].delete.path"},
		{changes(remove("a.txt/none")), fault.NotFound, "changes[0].delete.path"},
		{changes(move("none", "x")), fault.NotFound, "changes[0].move.from"},
		{changes(move("a.txt", "dir/b")), fault.Precondition, "changes[0].move.to"},
		{changes(move("a.txt", ".git")), fault.Invalid, "changes[0].move.to"},
		{changes(mode("a.txt", "100666")), fault.Invalid, "changes[0].mode.mode"},
		{changes(mode("a.txt", "")), fault.Invalid, "changes[0].mode.mode"},
		{changes(mode("dir", "100755")), fault.Precondition, "changes[0].mode.path"},
		{changes(mode("none", "100755")), fault.NotFound, "changes[0].mode.path"},
		{changes(&v1.FileChange{}), fault.Invalid, "changes[0]"},
		{putWith(func(p *v1.PutFile) { p.Mode = "040000" }), fault.Invalid, "changes[0].put.mode"},
		{putWith(func(p *v1.PutFile) { p.Mode = "160000" }), fault.Invalid, "changes[0].put.mode"},
		{putWith(func(p *v1.PutFile) { p.Path, p.Mode = ".gitmodules", "120000" }), fault.Invalid, "changes[0].put.path"},
		{putWith(func(p *v1.PutFile) { p.RawPath = []byte("y") }), fault.Invalid, "changes[0].put.raw_path"},
		{putWith(func(p *v1.PutFile) { p.Path, p.RawPath = "", []byte("\xff/../y") }), fault.Invalid, "changes[0].put.path"},
		{putWith(func(p *v1.PutFile) { p.Source, p.Mode = nil, "100755" }), fault.Invalid, "changes[0].put"},
		{putWith(func(p *v1.PutFile) { p.ExpectedOid = "x" }), fault.Invalid, "changes[0].put.expected_oid"},
		{putWith(func(p *v1.PutFile) { p.ExpectedOid = blob }), fault.Aborted, "changes[0].put.expected_oid"},
		{putWith(func(p *v1.PutFile) { p.Path, p.ExpectedOid = "a.txt", "absent" }), fault.Aborted,
			"changes[0].put.expected_oid"},
		{putWith(func(p *v1.PutFile) { p.Continued = true }), fault.Invalid, "changes[0].put.continued"},
		{changes(put("x", strings.Repeat("x", 4<<20))), fault.Invalid, "changes"},
		{changes(putBlob("x", "")), fault.Invalid, "changes[0].put.oid"},
		{changes(putBlob("x", blob[:39])), fault.Invalid, "changes[0].put.oid"},
		{changes(putBlob("x", strings.Repeat("ab", 32))), fault.Invalid, "changes[0].put.oid"},
		{changes(putBlob("x", elsewhere)), fault.NotFound, "changes"},
		{changes(putBlob("x", loose)), fault.NotFound, "changes"},
		{changes(putBlob("x", head)), fault.NotFound, "changes"},
		{changes(put("a.txt", "hello\n")), fault.Invalid, "changes"},
		{changes(), fault.Invalid, "changes"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Branch = "refs/tags/x" }), fault.Invalid, "branch"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Branch = "-x" }), fault.Invalid, "branch"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Branch = "unborn" }), fault.NotFound, "branch"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Create = true }), fault.Aborted, "branch"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Branch, r.Create = "main/x", true }), fault.Precondition, ""},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Branch, r.Create = "above", true }), fault.Precondition, ""},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Start = "main" }), fault.Invalid, "start"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Branch, r.Create, r.Start = "n", true, "none" }), fault.NotFound,
			"start"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Branch, r.Create, r.Start = "n", true, unreachable }),
			fault.NotFound, "start"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.ExpectedHead = "x" }), fault.Invalid, "expected_head"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.ExpectedHead = unreachable }), fault.Aborted, "branch"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.ExpectedHead, r.OnMoved = unreachable, "REAPPLY" }), fault.Aborted,
			"branch"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.OnMoved = "REBASE" }), fault.Invalid, "on_moved"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.OnMoved = "REAPPLY" }), fault.Invalid, "on_moved"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Parents = []string{unreachable} }), fault.NotFound, "parents"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Parents = []string{"x"} }), fault.Invalid, "parents[0]"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Parents = make([]string, 65) }), fault.Invalid, "parents"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Message = "a\x00b" }), fault.Invalid, "message"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Author = &v1.Author{Name: "a\nb"} }), fault.Invalid, "author.name"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Committer = &v1.Author{Date: "soon"} }), fault.Invalid,
			"committer.date"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Headers = []byte("tree x\n") }), fault.Invalid, "headers"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Sign = true }), fault.Invalid, "sign"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.IdempotencyKey = long }), fault.Invalid, "idempotency_key"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.PushOptions = []string{"a\nb"} }), fault.Invalid, "push_options"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Actor = &v1.Actor{Name: "a b"} }), fault.Invalid, "actor"},
		{with(func(r *v1.CommitServiceCreateRequest) { r.Repository = "none" }), fault.NotFound, ""},
	} {
		answer, err := w.try(test.request)
		if err == nil {
			t.Errorf("%d: %v was accepted: %v", i, test.request, answer)
			continue
		}
		detail, _ := faultrpc.Detail[*v1.Fault](err)
		if found := faultrpc.From(err); fault.KindOf(found) != test.kind || detail.GetField() != test.field ||
			test.kind == fault.Aborted && len(detail.GetMismatches()) == 0 {
			t.Errorf("%d: %v of field %q, want %v of %q: %v", i, fault.KindOf(found), detail.GetField(), test.kind,
				test.field, err)
		}
	}
	if got := w.Git("rev-parse", "main"); got != head {
		t.Errorf("main is %s, want %s", got, head)
	}
}

// Commits of other files do not fail each other.
func TestReapply(t *testing.T) {
	t.Parallel()
	w := newWriter(t, receivepack.Options{})
	base := w.first().GetCommit()
	later := w.create(commitOf("later", put("dir/b", "other\n"))).GetCommit()
	for i, test := range []struct {
		change *v1.FileChange
		path   string // that was changed meanwhile; "": none
	}{
		{put("dir/b", "x"), "dir/b"}, {remove("dir"), "dir"}, {move("dir/b", "x"), "dir/b"}, {move("dir", "x"), "dir"},
		{move("a.txt", "dir/b"), "dir/b"}, {put("dir/b/c", "x"), "dir/b/c"},
		{put("dir/c", "x"), ""}, {put("dir/new", "x"), ""}, {remove("a.txt"), ""},
	} {
		r := commitOf("reapplied", test.change)
		r.ExpectedHead, r.DryRun = base, true
		if _, err := w.try(r); connect.CodeOf(err) != connect.CodeAborted {
			t.Errorf("%d: %v", i, err)
		}
		r.OnMoved = "REAPPLY"
		answer, err := w.try(r)
		if test.path == "" && (err != nil || answer.GetReappliedTo() != later) {
			t.Errorf("%d: %v, %v", i, answer, err)
		}
		detail, _ := faultrpc.Detail[*v1.Fault](err)
		if test.path != "" && (connect.CodeOf(err) != connect.CodeAborted || len(detail.GetMismatches()) != 1 ||
			detail.GetMismatches()[0].GetName() != test.path) {
			t.Errorf("%d: %v, %v, want an error about %s", i, detail, err, test.path)
		}
	}
}

// Callers that go leave nothing half done, and do not disturb others.
func TestCommitsOfCallersThatGo(t *testing.T) {
	t.Parallel()
	w := newWriter(t, receivepack.Options{})
	base := w.first().GetCommit()
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			r := commitOf("concurrent", put(fmt.Sprint("file", i), "x"))
			ctx := t.Context()
			if i%2 == 1 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Duration(i)*time.Millisecond)
				defer cancel()
			}
			_, err := w.commits.Create(ctx, connect.NewRequest(r))
			if made := err == nil; !made && i%2 == 0 || !made && connect.CodeOf(err) != connect.CodeDeadlineExceeded {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	all.Wait()
	w.create(commitOf("last", put("last", "x")))
	commits := strings.Count(w.Git("rev-list", base+"..main"), "\n") + 1
	if files := strings.Count(w.Git("ls-tree", "--name-only", "main"), "\n") + 1; commits < 17 || files != commits+2 {
		t.Errorf("main has %d new commits and %d files", commits, files)
	}
	w.Git("fsck", "--strict")
}

func TestConcurrentCommits(t *testing.T) {
	t.Parallel()
	const writers = 64
	w := newWriter(t, receivepack.Options{})
	base := w.first().GetCommit()
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			r := commitOf("concurrent", put(fmt.Sprintf("dir/%d/file", i), "x"))
			r.ExpectedHead, r.OnMoved = base, "REAPPLY"
			if _, err := w.try(r); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := w.Git("rev-list", "--count", "main"); got != fmt.Sprint(writers+1) {
		t.Errorf("main has %s commits", got)
	}
	if got := len(strings.Fields(w.Git("ls-tree", "-r", "--name-only", "main"))); got != writers+3 {
		t.Errorf("main has %d files", got)
	}
	w.Git("fsck", "--strict")
}

// A retry after a lost answer returns the first commit, also after a restart.
func TestRepeatedCommit(t *testing.T) {
	t.Parallel()
	w := newWriter(t, receivepack.Options{})
	w.first()
	r := func() *v1.CommitServiceCreateRequest {
		r := commitOf("once", put("x", "x"))
		r.IdempotencyKey, r.Actor = "key", &v1.Actor{Name: "bot", Address: "192.0.2.1"}
		return r
	}
	made := w.create(r())
	for range 2 {
		w.create(commitOf("later", put("later", rand.Text())))
		again := r()
		again.Actor.Address = "192.0.2.2"
		got := w.create(again)
		if !got.GetRepeated() || got.GetCommit() != made.GetCommit() || got.GetTree() != made.GetTree() ||
			made.GetRepeated() {
			t.Errorf("the retry made %v, the first call %v", got, made)
		}
		other := r()
		other.Changes = []*v1.FileChange{put("x", "y")}
		if _, err := w.try(other); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("another request with the key: %v", err)
		}
		w.restart()
	}
	created := commitOf("new branch", put("topic", "x"))
	created.Branch, created.Create, created.Start, created.IdempotencyKey = "topic", true, "main", "topic"
	if first := w.create(created); first.GetRepeated() {
		t.Errorf("a new branch: %v", first)
	}
	created = commitOf("new branch", put("topic", "x"))
	created.Branch, created.Create, created.Start, created.IdempotencyKey = "topic", true, "main", "topic"
	if again := w.create(created); !again.GetRepeated() {
		t.Errorf("the branch was made again: %v", again)
	}
}

// Contents of any size come in parts.
func TestCreateStream(t *testing.T) {
	t.Parallel()
	w := newWriter(t, receivepack.Options{MaxSize: 40 << 20})
	large := make([]byte, 20<<20)
	_, _ = rand.Read(large)
	send := func(messages ...*v1.CreateStreamRequest) (*v1.CommitServiceCreateResponse, error) {
		t.Helper()
		stream := w.commits.CreateStream(t.Context())
		for _, m := range messages {
			if stream.Send(m) != nil {
				break
			}
		}
		answer, err := stream.CloseAndReceive()
		if err != nil {
			return nil, err
		}
		return answer.Msg.GetCreated(), nil
	}
	open := put("large", "")
	open.GetPut().Continued = true
	start := func() *v1.CreateStreamRequest {
		r := commitOf("stream", put("small", "small\n"))
		r.Create, r.Branch = true, rand.Text()
		return &v1.CreateStreamRequest{Start: r, Changes: []*v1.FileChange{open}}
	}
	messages := []*v1.CreateStreamRequest{start()}
	branch := messages[0].GetStart().GetBranch()
	for part := large; len(part) > 0; part = part[1<<20:] {
		messages = append(messages, &v1.CreateStreamRequest{Content: part[:1<<20], Continued: len(part) > 1<<20})
	}
	for i := range 20 {
		c := &v1.FileChange{Change: &v1.FileChange_Put{Put: &v1.PutFile{Path: fmt.Sprintf("dir/%02d", i),
			Source: &v1.PutFile_Content{Content: large[i : i+900<<10]}}}}
		messages = append(messages, &v1.CreateStreamRequest{Changes: []*v1.FileChange{c}})
	}
	made, err := send(messages...)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Git("rev-parse", branch); got != made.GetCommit() {
		t.Errorf("the branch is %s, %v", got, made)
	}
	file := filepath.Join(t.TempDir(), "large")
	gittest.Run(t, w.Dir, "", "archive", "-o", file, "--format=tar", branch, "large")
	if got := w.GitIn(string(large), "hash-object", "--stdin"); got != w.Git("rev-parse", branch+":large") {
		t.Errorf("the large file is not %s", got)
	}
	for i := range 20 {
		if got := w.GitIn(string(large[i:i+900<<10]), "hash-object", "--stdin"); got != w.Git("rev-parse",
			fmt.Sprintf("%s:dir/%02d", branch, i)) {
			t.Errorf("dir/%02d is not %s", i, got)
		}
	}
	w.Git("fsck", "--strict")
	for name, bad := range map[string][]*v1.CreateStreamRequest{
		"no start":      {{Content: []byte("x")}},
		"two":           {start(), {Content: []byte("x")}, start()},
		"never ends":    {start(), {Content: []byte("x"), Continued: true}},
		"not open":      {start(), {Content: []byte("x")}, {Content: []byte("x")}},
		"change inside": {start(), {Content: []byte("x"), Continued: true, Changes: []*v1.FileChange{put("y", "y")}}},
		"no messages":   {},
		"too large":     nil,
		"a million":     {start()},
		"after it":      {{Start: start().GetStart(), Changes: []*v1.FileChange{open, put("y", "y")}}},
	} {
		switch name {
		case "too large":
			bad = append([]*v1.CreateStreamRequest{start()}, bytesOf(3<<20, 14)...)
		case "a million":
			bad[0].GetStart().Changes, bad[0].Changes = nil, nil
			for i := range 1000 {
				bad = append(bad, &v1.CreateStreamRequest{})
				for n := range 1000 {
					bad[i+1].Changes = append(bad[i+1].Changes, remove(fmt.Sprintf("%d/%d", i, n)))
				}
			}
		}
		_, err := send(bad...)
		if connect.CodeOf(err) != connect.CodeInvalidArgument || name == "a million" && !strings.Contains(err.Error(),
			"more than 100000") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// bytesOf returns parts of a content.
func bytesOf(size, parts int) (all []*v1.CreateStreamRequest) {
	for range parts {
		all = append(all, &v1.CreateStreamRequest{Content: bytes.Repeat([]byte{1}, size), Continued: true})
	}
	return all
}
