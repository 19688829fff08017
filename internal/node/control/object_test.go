package control

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1/internalv1connect"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// objectClient has the calls that read objects.
type objectClient struct {
	packhorsev1connect.ObjectServiceClient
	internalv1connect.NodeServiceClient
}

// objectClients serves a root by a separate port, and gives a client for each protocol.
func objectClients(t *testing.T, root string, lanes admit.Lanes) map[string]objectClient {
	t.Helper()
	node, err := storage.New(nil, storage.Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	s := New(Options{Node: node, Pump: bulk.NewPump(bulk.PumpOptions{}), Lanes: lanes,
		Log: slog.New(slog.DiscardHandler)})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := s.HTTPServer()
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	h2 := &http.Transport{Protocols: protocols}
	h1 := new(http.Transport)
	t.Cleanup(h2.CloseIdleConnections)
	t.Cleanup(h1.CloseIdleConnections)
	url := "http://" + listener.Addr().String()
	client := func(transport http.RoundTripper, options ...connect.ClientOption) objectClient {
		c := &http.Client{Transport: transport}
		return objectClient{packhorsev1connect.NewObjectServiceClient(c, url, options...),
			internalv1connect.NewNodeServiceClient(c, url, options...)}
	}
	return map[string]objectClient{"grpc": client(h2, connect.WithGRPC()), "connect": client(h2),
		"json": client(h1, connect.WithProtoJSON())}
}

// wholeBlob reads a blob, and holds the stream to its form.
func wholeBlob(t *testing.T, c packhorsev1connect.ObjectServiceClient,
	q *packhorsev1.BlobRequest) (*packhorsev1.BlobHeader, []byte, error) {
	t.Helper()
	stream, err := c.Blob(t.Context(), connect.NewRequest(q))
	if err != nil {
		return nil, nil, err
	}
	defer stream.Close()
	var header *packhorsev1.BlobHeader
	var data []byte
	for stream.Receive() {
		m := stream.Msg()
		if (header == nil) != (m.GetHeader() != nil) || len(m.GetData()) > 128<<10 {
			t.Errorf("a message of %d bytes with header %v", len(m.GetData()), m.GetHeader())
		}
		if header == nil {
			header = m.GetHeader()
		}
		data = append(data, m.GetData()...)
	}
	return header, data, stream.Err()
}

func TestObjectService(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := gittest.InitAt(t, filepath.Join(root, "team", "app.git"))
	text := strings.Repeat("0123456789abcde\n", 70_000) // too large to be read whole
	big := r.GitIn(text, "hash-object", "-w", "--stdin")
	empty := r.GitIn("", "hash-object", "-w", "--stdin")
	tree := r.GitIn("100644 blob "+big+"\tbig\n100755 blob "+empty+"\tempty\n", "mktree")
	odd := fmt.Sprintf("tree %s\nauthor \xff <a@example.com> 1 -0230\ncommitter C <c@example.com> 2 +0000\nencoding "+
		"\xff\n\n\xff\n", tree)
	commit := r.GitIn(odd, "hash-object", "-w", "-t", "commit", "--stdin")
	r.Git("update-ref", "refs/heads/main", commit)
	for name, c := range objectClients(t, root, admit.NewLanes(admit.Sizes{Small: 10, Hit: 1})) {
		const path = "team/app"
		in := func(p string) *packhorsev1.RevisionPath { return &packhorsev1.RevisionPath{Revision: "main", Path: p} }

		for _, q := range []*packhorsev1.BlobRequest{
			{Repository: path, Blob: &packhorsev1.BlobRequest_Oid{Oid: big}},
			{Repository: path, Blob: &packhorsev1.BlobRequest_Path{Path: in("big")}, Offset: 5, Length: 1 << 40},
			{Repository: path, Blob: &packhorsev1.BlobRequest_Path{Path: in("big")}, Offset: 1 << 20, Length: 3},
		} {
			want := text[q.GetOffset():]
			if n := q.GetLength(); n > 0 {
				want = want[:min(int(n), len(want))]
			}
			if h, data, err := wholeBlob(t, c, q); err != nil || h.GetOid() != big || h.GetSize() != int64(len(text)) ||
				string(data) != want {
				t.Errorf("%s: %v: %v, %d bytes, %v", name, q, h, len(data), err)
			}
		}
		h, data, err := wholeBlob(t, c, &packhorsev1.BlobRequest{Repository: path,
			Blob: &packhorsev1.BlobRequest_Path{Path: in("empty")}})
		if err != nil || h.GetMode() != 0o100755 || len(data) != 0 {
			t.Errorf("%s: an empty file: %v, %d bytes, %v", name, h, len(data), err)
		}

		page, err := c.Tree(t.Context(), connect.NewRequest(&packhorsev1.TreeRequest{Repository: path, Path: in(""),
			PageSize: 1}))
		if err != nil {
			t.Fatal(name, err)
		}
		next, err := c.Tree(t.Context(), connect.NewRequest(&packhorsev1.TreeRequest{Repository: path,
			PageToken: page.Msg.GetNextPageToken()}))
		if err != nil {
			t.Fatal(name, err)
		}
		var list bytes.Buffer
		for _, e := range append(page.Msg.GetEntries(), next.Msg.GetEntries()...) {
			fmt.Fprintf(&list, "%06o %s %s\t%s\n", e.GetMode(), e.GetType(), e.GetOid(), e.GetPath())
		}
		if want := r.Git("ls-tree", "main") + "\n"; list.String() != want || page.Msg.GetOid() != tree ||
			next.Msg.GetNextPageToken() != "" {
			t.Errorf("%s: a tree is %q, want %q", name, list.String(), want)
		}

		one, err := c.Commit(t.Context(), connect.NewRequest(&packhorsev1.CommitRequest{Repository: path}))
		if err != nil {
			t.Fatal(name, err)
		}
		m := one.Msg.GetCommit()
		if m.GetOid() != commit || m.GetTree() != tree || string(m.GetMessage()) != "\xff\n" || m.GetEncoding() != "\ufffd" ||
			string(m.GetAuthor().GetName()) != "\xff" || m.GetAuthor().GetOffsetMinutes() != -150 ||
			m.GetCommitter().GetSeconds() != 2 {
			t.Errorf("%s: a commit is %v", name, m)
		}

		history, err := c.Log(t.Context(), connect.NewRequest(&packhorsev1.LogRequest{Repository: path, Path: "big"}))
		if err != nil || !history.Receive() || len(history.Msg().GetCommits()) != 1 ||
			history.Msg().GetCommits()[0].GetOid() != commit {
			t.Errorf("%s: a log is %v, %v", name, history.Msg(), err)
		}
		history.Close()

		files, err := c.Files(t.Context(), connect.NewRequest(&internalv1.FilesRequest{Repository: path, Commit: commit,
			Limit: 2 << 20}))
		if err != nil {
			t.Fatal(name, err)
		}
		var content []byte
		pieces := 0
		for files.Receive() {
			for _, f := range files.Msg().GetFiles() {
				if pieces++; len(f.GetContent()) > 1<<20 || f.GetContinued() != (pieces == 1) ||
					(f.GetOid() == "") != (pieces == 2) {
					t.Errorf("%s: piece %d is of %d bytes, %q, %v", name, pieces, len(f.GetContent()), f.GetPath(), f.GetContinued())
				}
				content = append(content, f.GetContent()...)
			}
		}
		if files.Err() != nil || pieces != 3 || string(content) != text {
			t.Errorf("%s: %d pieces with %d bytes, %v", name, pieces, len(content), files.Err())
		}
		behind, err := c.CountCommits(t.Context(), connect.NewRequest(&internalv1.CountCommitsRequest{Repository: path,
			Old: commit, New: commit}))
		if err != nil || behind.Msg.GetCommits() != 0 {
			t.Errorf("%s: behind: %v, %v", name, behind, err)
		}
	}
}

func TestObjectServiceErrors(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := gittest.InitAt(t, filepath.Join(root, "app.git"))
	r.Git("update-ref", "refs/heads/main", r.Commit(strings.Repeat("x", 1<<18)).String())
	file := &packhorsev1.BlobRequest_Path{Path: &packhorsev1.RevisionPath{Path: "file"}}
	lanes := admit.NewLanes(admit.Sizes{Small: 1, Hit: 1, Cold: 1})
	small, long := lanes.Small, lanes.Hit
	for name, c := range objectClients(t, root, lanes) {
		want := func(err error, code connect.Code, kind fault.Kind, text string) {
			t.Helper()
			if connect.CodeOf(err) != code || !fault.Is(faultrpc.From(err), kind) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, want %v and %q", name, err, code, text)
			}
		}
		for _, q := range []*packhorsev1.BlobRequest{
			{Repository: "../app", Blob: file}, {Repository: "app"}, {Repository: "", Blob: file},
			{Repository: "app", Blob: &packhorsev1.BlobRequest_Oid{Oid: "main"}},
			{Repository: "app", Blob: &packhorsev1.BlobRequest_Oid{}},
			{Repository: "app", Blob: file, Offset: -1},
		} {
			_, _, err := wholeBlob(t, c, q)
			want(err, connect.CodeInvalidArgument, fault.Invalid, "")
		}
		_, _, err := wholeBlob(t, c, &packhorsev1.BlobRequest{Repository: "nowhere", Blob: file})
		want(err, connect.CodeNotFound, fault.NotFound, "nowhere")
		_, err = c.Tree(t.Context(), connect.NewRequest(&packhorsev1.TreeRequest{Repository: "app",
			Path: &packhorsev1.RevisionPath{Path: "no/where"}}))
		want(err, connect.CodeNotFound, fault.NotFound, "no/where")
		_, err = c.Commit(t.Context(), connect.NewRequest(&packhorsev1.CommitRequest{Repository: "app", Revision: "gone"}))
		want(err, connect.CodeNotFound, fault.NotFound, "gone")
		for _, id := range []string{"", "main", strings.Repeat("0", 40), strings.Repeat("1", 64)} {
			if files, err := c.Files(t.Context(), connect.NewRequest(&internalv1.FilesRequest{Repository: "app",
				Commit: id})); err == nil {
				files.Receive()
				want(files.Err(), connect.CodeInvalidArgument, fault.Invalid, "")
				files.Close()
			}
			_, err = c.CountCommits(t.Context(), connect.NewRequest(&internalv1.CountCommitsRequest{Repository: "app", Old: id,
				New: id}))
			if len(id) < 64 {
				want(err, connect.CodeInvalidArgument, fault.Invalid, "")
			}
		}
		if hits, err := c.Grep(t.Context(), connect.NewRequest(&internalv1.GrepRequest{Repository: "app", Pattern: "x",
			Commit: strings.Repeat("1", 40)})); err == nil {
			hits.Receive()
			want(hits.Err(), connect.CodeUnavailable, fault.Unavailable, "does not search in repositories")
			hits.Close()
		}

		seat, err := long.Enter("")
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = wholeBlob(t, c, &packhorsev1.BlobRequest{Repository: "app", Blob: file})
		want(err, connect.CodeResourceExhausted, fault.Exhausted, "hit")
		if _, data, err := wholeBlob(t, c, &packhorsev1.BlobRequest{Repository: "app", Blob: file,
			Length: 1 << 17}); err != nil || len(data) != 1<<17 {
			t.Errorf("%s: what is small: %d bytes, %v", name, len(data), err)
		}
		if err := seat.Move(small); err != nil {
			t.Fatal(err)
		}
		_, _, err = wholeBlob(t, c, &packhorsev1.BlobRequest{Repository: "app", Blob: file, Length: 1})
		want(err, connect.CodeResourceExhausted, fault.Exhausted, "small")
		seat.Leave()
		if _, data, err := wholeBlob(t, c, &packhorsev1.BlobRequest{Repository: "app", Blob: file}); err != nil ||
			len(data) != 1<<18 {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
	}
	for _, lane := range []*admit.Lane{small, long} {
		if _, err := lane.Enter(""); err != nil {
			t.Errorf("a place was not given back: %v", err)
		}
	}
}
