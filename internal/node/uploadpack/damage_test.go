package uploadpack

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

func looseFile(g *gittest.Repo, id git.ObjectID) string {
	hex := id.String()
	return filepath.Join(g.Dir, "objects", hex[:2], hex[2:])
}

// One damaged or missing tag costs no other ref, and counts again once it is mended.
func TestDamagedTags(t *testing.T) {
	t.Parallel()
	g, main, _ := answersRepo(t, filepath.Join(t.TempDir(), "r.git"))
	garbage := g.GitIn("no tag at all\n", "hash-object", "-w", "--literally", "-t", "tag", "--stdin")
	g.Git("tag", "-a", "-m", "x", "mangled", "main")
	g.Git("tag", "-a", "-m", "x", "missing", "main")
	mangled, missing := looseFile(g, g.ID("mangled")), looseFile(g, g.ID("missing"))
	whole := make(map[string][]byte)
	for _, path := range []string{mangled, missing} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		whole[path] = data
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{mangled: "damaged",
		filepath.Join(g.Dir, "refs/tags/garbage"): garbage + "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &testServer{Repo: g, repo: openRepo(t, g.Dir)}
	source := &asked{}
	server := New(source, Options{})
	comeAlong := func() (ids []git.ObjectID) {
		_, _, err := s.serve(server, (&testRequest{command: "fetch",
			args: []string{"want " + main, "include-tag", "done"}}).bytes(git.SHA1))
		if source.spec == nil || !fault.Is(err, fault.Exhausted) {
			t.Fatal(err)
		}
		for _, tag := range source.spec.Tags {
			ids = append(ids, tag.ID)
		}
		return ids
	}
	list := func() string {
		got, _, err := s.serve(server, (&testRequest{command: "ls-refs", args: []string{"peel"}}).bytes(git.SHA1))
		if err != nil {
			t.Fatal(err)
		}
		return got.String()
	}
	lines := list()
	for _, name := range []string{"garbage", "mangled", "missing", "v1 peeled:" + main} {
		if !strings.Contains(lines, " refs/tags/"+name+"\n") {
			t.Errorf("%s is not listed in %q", name, lines)
		}
	}
	if ids := comeAlong(); !slices.Equal(ids, []git.ObjectID{g.ID("v1")}) {
		t.Errorf("tags that may come along: %v", ids)
	}
	for path, data := range whole {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lines = list()
	for _, name := range []string{"mangled", "missing"} {
		if !strings.Contains(lines, " refs/tags/"+name+" peeled:"+main+"\n") {
			t.Errorf("%s is mended and not peeled in %q", name, lines)
		}
	}
	if ids := comeAlong(); !slices.Equal(ids, protocol.SortIDs([]git.ObjectID{g.ID("v1"), g.ID("mangled"),
		g.ID("missing")})) {
		t.Errorf("tags that may come along once they are mended: %v", ids)
	}
}

// A ref to an object that is not there can be listed but not wanted; no pack is begun.
func TestWantRefToNothing(t *testing.T) {
	t.Parallel()
	g, _, _ := answersRepo(t, filepath.Join(t.TempDir(), "r.git"))
	lost := g.Commit("lost")
	g.Git("update-ref", "refs/heads/lost", lost.String())
	if err := os.Remove(looseFile(g, lost)); err != nil {
		t.Fatal(err)
	}
	s := &testServer{repo: openRepo(t, g.Dir)}
	for _, rule := range []Wants{WantsAny, WantsReachable, WantsTip} {
		source := &asked{}
		q := &testRequest{command: "fetch", args: []string{"want-ref refs/heads/main", "want-ref refs/heads/lost",
			"done"}}
		_, _, err := s.serve(New(source, Options{Wants: rule}), q.bytes(git.SHA1))
		if !fault.Is(err, fault.NotFound) || fault.Message(err) != "upload-pack: not our ref "+lost.String() ||
			source.spec != nil {
			t.Errorf("wants = %s: %v, %v", rule, err, source.spec)
		}
	}
}

// A fetch that fails because of the shallow file is reported to the client in the protocol.
func TestDamagedShallowFile(t *testing.T) {
	t.Parallel()
	g, main, _ := answersRepo(t, filepath.Join(t.TempDir(), "r.git"))
	if err := os.WriteFile(filepath.Join(g.Dir, "shallow"), []byte("no ID\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &testServer{repo: openRepo(t, g.Dir)}
	q := &testRequest{command: "fetch", args: []string{"want " + main, "done"}}
	v0 := pktline.AppendLine(pktline.AppendFlush(pktline.AppendLine(nil,
		"want "+main+" side-band-64k agent=x")), "done")
	for version, request := range map[protocol.Version][]byte{protocol.V0: v0, protocol.V2: q.bytes(git.SHA1)} {
		session := node.Session{Version: version, Stateless: true}
		outcome, err := New(&asked{}, Options{}).Serve(t.Context(), s.repo, session,
			pktline.NewReader(bytes.NewReader(request)), newRecorder())
		if !fault.Is(err, fault.Corrupt) || !strings.Contains(fault.Message(err), "shallow file is damaged") ||
			outcome.Command != protocol.CommandFetch {
			t.Errorf("version %s: %v of the command %q", version, err, outcome.Command)
		}
	}
}

// A long list of IDs is given up soon after the client is gone.
func TestExistenceChecksEnd(t *testing.T) {
	t.Parallel()
	g, main, _ := answersRepo(t, filepath.Join(t.TempDir(), "r.git"))
	f := &fetch{repo: openRepo(t, g.Dir)}
	ids := make([]git.ObjectID, 10*lookupsPerCheck)
	for i := range ids {
		ids[i] = git.MustParseObjectID(main)
	}
	ctx, cancel := context.WithCancel(t.Context())
	looked := 0
	err := f.has(ctx, ids, func(_ git.ObjectID, ok bool) error {
		if looked++; looked == 2*lookupsPerCheck-1 {
			cancel()
		}
		if !ok {
			t.Error("main is not there")
		}
		return nil
	})
	if !fault.Is(err, fault.Cancelled) || looked != 2*lookupsPerCheck {
		t.Errorf("%v after %d", err, looked)
	}
}
