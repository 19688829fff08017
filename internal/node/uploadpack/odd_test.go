package uploadpack

import (
	"bytes"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// raw makes a request of lines; "." is a flush packet, "|" a delimiter, "/" a response-end. A line that begins with
// ":" is used unchanged.
func raw(lines ...string) []byte {
	var b []byte
	for _, line := range lines {
		switch line {
		case ".":
			b = pktline.AppendFlush(b)
		case "|":
			b = pktline.AppendDelim(b)
		case "/":
			b = pktline.AppendResponseEnd(b)
		default:
			if plain, ok := strings.CutPrefix(line, ":"); ok {
				b = append(b, plain...)
			} else {
				b = pktline.Append(b, line)
			}
		}
	}
	return b
}

// Requests that no client sends are accepted or refused as by git, with the same lines.
func TestOddRequestsAsGit(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	old := g.Commit("a")
	id := g.Commit("b", old)
	side := g.Commit("side")
	g.Git("update-ref", "refs/heads/main", id.String())
	g.Git("update-ref", "refs/heads/side", side.String())
	g.Git("tag", "-a", "-m", "x", "v1", "main")
	g.Git("config", "uploadpack.allowFilter", "true")
	s := &testServer{Repo: g, repo: openRepo(t, g.Dir), format: git.SHA1}
	want, have, sideHave, none := "want "+id.String(), "have "+old.String(), "have "+side.String(),
		"have "+strings.Repeat("1", 40)
	tag := "have " + g.ID("v1").String()
	tree := g.ID("main^{tree}").String()
	for _, request := range [][]byte{
		nil, raw("."), raw(".", "."), raw(".", "done"), raw("|"), raw("/"), raw("deepen 1", "."),
		raw("shallow "+old.String(), "deepen 1", "."), raw("done"), raw("have "+old.String(), "."), raw("hello", "."),
		raw(":0004", "."),
		raw(":0003"), raw(":000"), raw(":zzzz"), raw(want), raw(want, ":00"), raw(want, "."), raw(want, ".", "."),
		raw(want, ".", ":00"),
		raw(want, ".", ":zzzz"), raw(want, ".", ":0003"), raw(want, ".", ":0032have"), raw(want, ".", "|"),
		raw(want, "|", "/"),
		raw(want, "|", "done"), raw(want, "/", "done\n"), raw(want, ".", "done now"), raw(want, ".", "Done"),
		raw(want, ".", "done\x00x"), raw(want, ".", "", "done"), raw(want+"\n", ".", "done"),
		raw(want+"\n\n", ".", "done"),
		raw(want+"ofs-delta", ".", "done"), raw(want+"zz", ".", "done"), raw(want+"\x00x", ".", "done"),
		raw("want", ".", "done"),
		raw("want ", ".", "done"), raw("want  "+id.String(), ".", "done"), raw("Want "+id.String(), ".", "done"),
		raw("want "+id.String()[:39], ".", "done"), raw("want "+strings.Repeat("1", 40), ".", "done"),
		raw("want "+strings.Repeat("0", 40), ".", "done"), raw("want "+id.String()+id.String()[:24], ".", "done"),
		raw("want "+tree, ".", "done"), raw("want "+old.String(), ".", "done"), raw(want, want, ".", "done"),
		raw(want, "want "+side.String(), ".", "done"), raw(want, ".", have, ".", "done"),
		raw(want, ".", have, have, "done"),
		raw(want, ".", have+" x", "done"), raw(want, ".", have+"\n", "done"),
		raw(want, ".", "have "+old.String()[:39], "done"),
		raw(want, ".", "have", "done"), raw(want, ".", have, "shallow "+old.String(), "done"),
		raw(want, ".", "have "+tree, "done"),
		raw(want, ".", "have "+tree, "have "+tree, sideHave, "done"), raw(want, ".", tag, "done"),
		raw(want, ".", sideHave, have, "done"), raw(want, ".", none, have, none, sideHave, "done"),
		raw(want, ".", "have "+id.String(), have, none, "."), raw(want, ".", have, "have "+id.String(), have, "."),
		raw(want, ".", have),
		raw(want, ".", none), raw(want, ".", have, "|"), raw(want, ".", have, "/"),
		raw(want+" multi_ack", ".", none, have, none, tag, "."), raw(want+" multi_ack=x", ".", have, "."),
		raw(want+" multi_ack_x", ".", have, "."), raw(want+" multi_ack_detailed", ".", have, tag, "."),
		raw(want+" multi_ack_detailed no-done", ".", have, "."), raw(want+" multi_ack no-done", ".", have, "."),
		raw(want+" no-done", ".", have, "."), raw(want+" multi_ack_detailed no-done", ".", none, "."),
		raw(want+" multi_ack_detailed no-done", ".", have, none, "."),
		raw(want+" multi_ack_detailed no-done", ".", have, none),
		raw(want+" multi_ack_detailed", ".", have, none, "done"),
		raw(want+" multi_ack_detailed", ".", sideHave, none, "done"),
		raw(want, want+" multi_ack_detailed", ".", have, "."),
		raw(want+" multi_ack_detailed", want+" multi_ack", ".", have, "."),
		raw(want+" multi_ack", want+" thin-pack", ".", have, "."), raw(want, "filter blob:none", ".", "done"),
		raw(want+" filter", "filter blob:none", ".", "done"), raw("filter blob:none", want+" filter", ".", "done"),
		raw(want+" filter", "filter blob:none", "filter tree:1", ".", "done"),
		raw(want+" filter", "filter ", ".", "done"),
		raw(want+" filter", "filter", ".", "done"), raw(want+" filter", "filter x", ".", "done"),
		raw(want, "deepen 0", ".", "done"),
		raw(want, "deepen -1", ".", "done"), raw(want, "deepen 1x", ".", "done"), raw(want, "deepen  1", ".", "done"),
		raw(want, "deepen", ".", "done"), raw(want, "deepen ", ".", "done"), raw(want, "deepen 0x1", ".", "done"),
		raw(want, "deepen 1", ".", "done"), raw(want, "deepen 1", "."), raw(want, "deepen 1", "deepen 2", ".", "done"),
		raw(want, "deepen 1", "deepen-since 1", ".", "done"), raw(want, "deepen-since x", ".", "done"),
		raw(want, "deepen-since 1", ".", "done"), raw(want, "deepen-not side", ".", "done"),
		raw(want, "deepen-not nothing", ".", "done"), raw(want, "deepen-not ", ".", "done"),
		raw(want, "shallow "+id.String(), ".", "done"), raw(want, "shallow "+id.String()+"x", ".", "done"),
		raw(want, "shallow x", ".", "done"), raw(want, "shallow "+tree, ".", "done"),
		raw(want, "shallow "+strings.Repeat("1", 40), ".", "done"),
		raw(want, "shallow "+strings.Repeat("1", 40), "deepen 1", "."),
		raw("shallow "+id.String(), want, "deepen 2147483647", ".", "done"),
		raw("shallow "+old.String(), want, "deepen 1", ".", have, "done"),
		raw(want+" deepen-relative", "deepen 1", ".", "done"),
		raw("ERR x", "."), raw(want, ".", "ERR x"), raw(want+" agent=x session-id=y object-format=sha256", ".", "done"),
	} {
		for _, session := range olderSessions {
			answer, failed, stderr := s.oracleAs(t, session, request)
			source := &scripted{size: -1, send: func(packsource.Output) error { return nil }}
			response, _, err := s.serveAs(New(source, Options{Wants: WantsAny}), session, request)
			if failed != (err != nil) {
				t.Errorf("%+v, %q: %v; git: %q, %s", session, request, err, answer, stderr)
				continue
			}
			if kind := fault.KindOf(err); err != nil && kind != fault.Invalid && kind != fault.NotFound &&
				kind != fault.Denied {
				t.Errorf("%+v, %q: %v", session, request, err)
			}
			if err != nil {
				continue
			}
			lines, _, _ := bytes.Cut(answer, []byte("PACK"))
			if got := response.Bytes(); !bytes.Equal(got, lines) {
				t.Errorf("%+v, %q: we say\n%q\ngit\n%q", session, request, got, lines)
			}
		}
	}
}
