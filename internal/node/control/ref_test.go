package control

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// grpcMessage is the default maximum of a message at gRPC callers.
const grpcMessage = 4 << 20

// packRefs makes refs of a repository: n with names of nearly 2 KiB each, beside main.
func packRefs(t *testing.T, dir string, id string, n int) {
	t.Helper()
	var text bytes.Buffer
	text.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	for i := range n {
		fmt.Fprintf(&text, "%s %s\n", id, longRef(i))
	}
	fmt.Fprintf(&text, "%s refs/heads/main\n", id)
	next := filepath.Join(dir, "packed-refs.new")
	if err := os.WriteFile(next, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "packed-refs")); err != nil {
		t.Fatal(err)
	}
}

func longRef(i int) string {
	return "refs/heads/" + strings.Repeat(strings.Repeat("a", 240)+"/", 8) + fmt.Sprintf("%05d", i)
}

// An event that is too long for a message comes in parts. A watch that broke off within them receives all parts again.
func TestLongEventsComeInParts(t *testing.T) {
	t.Parallel()
	const n = 2000
	p := newPort(t)
	p.create("app")
	repo := gittest.At(t, filepath.Join(p.dir, "app.git"))
	id := repo.Commit("x").String()
	packRefs(t, repo.Dir, id, 0)
	watch := func(known *packhorsev1.Version) (*connect.ServerStreamForClient[packhorsev1.WatchResponse], func()) {
		ctx, cancel := context.WithCancel(t.Context())
		request := &packhorsev1.WatchRequest{Repositories: []*packhorsev1.WatchedRepository{{Repository: "app",
			Version: known}}}
		stream, err := p.refs.Watch(ctx, connect.NewRequest(request))
		if err != nil {
			t.Fatal(err)
		}
		return stream, cancel
	}
	next := func(stream *connect.ServerStreamForClient[packhorsev1.WatchResponse]) *packhorsev1.WatchResponse {
		t.Helper()
		if !stream.Receive() {
			t.Fatal(stream.Err())
		}
		if size := proto.Size(stream.Msg()); size > grpcMessage {
			t.Errorf("a message of %d bytes", size)
		}
		return proto.CloneOf(stream.Msg())
	}
	stream, leave := watch(nil)
	before := next(stream).GetVersion()
	packRefs(t, repo.Dir, id, n)
	first := next(stream)
	if !first.GetContinued() || !proto.Equal(first.GetVersion(), before) || len(first.GetChanges()) == 0 ||
		len(first.GetChanges()) == n {
		t.Fatalf("the first part: continued %v, version %v (before it was %v), %d changes", first.GetContinued(),
			first.GetVersion(), before, len(first.GetChanges()))
	}
	leave() // the rest is lost
	for _, resumed := range []bool{true, false} {
		from := first.GetVersion()
		stream, leave := watch(from)
		seen := make(map[string]bool)
		for parts := 1; ; parts++ {
			part := next(stream)
			for _, c := range part.GetChanges() {
				seen[c.GetName()] = c.GetNewOid() == id
			}
			if part.GetReset_() || part.GetMissing() {
				t.Fatalf("resumed %v: a reset", resumed)
			}
			if part.GetContinued() {
				if !proto.Equal(part.GetVersion(), from) {
					t.Errorf("part %d has the version %v", parts, part.GetVersion())
				}
				continue
			}
			if proto.Equal(part.GetVersion(), from) || parts < 3 {
				t.Errorf("the last of %d parts has the version %v", parts, part.GetVersion())
			}
			break
		}
		for i := range n {
			if !seen[longRef(i)] {
				t.Fatalf("resumed %v: %d changes, without number %d", resumed, len(seen), i)
			}
		}
		leave()
	}
}

// A batch of a list is short enough for every caller, however long the names are.
func TestLongNamesInLists(t *testing.T) {
	t.Parallel()
	const n = 2500
	p := newPort(t)
	p.create("app")
	repo := gittest.At(t, filepath.Join(p.dir, "app.git"))
	packRefs(t, repo.Dir, repo.Commit("x").String(), n)
	for _, size := range []int32{0, 2000} {
		var got []string
		request := &packhorsev1.RefServiceListRequest{Repository: "app", PageSize: size}
		for pages := 0; pages == 0 || request.GetPageToken() != "" && pages < 10; pages++ {
			stream, err := p.refs.List(t.Context(), connect.NewRequest(request))
			if err != nil {
				t.Fatal(err)
			}
			request.PageToken = ""
			for stream.Receive() {
				if size := proto.Size(stream.Msg()); size > 1<<20+4000 {
					t.Errorf("a message of %d bytes", size)
				}
				if request.GetPageToken() != "" {
					t.Error("a message after the one with the token")
				}
				request.PageToken = stream.Msg().GetNextPageToken()
				for _, ref := range stream.Msg().GetRefs() {
					got = append(got, ref.GetName())
				}
			}
			if stream.Err() != nil {
				t.Fatal(stream.Err())
			}
		}
		if len(got) != n+1 || got[n] != "refs/heads/main" {
			t.Errorf("pages of %d: %d refs", size, len(got))
		}
		for i, name := range got[:min(n, len(got))] {
			if name != longRef(i) {
				t.Fatalf("pages of %d: number %d is %s", size, i, name)
			}
		}
	}
}

// TestResolveManyIsBounded checks that a response of ResolveMany fits into a message of every caller, or is an error
// with a remedy.
func TestResolveManyIsBounded(t *testing.T) {
	t.Parallel()
	p := newPort(t)
	p.create("app")
	repo := gittest.At(t, filepath.Join(p.dir, "app.git"))
	id := repo.Commit("x").String()
	packRefs(t, repo.Dir, id, 1)
	repo.Git("symbolic-ref", "refs/heads/far", longRef(0))
	ask := func(n int, name string) (*connect.Response[packhorsev1.ResolveManyResponse], error) {
		request := new(packhorsev1.ResolveManyRequest)
		for range n {
			request.Requests = append(request.Requests, &packhorsev1.ResolveRequest{Repository: "app", Name: name})
		}
		return p.refs.ResolveMany(t.Context(), connect.NewRequest(request))
	}
	for name, n := range map[string]int{"main": 10_000, longRef(0): 500, "none": 10_000, "far": 1000, "refs/heads/" +
		strings.Repeat("x", 93): 10_000} {
		answer, err := ask(n, name)
		if err != nil || len(answer.Msg.GetResults()) != n || proto.Size(answer.Msg) > grpcMessage {
			t.Errorf("%d times %.40s: %v", n, name, err)
		}
	}
	if _, err := ask(1500, longRef(0)); connect.CodeOf(err) != connect.CodeInvalidArgument ||
		!strings.Contains(err.Error(), "one call can resolve") {
		t.Errorf("too long names: %.200v", err)
	}
	if _, err := ask(5000, "far"); connect.CodeOf(err) != connect.CodeInvalidArgument ||
		!strings.Contains(err.Error(), "resolve fewer names") {
		t.Errorf("too long targets: %.200v", err)
	}
}
