package control

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// mergeWorld is a repository with branches.
type mergeWorld struct {
	*port
	repo *gittest.Repo
}

func newMergeWorld(t *testing.T) *mergeWorld {
	p := newPort(t)
	p.create("app")
	w := &mergeWorld{p, gittest.At(t, filepath.Join(p.dir, "app.git"))}
	w.branch("main", "f=1", "")
	return w
}

// branch sets a branch to a new commit of files NAME=CONTENT on another branch.
func (w *mergeWorld) branch(name, files, on string) git.ObjectID {
	w.t.Helper()
	list := ""
	for f := range strings.FieldsSeq(files) {
		path, content, _ := strings.Cut(f, "=")
		list += fmt.Sprintf("100644 blob %s\t%s\n", w.repo.Blob(content+"\n"), path)
	}
	var parents []git.ObjectID
	if on != "" {
		parents = append(parents, w.repo.ID(on))
	}
	id := w.repo.CommitTree("commit of "+name+"\n\nbody", list, parents...)
	w.repo.Git("update-ref", "refs/heads/"+name, id.String())
	return id
}

func (w *mergeWorld) merge(m *packhorsev1.MergeRequest) (*packhorsev1.MergeResponse, error) {
	m.Repository = "app"
	r, err := w.merges.Merge(w.t.Context(), connect.NewRequest(m))
	if err != nil {
		return nil, err
	}
	return r.Msg, nil
}

// Merges of all methods change the target, and nothing else.
func TestMerges(t *testing.T) {
	t.Parallel()
	w := newMergeWorld(t)
	topic := w.branch("topic", "f=1 topic=1", "main")
	for _, method := range []string{"", "MERGE", "SQUASH", "REBASE", "CHERRY_PICK"} {
		before := w.branch("target", "f=2", "main")
		q := &packhorsev1.MergeRequest{Target: "target", Source: "topic", Method: method, DryRun: true,
			IdempotencyKey: "key" + method, Actor: &packhorsev1.Actor{Name: "ada"},
			ExpectedTarget: before.String(), ExpectedSource: topic.String()}
		dry, err := w.merge(q)
		if err != nil || dry.GetTree() == "" || w.repo.ID("target") != before {
			t.Fatalf("%s: a dry run: %v, %v", method, dry, err)
		}
		q.DryRun = false
		got, err := w.merge(q)
		if err != nil || got.GetCommit() != w.repo.ID("target").String() || got.GetTree() != dry.GetTree() ||
			len(got.GetCommits()) != 1 || got.GetVersion() == nil || got.GetRepeated() {
			t.Fatalf("%s: %v, %v; the target is %s", method, got, err, w.repo.ID("target"))
		}
		if files := w.repo.Git("ls-tree", "--name-only", "target"); files != "f\ntopic" {
			t.Errorf("%s: files %q", method, files)
		}
		info := w.repo.Git("log", "-1", "--format=%an %cn %P %s", "target")
		want := "ada ada " + before.String() + " " + topic.String() + " Merge branch 'topic' into target"
		switch method {
		case "SQUASH":
			want = "ada ada " + before.String() + " Squash branch 'topic' into target"
		case "REBASE", "CHERRY_PICK":
			want = "A U Thor ada " + before.String() + " commit of topic"
		}
		if info != want {
			t.Errorf("%s: commit %q, want %q", method, info, want)
		}
		again, err := w.merge(q)
		if err != nil || !again.GetRepeated() || again.GetCommit() != got.GetCommit() || again.GetTree() != got.GetTree() {
			t.Errorf("%s: a retry: %v, %v", method, again, err)
		}
	}
	got, err := w.merge(&packhorsev1.MergeRequest{Target: "refs/heads/target", Source: "target", Method: "REVERT",
		Message: "No"})
	if err != nil || w.repo.Git("log", "-1", "--format=%s", "target") != "No" ||
		w.repo.Git("ls-tree", "--name-only", "target") != "f" {
		t.Errorf("revert: %v, %v", got, err)
	}
	got, err = w.merge(&packhorsev1.MergeRequest{Target: "main", Source: "topic", Method: "FF_ONLY"})
	if err != nil || !got.GetFastForward() || w.repo.ID("main") != topic {
		t.Errorf("fast-forward: %v, %v", got, err)
	}
	got, err = w.merge(&packhorsev1.MergeRequest{Target: "main", Source: "topic"})
	if err != nil || !got.GetUpToDate() || got.GetCommit() != topic.String() || got.GetVersion() == nil {
		t.Errorf("up to date: %v, %v", got, err)
	}
	if out, err := w.repo.Try("fsck", "--strict"); err != nil {
		t.Errorf("git fsck: %v\n%s", err, out)
	}
}

// Conflicts are in the response. Nothing changes.
func TestMergeConflicts(t *testing.T) {
	t.Parallel()
	w := newMergeWorld(t)
	w.branch("topic", "f=3 g=1", "main")
	main := w.branch("main", "f=2", "main")
	for _, method := range []string{"MERGE", "SQUASH", "REBASE", "CHERRY_PICK"} {
		got, err := w.merge(&packhorsev1.MergeRequest{Target: "main", Source: "topic", Method: method})
		if err != nil || len(got.GetConflicts()) != 1 || got.GetCommit() != "" || got.GetTree() != "" {
			t.Fatalf("%s: %v, %v", method, got, err)
		}
		c := got.GetConflicts()[0]
		if string(c.GetPath()) != "f" || !slices.Equal(c.GetKinds(), []string{"contents"}) ||
			c.GetBase().GetOid() != w.repo.Blob("1\n").String() || c.GetOurs().GetOid() != w.repo.Blob("2\n").String() ||
			c.GetTheirs().GetOid() != w.repo.Blob("3\n").String() || c.GetOurs().GetMode() != 0o100644 ||
			c.GetMessage() != "CONFLICT (content): Merge conflict in f\n" {
			t.Errorf("%s: %v", method, c)
		}
		if isReplay := method == "REBASE" || method == "CHERRY_PICK"; isReplay != (got.GetConflictingCommit() != "") {
			t.Errorf("%s: conflicting commit %q", method, got.GetConflictingCommit())
		}
	}
	if w.repo.ID("main") != main {
		t.Error("the target has changed")
	}
}

// Invalid requests name the field.
func TestBadMerges(t *testing.T) {
	t.Parallel()
	w := newMergeWorld(t)
	topic := w.branch("topic", "f=1 g=1", "main")
	w.branch("other", "x=1", "")
	w.branch("ahead", "f=3", "main")
	tag := w.repo.Blob("1\n")
	w.repo.Git("update-ref", "refs/tags/blob", tag.String())
	for _, test := range []struct {
		field string
		code  connect.Code
		q     *packhorsev1.MergeRequest
	}{
		{"target", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Source: "topic"}},
		{"target", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "refs/tags/x", Source: "topic"}},
		{"target", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "a\nb", Source: "topic"}},
		{"target", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "--upload-pack=x", Source: "topic"}},
		{"target", connect.CodeNotFound, &packhorsev1.MergeRequest{Target: "unborn", Source: "topic"}},
		{"target", connect.CodeAborted, &packhorsev1.MergeRequest{Target: "main", Source: "topic",
			ExpectedTarget: topic.String()}},
		{"target", connect.CodeFailedPrecondition, &packhorsev1.MergeRequest{Target: "ahead", Source: "topic",
			Method: "FF_ONLY"}},
		{"expected_target", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "main", Source: "topic",
			ExpectedTarget: "x"}},
		{"source", connect.CodeAborted, &packhorsev1.MergeRequest{Target: "main", Source: "topic",
			ExpectedSource: tag.String()}},
		{"source", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "main"}},
		{"source", connect.CodeNotFound, &packhorsev1.MergeRequest{Target: "main", Source: "nothing"}},
		{"source", connect.CodeNotFound, &packhorsev1.MergeRequest{Target: "main", Source: "--output=x"}},
		{"source", connect.CodeNotFound, &packhorsev1.MergeRequest{Target: "main", Source: "blob"}},
		{"source", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "main", Source: "main..topic"}},
		{"source", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "main", Source: "main...topic",
			Method: "CHERRY_PICK"}},
		{"source", connect.CodeFailedPrecondition, &packhorsev1.MergeRequest{Target: "main", Source: "other"}},
		{"method", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "main", Source: "topic", Method: "x"}},
		{"mainline", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "main", Source: "topic", Mainline: 1}},
		{"mainline", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "main", Source: "topic",
			Method: "REVERT", Mainline: 2}},
		{"author", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "main", Source: "topic", Method: "REBASE",
			Author: &packhorsev1.Author{Name: "x"}}},
		{"message", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "main", Source: "topic",
			Method: "CHERRY_PICK", Message: "x"}},
		{"message", connect.CodeInvalidArgument, &packhorsev1.MergeRequest{Target: "main", Source: "topic",
			Message: "a\x00b"}},
	} {
		_, err := w.merge(test.q)
		w.code(err, test.code)
		f, _ := faultrpc.Detail[*packhorsev1.Fault](err)
		if f.GetField() != test.field || test.code == connect.CodeAborted && len(f.GetMismatches()) != 1 {
			t.Errorf("%v: %v, want an error in %s", test.q, f, test.field)
		}
	}
}

// Concurrent merges into one branch all succeed.
func TestConcurrentMerges(t *testing.T) {
	t.Parallel()
	w := newMergeWorld(t)
	const n = 3
	for i := range n {
		w.branch(fmt.Sprintf("topic%d", i), fmt.Sprintf("f=1 g%d=1", i), "main")
	}
	w.branch("main", "f=1 h=1", "main")
	var merges sync.WaitGroup
	for i := range n {
		merges.Go(func() {
			if got, err := w.merge(&packhorsev1.MergeRequest{Target: "main", Source: fmt.Sprintf("topic%d", i)}); err != nil ||
				len(got.GetCommits()) != 1 {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	merges.Wait()
	if files := w.repo.Git("ls-tree", "--name-only", "main"); files != "f\ng0\ng1\ng2\nh" {
		t.Errorf("files %q", files)
	}
}

// A check answers pairs in their order, and a pair that cannot be merged does not end it.
func TestCheckMerges(t *testing.T) {
	t.Parallel()
	w := newMergeWorld(t)
	w.branch("clean", "f=1 g=1", "main")
	w.branch("conflict", "f=3", "main")
	w.branch("other", "x=1", "")
	old := w.repo.ID("main")
	main := w.branch("main", "f=2", "main")
	stream := w.merges.Check(t.Context())
	for round, repository := range []string{"app", ""} {
		m := &packhorsev1.CheckRequest{Repository: repository}
		for _, source := range []string{"clean", "conflict", "nothing", "other", old.String(), "main"} {
			m.Pairs = append(m.Pairs, &packhorsev1.MergePair{Id: fmt.Sprint(round, source), Target: "main", Source: source})
		}
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
		for i, pair := range m.GetPairs() {
			got, err := stream.Receive()
			if err != nil {
				t.Fatal(err)
			}
			if got.GetId() != pair.GetId() || (got.GetFault() == nil) != (got.GetTargetOid() == main.String()) ||
				(got.GetTree() != "") != (i == 0) || (len(got.GetConflicts()) == 1) != (i == 1) ||
				(got.GetFault().GetKind() == packhorsev1.FaultKind_FAULT_KIND_NOT_FOUND) != (i == 2) ||
				(got.GetFault().GetKind() == packhorsev1.FaultKind_FAULT_KIND_PRECONDITION) != (i == 3) ||
				got.GetUpToDate() != (i > 3) || got.GetFastForward() {
				t.Errorf("%v", got)
			}
		}
	}
	if err := stream.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("the end: %v", err)
	}
	for _, m := range []*packhorsev1.CheckRequest{{Repository: "../x"},
		{Repository: "missing", Pairs: []*packhorsev1.MergePair{{}}},
		{Repository: "app", Pairs: make([]*packhorsev1.MergePair, maxPairs+1)}} {
		for i := range m.GetPairs() {
			m.Pairs[i] = new(packhorsev1.MergePair)
		}
		stream := w.merges.Check(t.Context())
		_ = stream.Send(m)
		_ = stream.CloseRequest()
		_, err := stream.Receive()
		want := connect.CodeInvalidArgument
		if m.GetRepository() == "missing" {
			want = connect.CodeNotFound
		}
		w.code(err, want)
	}
}
