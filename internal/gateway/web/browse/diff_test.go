package browse

import (
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// late sends a part of each response, and then has no time for the rest.
type late struct{ Visitor }

func (late) Read(c gateway.Read) error {
	if c.Limit == 0 {
		return fault.New(fault.Internal, "%s has no limit of time", c.Procedure)
	}
	_ = c.Receive(&packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_File{File: &packhorsev1.FileDiff{
		Path: []byte("a"), OldPath: []byte("a"), Status: "M", Additions: 2}}})
	_ = c.Receive(&packhorsev1.PatchResponse{Part: &packhorsev1.PatchResponse_Patch{Patch: []byte(
		"--- a/a\n+++ b/a\n@@ -1 +1,3 @@\n+one\n")}})
	return fault.New(fault.Deadline, "the call took too long")
}

func (late) Hold(int) error { return nil }

// TestLateDifference: a page shows what was made in time, with a note, and is not kept.
func TestLateDifference(t *testing.T) {
	t.Parallel()
	q := &request{v: late{}, kind: kinds["commit"]}
	d, err := q.diff("", "main", false)
	if err != nil || !q.busy {
		t.Fatalf("a difference that takes too long: %v; to be kept: %v", err, !q.busy)
	}
	var page strings.Builder
	if err := d.view(q, "", "main").Render(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"This is not the whole difference: it takes more than 5 seconds", "one</code>", "+2",
		"The rest of the changes is not shown."} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q: %s", want, page.String())
		}
	}
	page.Reset()
	d.files = nil
	if err := d.view(q, "", "main").Render(&page); err != nil || strings.Contains(page.String(), "changed") {
		t.Errorf("a page without any file counts them: %s, %v", page.String(), err)
	}
}
