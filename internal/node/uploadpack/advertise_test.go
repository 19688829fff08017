package uploadpack

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

var olderSessions = []node.Session{
	{Version: protocol.V0, Stateless: true}, {Version: protocol.V1, Stateless: true}, {Version: protocol.V0},
	{Version: protocol.V1},
}

// advertisement is our advertisement.
func advertisement(t testing.TB, r *repo.Repo, session node.Session) (*recorder, node.Outcome) {
	t.Helper()
	response := newRecorder()
	outcome, err := New(keySource{}, Options{Agent: "packhorse/test"}).Advertise(t.Context(), r, session, "SID",
		response)
	if err != nil {
		t.Fatal(err)
	}
	if session.Stateless && response.length < 0 && response.bulk == 0 || !session.Stateless && response.length >= 0 ||
		response.length >= 0 && response.length != int64(response.Len()) {
		t.Errorf("%+v: length %d announced, %d bytes written", session, response.length, response.Len())
	}
	return response, outcome
}

// gitAdvertises is git's.
func gitAdvertises(t testing.TB, dir string, session node.Session) string {
	t.Helper()
	args := []string{"upload-pack", "--stateless-rpc", "--advertise-refs", dir}
	if !session.Stateless {
		args = []string{"upload-pack", dir}
	}
	cmd := exec.Command("git", args...)
	cmd.Env = append(gittest.Env(), "GIT_PROTOCOL=version="+session.Version.String()[1:])
	cmd.Stdin = strings.NewReader("0000")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

var serverWords = regexp.MustCompile(` (agent|session-id)=\S+`)

// normal takes the length, our name and the order of capabilities off an advertisement.
func normal(t testing.TB, text string) string {
	t.Helper()
	var b strings.Builder
	for in := pktline.NewReader(strings.NewReader(text)); ; {
		typ, line, err := in.Next()
		if err != nil {
			return b.String()
		}
		ref, features, has := strings.Cut(string(line), "\x00")
		if has {
			list := strings.Fields(serverWords.ReplaceAllString(features, ""))
			slices.Sort(list)
			ref += " " + strings.Join(list, " ") + "\n"
		}
		fmt.Fprintf(&b, "%v %q\n", typ, ref)
	}
}

// noRefs is how git says since 2.41 that there are no refs, before that with nothing. We say it where the format is not
// SHA-1.
var noRefs = regexp.MustCompile(`(?m)^data "0+ capabilities\^\{\}.*\n`)

func TestAdvertisementAsGit(t *testing.T) {
	t.Parallel()
	check := func(name, dir string) {
		t.Helper()
		r := openRepo(t, dir)
		for _, session := range olderSessions {
			response, _ := advertisement(t, r, session)
			want, got := normal(t, gitAdvertises(t, dir, session)), normal(t, response.String())
			if noRefs.MatchString(got) && r.Format == git.SHA1 {
				t.Errorf("%s, %+v: a line for no refs:\n%s", name, session, got)
			}
			if got, want = noRefs.ReplaceAllString(got, ""), noRefs.ReplaceAllString(want, ""); got != want {
				t.Errorf("%s, %+v:\n%s\ngit:\n%s", name, session, got, want)
			}
		}
	}
	for i, layout := range layouts {
		s := newTestServer(t, uint64(20+i), layout)
		check(layout, s.Dir)
	}
	empty := gittest.Init(t)
	check("empty", empty.Dir)
	check("empty, sha256", gittest.Init(t, "--object-format=sha256").Dir)
	empty.Git("symbolic-ref", "refs/heads/x", "refs/heads/y")
	check("nothing but a dangling symref", empty.Dir)

	if !isInStore(t) {
		long := gittest.Init(t)
		long.Git("update-ref", "refs/heads/main", long.Commit("x").String())
		long.Git("config", "uploadpack.allowFilter", "true")
		var boundary strings.Builder
		for i := range 5000 {
			fmt.Fprintf(&boundary, "%040x\n", 0xfffff-i)
		}
		if err := os.WriteFile(filepath.Join(long.Dir, "shallow"), []byte(boundary.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		check("a long boundary", long.Dir)
		if response, _ := advertisement(t, openRepo(t, long.Dir), olderSessions[0]); response.bulk == 0 {
			t.Error("a long boundary is held in memory as a whole")
		}
	}

	g := gittest.Init(t)
	id := g.Commit("x")
	g.Git("update-ref", "refs/heads/main", id.String())
	g.Git("update-ref", "refs/heads/other", id.String())
	for _, config := range []string{
		"", "[uploadpack]\nallowTipSHA1InWant", "[uploadpack]\nallowReachableSHA1InWant",
		"[uploadpack]\nallowAnySHA1InWant",
		"[uploadpack]\nallowFilter = false", "[transfer]\nhideRefs = refs/heads/other",
		"[transfer]\nhideRefs = refs/heads/main",
		"[transfer]\nhideRefs = refs",
	} {
		file := filepath.Join(g.Dir, "config")
		plain, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := string(plain) + "[uploadpack]\nallowFilter = true\n" + config + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		check(config, g.Dir)
		if err := os.WriteFile(file, plain, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g.Git("config", "uploadpack.allowFilter", "true")
	if !isInStore(t) {
		g.Git("update-ref", "--no-deref", "HEAD", id.String())
		check("detached", g.Dir)
	}
	g.Git("symbolic-ref", "HEAD", "refs/heads/unborn")
	check("unborn", g.Dir)
	if isInStore(t) {
		return
	}
	if err := os.WriteFile(filepath.Join(g.Dir, "refs/heads/broken"), []byte(strings.Repeat("1", 40)+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	check("a ref to nothing", g.Dir)

	// Git hides the ID of a hidden HEAD, but shows its target. We show neither.
	g.Git("symbolic-ref", "HEAD", "refs/heads/main")
	g.Git("config", "transfer.hideRefs", "HEAD")
	if response, _ := advertisement(t, openRepo(t, g.Dir), olderSessions[0]); bytes.Contains(response.Bytes(),
		[]byte("HEAD")) {
		t.Errorf("a hidden HEAD: %q", response)
	}
}

// A long advertisement goes out in pieces, among the bulk.
func TestLongAdvertisement(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	id := g.Commit("x")
	var in strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&in, "create refs/heads/a-branch-with-a-name-%d %s\n", i, id)
	}
	g.GitIn(in.String(), "update-ref", "--stdin")
	g.Git("pack-refs", "--all")
	response, outcome := advertisement(t, openRepo(t, g.Dir), olderSessions[0])
	if response.length >= 0 || response.bulk != 1 || outcome.Refs != 3000 {
		t.Errorf("length %d, bulk %d, %d refs", response.length, response.bulk, outcome.Refs)
	}
	if got, want := normal(t, response.String()), normal(t, gitAdvertises(t, g.Dir,
		olderSessions[0])); strings.ReplaceAll(got, " filter", "") != want {
		t.Errorf("%d bytes, git %d", len(got), len(want))
	}
}

// A request in version 0 asks for the very pack that the same request in version 2 asks for.
func TestOneKeyForAllVersions(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	a := g.Commit("a")
	b := g.Commit("b", a)
	c := g.Commit("c", b)
	g.Git("update-ref", "refs/heads/main", c.String())
	g.Git("tag", "-a", "-m", "x", "v1", "main")
	s := &testServer{Repo: g, repo: openRepo(t, g.Dir), format: git.SHA1}
	server := New(cached(t, newSource(t)), Options{})
	for _, args := range [][]string{
		{"want " + c.String()},
		{"want " + c.String(), "want " + g.ID("v1").String(), "ofs-delta", "no-progress"},
		{"want " + c.String(), "have " + a.String(), "thin-pack", "ofs-delta", "include-tag"},
		{"want " + c.String(), "deepen 1", "include-tag"},
		{"want " + c.String(), "shallow " + c.String(), "have " + c.String(), "deepen 1", "deepen-relative"},
		{"want " + c.String(), "filter blob:none"},
	} {
		q := &testRequest{command: "fetch", args: append(args, "done")}
		_, first, err := s.serve(server, q.bytes(git.SHA1))
		if err != nil || first.Fetch.Pack != "miss" {
			t.Fatalf("%q: %s, %v", args, first.Fetch.Pack, err)
		}
		for _, sideband := range []string{"side-band-64k", "side-band", ""} {
			for _, session := range olderSessions {
				d := &dialect{acks: "multi_ack_detailed", sideband: sideband, end: "done"}
				for range 2 { // the second time the way to the pack is remembered, too
					response, outcome, err := s.serveAs(server, session, q.bytesV0(d, git.SHA1))
					if err != nil || outcome.Fetch.Key != first.Fetch.Key || outcome.Fetch.Pack != "hit" {
						t.Errorf("%q, %q, %+v: %s, %v", args, sideband, session, outcome.Fetch.Pack, err)
					}
					if (response.length >= 0) != (session.Stateless && sideband == "side-band-64k") {
						t.Errorf("%q, %q, %+v: length %d", args, sideband, session, response.length)
					}
				}
			}
		}
	}
}

// Concurrent requests share the boundary of a shallow repository. The race detector checks the access.
func TestShallowAtTheSameTime(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	a := g.Commit("a")
	b := g.Commit("b", a)
	c := g.Commit("c", b)
	d := g.Commit("d", c)
	g.Git("update-ref", "refs/heads/main", d.String())
	path := filepath.Join(g.Dir, "shallow")
	if err := os.WriteFile(path, fmt.Appendf(nil, "%s\n%s\n%s\n", max(a.String(), b.String()),
		min(a.String(), b.String()), a), 0o600); err != nil {
		t.Fatal(err)
	}
	r := openRepo(t, g.Dir)
	want, err := r.Shallow()
	if err != nil || len(want) != 2 {
		t.Fatal(want, err)
	}
	want = slices.Clone(want)
	gittest.WaitFor(t, "the file is old enough to be cached, and the boundary is shared", func() bool {
		one, _ := r.ShallowSet()
		two, err := r.ShallowSet()
		if err != nil {
			t.Fatal(err)
		}
		return sameSet(one, two)
	})
	session := node.Session{Version: protocol.V0, Stateless: true}
	s := &testServer{repo: r}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			response, _ := advertisement(t, r, session)
			if lines := strings.Count(response.String(), "shallow "); lines != 3 { // one of them is the capability
				t.Errorf("%q", response)
			}
			for _, args := range [][]string{ // with boundaries that are more than ours, and not
				{}, {"shallow " + b.String(), "have " + b.String()}, {"shallow " + c.String(), "have " + c.String()},
				{"deepen 1"}, {"deepen 9"}, {"deepen-since 1"}, {"shallow " + d.String(), "deepen 2147483647"},
				{"shallow " + c.String(), "have " + c.String(), "deepen 1", "deepen-relative"},
			} {
				q := &testRequest{command: "fetch", args: append([]string{"want " + d.String()},
					append(args, "done")...)}
				server := New(keySource{}, Options{})
				_, two, err := s.serve(server, q.bytes(git.SHA1))
				if err != nil {
					t.Errorf("%q: %v", args, err)
				}
				_, zero, err := s.serveAs(server, session, q.bytesV0(&dialect{sideband: "side-band-64k", end: "done"},
					git.SHA1))
				if err != nil || zero.Fetch.Key != two.Fetch.Key {
					t.Errorf("%q in version 0: %v", args, err)
				}
			}
			if got, err := r.Shallow(); err != nil || !slices.Equal(got, want) {
				t.Errorf("%v (%v), want %v", got, err, want)
			}
			if got, err := r.ShallowSet(); err != nil || !slices.Equal(got.IDs(), want) {
				t.Errorf("%v (%v), want %v", got.IDs(), err, want)
			}
		})
	}
	group.Wait()
}

func sameSet(a, b graph.Commits) bool {
	return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// A client with no shallow boundary, or with a part of the server's, gets the server's list without a copy. It may have
// a million commits.
func TestShallowIsNotCopied(t *testing.T) {
	t.Parallel()
	id := func(digit string) git.ObjectID { return git.MustParseObjectID(strings.Repeat(digit, 40)) }
	ours := graph.NewCommits(id("1"), id("2"))
	f := &fetch{serverShallow: ours}
	for range 2 {
		if !sameSet(f.clientView(), ours) || !sameSet(f.grafts(), ours) {
			t.Errorf("with a boundary of %v: %v, %v", f.clientShallow.IDs(), f.clientView().IDs(), f.grafts().IDs())
		}
		f.clientShallow, f.boundary.Shallow = graph.NewCommits(id("1")), []git.ObjectID{id("2")}
	}
	for _, client := range []graph.Commits{graph.NewCommits(id("3")), graph.NewCommits(id("2"), id("3"), id("5"))} {
		f.clientShallow, f.boundary.Shallow = client, []git.ObjectID{id("4")}
		before, view := client.IDs(), f.clientView().IDs()
		want := protocol.SortIDs(append(slices.Clone(before), id("1"), id("2")))
		if !slices.Equal(view, want) {
			t.Errorf("with a boundary of %v: %v", before, view)
		}
		if got := f.grafts().IDs(); !slices.Equal(got, protocol.SortIDs(append(want, id("4")))) {
			t.Errorf("with a boundary of %v: grafts %v", before, got)
		}
		if !slices.Equal(client.IDs(), before) || len(ours) != 2 {
			t.Errorf("a set was changed: %v, %v", client.IDs(), ours.IDs())
		}
	}
}
