package uploadpack

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// A repository that borrows objects acknowledges only haves that its own refs reach. It ignores a client's boundary in
// the history of others: if that were unshallowed, the pack would have their objects.
func TestForeignHaves(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	a := g.Commit("a")
	b := g.Commit("b", a)
	main, hidden := g.Commit("main", b), g.Commit("hidden", a)
	middle := g.Commit("foreign, on an own commit", b)
	foreign := g.Commit("foreign", middle)
	for name, id := range map[string]git.ObjectID{"main": main, "hidden": hidden, "foreign": foreign} {
		g.Git("update-ref", "refs/heads/"+name, id.String())
	}
	borrower := gittest.Init(t)
	alternates := filepath.Join(borrower.Dir, "objects/info/alternates")
	if err := os.WriteFile(alternates, []byte(filepath.Join(g.Dir, "objects")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	borrower.Git("update-ref", "refs/heads/main", main.String())
	borrower.Git("update-ref", "refs/secret/x", hidden.String())
	borrower.Git("config", "transfer.hideRefs", "refs/secret")
	own, others := []git.ObjectID{main, b, a, hidden}, []git.ObjectID{foreign, middle, g.ID("foreign:file")}
	var haves []string
	for i := range others {
		haves = append(haves, "have "+others[i].String(), "have "+own[i].String())
	}
	haves = append(haves, "have "+hidden.String())
	unknown := strings.Repeat("have "+strings.Repeat("12", 20)+"\n", lookupsPerCheck) // several walks in version 0
	for _, hasGraph := range []bool{false, true} {
		if hasGraph {
			g.Git("commit-graph", "write", "--reachable")
		}
		s := &testServer{repo: openRepo(t, borrower.Dir)}
		v2 := testRequest{command: "fetch", args: append([]string{"want " + main.String()}, haves...)}
		v0 := pktline.AppendFlush(pktline.AppendLine(nil, "want "+main.String()+" multi_ack_detailed side-band-64k"))
		v0 = appendLines(appendLines(appendLines(v0, haves[:2]), strings.Split(strings.TrimSpace(unknown), "\n")), haves[2:])
		for what, request := range map[node.Session][]byte{
			version2:                                v2.bytes(git.SHA1),
			{Version: protocol.V0, Stateless: true}: pktline.AppendFlush(v0),
			{Version: protocol.V0}:                  pktline.AppendLine(pktline.AppendFlush(v0), "done"),
		} {
			response, _, err := s.serveAs(New(keySource{}, Options{Wants: WantsReachable}), what, request)
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range own {
				if !strings.Contains(response.String(), "ACK "+id.String()) {
					t.Errorf("%+v: own %s is not acknowledged: %q", what, id, response)
				}
			}
			for _, id := range others {
				got := strings.ReplaceAll(response.String(), "ACK "+id.String()+" ready", "") // as for a missing object
				if strings.Contains(got, id.String()) {
					t.Errorf("%+v: foreign %s is acknowledged: %q", what, id, response)
				}
			}
		}
		deepen := func(boundary git.ObjectID) string {
			q := testRequest{command: "fetch", args: []string{"want " + main.String(), "shallow " + boundary.String(),
				"deepen 2147483647", "done"}}
			source := &asked{}
			_, _, _ = s.serve(New(source, Options{Wants: WantsReachable}), q.bytes(git.SHA1))
			var wants []string
			for _, id := range source.spec.Wants {
				wants = append(wants, id.String())
			}
			return strings.Join(wants, " ")
		}
		if got := deepen(b); !strings.Contains(got, a.String()) {
			t.Errorf("behind an own boundary: wants %s", got)
		}
		if got := deepen(foreign); got != main.String() {
			t.Errorf("behind a foreign boundary: wants %s", got)
		}
	}
}
