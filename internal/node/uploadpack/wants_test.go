package uploadpack

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

func TestWants(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	object := func(text string, args ...string) string {
		return g.GitIn(text, append([]string{"hash-object", "-w"}, args...)...)
	}
	a := g.Commit("a")
	b := g.Commit("b", a)
	g.Git("update-ref", "refs/heads/main", b.String())
	g.Git("tag", "-a", "-m", "x", "inner", a.String())
	g.Git("tag", "-a", "-m", "x", "outer", "inner")
	inner := g.ID("inner")
	g.Git("update-ref", "-d", "refs/tags/inner")
	g.Git("tag", "light-tree", a.String()+"^{tree}")
	g.Git("tag", "big", object("a blob that only a tag names", "--stdin"))
	lost := g.Commit("lost", b)
	lostTag := git.MustParseObjectID(g.GitIn(fmt.Sprintf("object %s\ntype commit\ntag x\ntagger T <t@x> 1 +0000\n\nx\n",
		b), "mktag"))
	lostBlob := git.MustParseObjectID(object("lost blob", "--stdin"))
	deep := g.GitIn(fmt.Sprintf("040000 tree %s\tdir\n160000 commit %s\tmodule\n", g.ID(b.String()+"^{tree}"), lost),
		"mktree")
	c := git.MustParseObjectID(g.GitIn("deep", "commit-tree", deep, "-p", b.String()))
	g.Git("update-ref", "refs/heads/main", c.String())

	borrower := gittest.Init(t)
	alternates := filepath.Join(borrower.Dir, "objects/info/alternates")
	if err := os.WriteFile(alternates, []byte(filepath.Join(g.Dir, "objects")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	borrower.Git("update-ref", "refs/heads/main", b.String())

	plain, borrowing := openRepo(t, g.Dir), openRepo(t, borrower.Dir)
	const ok, denied = fault.Exhausted, fault.Denied // a pack would be made; not
	for _, test := range []struct {
		name                                     string
		id                                       git.ObjectID
		any, reachable, tip, borrowed, borrowTip fault.Kind
	}{
		{"branch", c, ok, ok, ok, denied, denied},
		{"commit behind", b, ok, ok, denied, ok, ok},
		{"root", a, ok, ok, denied, ok, denied},
		{"lost commit", lost, ok, denied, denied, denied, denied}, // a gitlink to it gives nothing
		{"tag", g.ID("outer"), ok, ok, ok, denied, denied},
		{"tag behind a tag", inner, ok, ok, denied, denied, denied},
		{"lost tag", lostTag, ok, denied, denied, denied, denied},
		{"root tree", g.ID(c.String() + "^{tree}"), ok, ok, denied, denied, denied},
		{"old tree", g.ID(b.String() + "^{tree}"), ok, ok, denied, ok, denied},
		{"tagged tree", g.ID("light-tree"), ok, ok, ok, ok, denied},
		{"blob", g.ID(b.String() + ":file"), ok, ok, denied, ok, denied},
		{"old blob", g.ID(a.String() + ":file"), ok, ok, denied, ok, denied},
		{"tagged blob", g.ID("big"), ok, ok, ok, denied, denied},
		{"lost blob", lostBlob, ok, denied, denied, denied, denied},
	} {
		for _, s := range []struct {
			rule  Wants
			alone bool
			want  fault.Kind
		}{
			{WantsAny, true, test.any}, {WantsReachable, true, test.reachable}, {WantsTip, true, test.tip},
			{WantsAny, false, test.borrowed}, {WantsReachable, false, test.borrowed}, {WantsTip, false, test.borrowTip},
		} {
			r := borrowing
			if s.alone {
				r = plain
			}
			q := testRequest{command: "fetch", args: []string{"want " + test.id.String(), "done"}}
			_, _, err := (&testServer{repo: r}).serve(New(&asked{}, Options{Wants: s.rule}), q.bytes(r.Format))
			if fault.KindOf(err) != s.want {
				t.Errorf("%s, wants = %s, with alternates %v: %v", test.name, s.rule, !s.alone, err)
			}
		}
		// By itself it depends on whether the gateway distinguishes callers, in one server and one after the
		// other.
		auto := New(&asked{}, Options{Wants: WantsAuto})
		for _, s := range []struct {
			r         *repo.Repo
			reachable bool
			want      fault.Kind
		}{{plain, false, test.any}, {plain, true, test.reachable}, {plain, false, test.any},
			{borrowing, false, test.borrowed}, {borrowing, true, test.borrowed}} {
			q := testRequest{command: "fetch", args: []string{"want " + test.id.String(), "done"}}
			session := node.Session{Version: protocol.V2, Stateless: true, Reachable: s.reachable}
			_, _, err := (&testServer{repo: s.r}).serveAs(auto, session, q.bytes(s.r.Format))
			if fault.KindOf(err) != s.want {
				t.Errorf("%s, wants = auto, callers are known %v: %v", test.name, s.reachable, err)
			}
		}
	}
}

// A want that may lie deeper than the search is refused with the reason, not as a missing object.
func TestWantsBeyondTheSearch(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	var stream strings.Builder
	for i := range searchCommits + 2 { // the blob is in the trees of the oldest two
		fmt.Fprintf(&stream, "commit refs/heads/main\ncommitter C <c@x> %d +0000\ndata 1\nx\n", 1_600_000_000+i)
		switch i {
		case 0:
			stream.WriteString("M 100644 inline old\ndata 3\nold\nM 100644 inline file\ndata 1\nx\n")
		case 2:
			stream.WriteString("D old\n")
		}
	}
	g.GitIn(stream.String(), "fast-import", "--quiet")
	old := g.ID(fmt.Sprintf("main~%d:old", searchCommits+1))
	q := testRequest{command: "fetch", args: []string{"want " + old.String(), "done"}}
	r := openRepo(t, g.Dir)
	_, err := New(keySource{}, Options{Wants: WantsReachable}).Serve(t.Context(), r, version2,
		pktline.NewReader(bytes.NewReader(q.bytes(r.Format))), newRecorder())
	if !fault.Is(err, fault.Denied) || !strings.Contains(fault.Message(err), "not found within 20000 commits") {
		t.Errorf("got %v", err)
	}
}
