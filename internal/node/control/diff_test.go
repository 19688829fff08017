package control

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault/faultrpc"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// TestDiffs checks the messages of long patches, mails, range-diffs and blames.
func TestDiffs(t *testing.T) {
	t.Parallel()
	w := newMergeWorld(t)
	var long strings.Builder
	for n := range 50_000 {
		fmt.Fprintf(&long, "line-%d,", n)
	}
	w.branch("topic", "f=1 long="+strings.ReplaceAll(long.String(), ",", "\n")[:40], "main")
	blob := w.repo.Blob(strings.ReplaceAll(long.String(), ",", "\n"))
	id := w.repo.CommitTree("long", "100644 blob "+blob.String()+"\tlong\n", w.repo.ID("topic"))
	w.repo.Git("update-ref", "refs/heads/topic", id.String())
	ctx := t.Context()
	for range 2 { // the second time from the cache
		stream, err := w.diffs.Patch(ctx, connect.NewRequest(&packhorsev1.PatchRequest{Repository: "app", To: "topic"}))
		if err != nil {
			t.Fatal(err)
		}
		var patch strings.Builder
		var last *packhorsev1.PatchSummary
		for stream.Receive() {
			m := stream.Msg()
			if n := len(m.GetPatch()) + len(m.GetFile().GetPatch()); n > maxData {
				t.Errorf("a message of %d bytes", n)
			}
			patch.Write(m.GetFile().GetPatch())
			patch.Write(m.GetPatch())
			last = m.GetSummary()
		}
		want := w.repo.Git("diff-tree", "-p", "--full-index", "topic~", "topic") + "\n"
		if patch.String() != want || stream.Err() != nil || last.GetToOid() != id.String() {
			t.Errorf("%v: %d bytes, %v; want %d bytes", stream.Err(), patch.Len(), last, len(want))
		}
	}
	mails, err := w.diffs.FormatPatch(ctx, connect.NewRequest(&packhorsev1.FormatPatchRequest{Repository: "app",
		From: "main", To: "topic"}))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for mails.Receive() {
		text.Write(mails.Msg().GetData())
	}
	if mails.Err() != nil || strings.Count(text.String(), "\nSubject: ") != 2 {
		t.Errorf("%v: %d bytes", mails.Err(), text.Len())
	}
	compared, err := w.diffs.RangeDiff(ctx, connect.NewRequest(&packhorsev1.RangeDiffRequest{Repository: "app",
		OldBase: "main", OldTip: "topic", NewTip: "topic~"}))
	if err != nil {
		t.Fatal(err)
	}
	if !compared.Receive() || strings.Count(string(compared.Msg().GetData()), "\n") != 2 {
		t.Errorf("%v: %q", compared.Err(), compared.Msg().GetData())
	}
	blame, err := w.history.Blame(ctx, connect.NewRequest(&packhorsev1.BlameRequest{Repository: "app", Revision: "topic",
		Path: "long"}))
	if err != nil {
		t.Fatal(err)
	}
	if !blame.Receive() || len(blame.Msg().GetHunks()) == 0 || len(blame.Msg().GetCommits()) == 0 {
		t.Errorf("%v: %v", blame.Err(), blame.Msg())
	}
	bad, err := w.diffs.Patch(ctx, connect.NewRequest(&packhorsev1.PatchRequest{Repository: "app", To: "none"}))
	if err == nil {
		bad.Receive()
		err = bad.Err()
	}
	w.code(err, connect.CodeNotFound)
	if f, _ := faultrpc.Detail[*packhorsev1.Fault](err); f.GetField() != "to" {
		t.Errorf("field %q, want to", f.GetField())
	}
}

// TestApplyPatch applies mails to a branch, with the semantics of Create.
func TestApplyPatch(t *testing.T) {
	t.Parallel()
	w := newMergeWorld(t)
	w.branch("topic", "f=1 a=1", "main")
	w.branch("topic", "f=1 a=1 b=1", "topic")
	mails := w.repo.Git("format-patch", "--stdout", "--full-index", "main..topic") + "\n"
	apply := func(m *packhorsev1.ApplyPatchRequest) (*packhorsev1.ApplyPatchResponse, error) {
		m.Repository = "app"
		r, err := w.commits.ApplyPatch(t.Context(), connect.NewRequest(m))
		if err != nil {
			return nil, err
		}
		return r.Msg, nil
	}
	tree := w.repo.Git("rev-parse", "topic^{tree}")
	for _, q := range []*packhorsev1.ApplyPatchRequest{
		{Branch: "new", Create: true, Start: "main", Text: mails, DryRun: true},
		{Branch: "new", Create: true, Start: "main", Text: mails, IdempotencyKey: "k",
			Actor: &packhorsev1.Actor{Name: "ada"}},
		{Branch: "refs/heads/main", ExpectedHead: w.repo.ID("main").String(), Patch: []byte(mails),
			Committer: &packhorsev1.Author{Raw: []byte("Com <c@x> 5 +0100")}},
	} {
		got, err := apply(q)
		if err != nil || got.GetCreated().GetTree() != tree || len(got.GetCommits()) != 2 || len(got.GetConflicts()) > 0 {
			t.Fatalf("%v: %v", got, err)
		}
		if q.GetDryRun() {
			if _, err := w.repo.Try("rev-parse", "--verify", "-q", "new"); err == nil {
				t.Error("a dry run made a branch")
			}
			continue
		}
		if head := w.repo.ID(q.GetBranch()).String(); head != got.GetCommits()[1] || head != got.GetCreated().GetCommit() ||
			got.GetCreated().GetVersion() == nil {
			t.Errorf("%s is %s: %v", q.GetBranch(), head, got)
		}
		want := "A U Thor|A U Thor|commit of topic"
		if q.GetCommitter() != nil {
			want = "A U Thor|Com|commit of topic"
		}
		if info := w.repo.Git("log", "-1", "--format=%an|%cn|%s", q.GetBranch()); info != want {
			t.Errorf("commit %q, want %q", info, want)
		}
		if q.GetIdempotencyKey() != "" {
			if again, err := apply(q); err != nil || !again.GetCreated().GetRepeated() ||
				again.GetCreated().GetCommit() != got.GetCreated().GetCommit() {
				t.Errorf("a retry: %v, %v", again, err)
			}
		}
	}
	before := w.branch("other", "f=2 a=2", "")
	got, err := apply(&packhorsev1.ApplyPatchRequest{Branch: "other", Text: mails})
	if err != nil || len(got.GetConflicts()) != 1 || got.GetCreated() != nil || w.repo.ID("other") != before {
		t.Errorf("a conflict: %v, %v", got, err)
	}
	for field, q := range map[string]*packhorsev1.ApplyPatchRequest{
		"branch": {Branch: "a..b", Text: mails}, "start": {Branch: "x", Create: true, Start: "none", Text: mails},
		"patch": {Branch: "other"}, "expected_head": {Branch: "other", ExpectedHead: "x", Text: mails},
		"committer.raw": {Branch: "other", Text: mails, Committer: &packhorsev1.Author{Raw: []byte("x\ny")}},
	} {
		_, err := apply(q)
		if f, ok := faultrpc.Detail[*packhorsev1.Fault](err); !ok || f.GetField() != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	const patch = "diff --git a/x b/x\nnew file mode 100644\nindex %040d..%s\nBinary files /dev/null and b/x differ\n"
	for text, code := range map[string]connect.Code{"1\n": 0, "no ref reaches this": connect.CodeNotFound} {
		id := strings.ToUpper(w.repo.Blob(text).String())
		_, err = apply(&packhorsev1.ApplyPatchRequest{Branch: "topic", Text: fmt.Sprintf(patch, 0, id)})
		if (err != nil) != (code != 0) || err != nil && connect.CodeOf(err) != code {
			t.Errorf("a binary patch to the blob of %q: %v", text, err)
		}
	}
	_, err = apply(&packhorsev1.ApplyPatchRequest{Branch: "other", Text: mails, ExpectedHead: strings.Repeat("1", 40)})
	w.code(err, connect.CodeAborted)
	_, err = apply(&packhorsev1.ApplyPatchRequest{Branch: "topic", Text: mails})
	w.code(err, connect.CodeFailedPrecondition)
}

// Patches of one branch at the same time are applied to the head that others have made meanwhile.
func TestConcurrentPatches(t *testing.T) {
	t.Parallel()
	w := newMergeWorld(t)
	var calls sync.WaitGroup
	for i := range 3 {
		calls.Go(func() {
			text := fmt.Sprintf("diff --git a/p%d b/p%[1]d\nnew file mode 100644\n"+
				"--- /dev/null\n+++ b/p%[1]d\n@@ -0,0 +1 @@\n+x\n", i)
			_, err := w.commits.ApplyPatch(t.Context(), connect.NewRequest(&packhorsev1.ApplyPatchRequest{Repository: "app",
				Branch: "main", Text: text, Message: "p"}))
			if err != nil {
				t.Errorf("patch %d: %v", i, err)
			}
		})
	}
	calls.Wait()
	if got := strings.Fields(w.repo.Git("ls-tree", "--name-only", "main")); len(got) != 4 {
		t.Errorf("main has %q, want f and the files of 3 patches", got)
	}
}
