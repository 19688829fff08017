package uploadpack

import (
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// FuzzServe feeds a session anything at all: every error is the client's, and what is answered can be read.
func FuzzServe(f *testing.F) {
	g := gittest.Init(f)
	a := g.Commit("a")
	b := g.Commit("b", a)
	g.Git("update-ref", "refs/heads/main", b.String())
	g.Git("tag", "-a", "-m", "x", "v1", "main")
	g.Git("tag", "-a", "-m", "x", "v2", "v1")
	g.Git("config", "uploadpack.advertiseBundleURIs", "true")
	g.Git("config", "bundle.version", "1")
	r := openRepo(f, g.Dir)
	want, old := "want "+b.String(), a.String()
	for _, q := range []testRequest{
		{command: "ls-refs", args: []string{"peel", "symrefs", "unborn", "ref-prefix refs/", "ref-prefix HEAD"}},
		{command: "fetch", args: []string{want, "have " + old, "thin-pack", "ofs-delta", "include-tag"}},
		{command: "fetch", args: []string{want, "have " + old, "shallow " + old, "deepen 1", "done"}},
		{command: "fetch", args: []string{want, "shallow " + b.String(), "deepen 1", "deepen-relative", "done"}},
		{command: "fetch", args: []string{want, "deepen-since 1", "deepen-not v1", "sideband-all", "done"}},
		{command: "fetch", args: []string{want, "filter combine:tree:1+sparse:oid=main:file", "no-progress", "done"}},
		{command: "fetch", args: []string{"want-ref refs/heads/main", "wait-for-done", "have " + g.ID("v2").String()}},
		{command: "object-info", args: []string{"size", "oid " + old, "oid " + g.ID("v1").String()}},
		{command: "bundle-uri"},
		{command: "fetch", args: []string{"want " + g.ID("v1").String(), "want " + g.ID("main:file").String(), "done"}},
	} {
		f.Add(q.bytes(r.Format))
	}
	f.Add([]byte("0000"))
	f.Add([]byte("0014command=ls-refs\n00010000"))
	pack := &scripted{size: -1, send: func(packsource.Output) error { return nil }}
	f.Fuzz(func(t *testing.T, request []byte) {
		for _, rule := range []Wants{WantsAny, WantsReachable, WantsTip} {
			server := New(pack, Options{Wants: rule})
			response, outcome, err := (&testServer{repo: r}).serve(server, request)
			if err != nil {
				if kind := fault.KindOf(err); kind != fault.Invalid && kind != fault.NotFound && kind != fault.Denied {
					t.Errorf("%v: %v", kind, err)
				}
				if response.Len() > 0 {
					t.Errorf("%d bytes, then %v", response.Len(), err)
				}
			} else if outcome.Command == "fetch" {
				_, err := parseAnswer(response.Bytes(), false)
				if _, banded := parseAnswer(response.Bytes(), true); err != nil && banded != nil {
					t.Errorf("%v; on side-bands: %v\n%q", err, banded, response.Bytes())
				}
			}
		}
	})
}

// FuzzServeV0 is FuzzServe for version 0, with state and without.
func FuzzServeV0(f *testing.F) {
	g := gittest.Init(f)
	a := g.Commit("a")
	b := g.Commit("b", a)
	g.Git("update-ref", "refs/heads/main", b.String())
	g.Git("tag", "-a", "-m", "x", "v1", "main")
	r := openRepo(f, g.Dir)
	want, old := "want "+b.String(), a.String()
	for _, q := range []testRequest{
		{args: []string{want, "have " + old, "thin-pack", "ofs-delta", "include-tag"}},
		{args: []string{want, "have " + old, "have " + g.ID("v1").String(), "shallow " + old, "deepen 1"}},
		{args: []string{want, "shallow " + b.String(), "deepen 1", "deepen-relative", "filter blob:none"}},
		{args: []string{"want " + old, "deepen-since 1", "deepen-not v1"}},
	} {
		for _, acks := range []string{"", "multi_ack", "multi_ack_detailed no-done"} {
			f.Add(q.bytesV0(&dialect{acks: acks, sideband: "side-band-64k", window: 1, end: "done"}, r.Format))
		}
	}
	f.Add([]byte("0000"))
	pack := &scripted{size: -1, send: func(packsource.Output) error { return nil }}
	f.Fuzz(func(t *testing.T, request []byte) {
		for _, rule := range []Wants{WantsAny, WantsTip} {
			for _, session := range olderSessions {
				_, _, err := (&testServer{repo: r}).serveAs(New(pack, Options{Wants: rule}), session, request)
				if kind := fault.KindOf(err); err != nil && kind != fault.Invalid && kind != fault.NotFound &&
					kind != fault.Denied {
					t.Errorf("%v: %v", kind, err)
				}
			}
		}
	})
}
