package control

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
	"github.com/packhorse-git/packhorse/proto/packhorse/v1/packhorsev1connect"
)

// historyClient serves a root with the repository app.
func historyClient(t *testing.T) (packhorsev1connect.HistoryServiceClient, *gittest.Repo) {
	t.Helper()
	s, address := realPort(t, "tcp", Options{})
	root := s.Node.Root()
	r := gittest.At(t, filepath.Join(root, "app.git"))
	return packhorsev1connect.NewHistoryServiceClient(http2Client(t, "tcp", address), "http://"+address), r
}

func TestHistory(t *testing.T) {
	t.Parallel()
	c, r := historyClient(t)
	root := r.ID("main")
	a, b := r.Commit("a", root), r.Commit("b", root)
	r.Git("update-ref", "refs/heads/a", a.String())
	r.Git("update-ref", "refs/tags/b", b.String())
	r.Git("update-ref", "refs/hidden/b", b.String())
	r.Git("config", "transfer.hideRefs", "refs/hidden")
	base, err := c.MergeBase(t.Context(), connect.NewRequest(&packhorsev1.MergeBaseRequest{Repository: "app",
		Revisions: []string{"a", "b"}}))
	if err != nil || !slices.Equal(base.Msg.GetOids(), []string{root.String()}) {
		t.Errorf("merge base: got %v, %v; want %s", base, err, root)
	}
	_, err = c.MergeBase(t.Context(), connect.NewRequest(&packhorsev1.MergeBaseRequest{Repository: "app",
		Revisions: []string{"a", "refs/hidden/b"}}))
	if e, ok := faultOfRPC(err); !ok || e.Kind != fault.NotFound || e.Field != "revisions[1]" {
		t.Errorf("merge base of a hidden ref: got %v", err)
	}
	pairs := []*packhorsev1.CommitPair{{Left: "a", Right: "b"}, {Left: "main", Right: "b"}, nil}
	counts, err := c.AheadBehind(t.Context(), connect.NewRequest(&packhorsev1.AheadBehindRequest{Repository: "app",
		Pairs: pairs}))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, m := range counts.Msg.GetResults() {
		got += fmt.Sprintf("%d-%d ", m.GetAhead(), m.GetBehind())
	}
	if got != "1-1 0-1 0-0 " {
		t.Errorf("ahead and behind: got %s", got)
	}
	ancestors, err := c.IsAncestor(t.Context(), connect.NewRequest(&packhorsev1.IsAncestorRequest{Repository: "app",
		Pairs: pairs}))
	if err != nil {
		t.Fatal(err)
	}
	got = ""
	for _, m := range ancestors.Msg.GetResults() {
		got += fmt.Sprintf("%v ", m.GetIsAncestor())
	}
	if got != "false true true " {
		t.Errorf("ancestors: got %s", got)
	}
	_, err = c.IsAncestor(t.Context(), connect.NewRequest(&packhorsev1.IsAncestorRequest{Repository: "app",
		Pairs: []*packhorsev1.CommitPair{nil, {Left: "x", Right: "b"}}}))
	if e, ok := faultOfRPC(err); !ok || e.Kind != fault.NotFound || e.Field != "pairs[1].left" {
		t.Errorf("ancestors of nothing: got %v", err)
	}
	contains, err := c.Contains(t.Context(), connect.NewRequest(&packhorsev1.ContainsRequest{Repository: "app",
		Revisions: []string{"main", b.String()}}))
	if err != nil {
		t.Fatal(err)
	}
	got = ""
	for _, m := range contains.Msg.GetResults() {
		got += strings.Join(m.GetRefs(), ",") + " "
	}
	if got != "refs/heads/a,refs/heads/main,refs/tags/b refs/tags/b " {
		t.Errorf("contains: got %s", got)
	}
}

// faultOfRPC reads the fault of a call's error.
func faultOfRPC(err error) (*fault.Error, bool) {
	return errors.AsType[*fault.Error](faultrpc.From(err))
}

// TestLastCommits has long messages, so that the response has several messages.
func TestLastCommits(t *testing.T) {
	t.Parallel()
	c, r := historyClient(t)
	var in strings.Builder
	long := strings.Repeat("line\n", 20_000)
	for i := range 40 {
		fmt.Fprintf(&in, "commit refs/heads/long\ncommitter C <c@x> %d +0000\ndata %d\n%s\n", i, len(long), long)
		fmt.Fprintf(&in, "M 100644 inline d/f%02d\ndata 1\nx\nM 100644 inline d/g%02d\ndata 1\nx\n\n", i, i)
	}
	r.GitIn(in.String(), "fast-import", "--quiet")
	stream, err := c.LastCommits(t.Context(), connect.NewRequest(&packhorsev1.LastCommitsRequest{Repository: "app",
		Revision: "long", Path: "d"}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	commits, messages := map[string]bool{}, 0
	var names []string
	for stream.Receive() {
		messages++
		if size := proto.Size(stream.Msg()); size > maxPart+10_000 {
			t.Errorf("a message of %d bytes", size)
		}
		for _, m := range stream.Msg().GetCommits() {
			if commits[m.GetOid()] || len(m.GetMessage()) != len(long) {
				t.Errorf("commit %s: twice, or with a message of %d bytes", m.GetOid(), len(m.GetMessage()))
			}
			commits[m.GetOid()] = true
		}
		for _, e := range stream.Msg().GetEntries() {
			names = append(names, string(e.GetName()))
			if !commits[e.GetCommit()] || e.GetType() != "blob" {
				t.Errorf("entry %v before its commit", e)
			}
		}
	}
	want := strings.Fields(r.Git("ls-tree", "--name-only", "long:d"))
	if stream.Err() != nil || !slices.Equal(names, want) || len(commits) != 40 || messages < 3 {
		t.Errorf("got %d names, %d commits in %d messages, %v", len(names), len(commits), messages, stream.Err())
	}
	stream, err = c.LastCommits(t.Context(), connect.NewRequest(&packhorsev1.LastCommitsRequest{Repository: "app",
		Path: "nothing"}))
	if err != nil {
		t.Fatal(err)
	}
	stream.Receive()
	if e, ok := faultOfRPC(stream.Err()); !ok || e.Kind != fault.NotFound || e.Field != "path" {
		t.Errorf("got %v, want NotFound of path", stream.Err())
	}
}
