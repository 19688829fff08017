package uploadpack

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// asked is a Source that makes nothing and remembers what it was asked for.
type asked struct{ spec *packsource.Spec }

func (a *asked) Open(_ context.Context, spec *packsource.Spec) (packsource.Pack, error) {
	a.spec = spec
	return nil, fault.New(fault.Exhausted, "no packs here")
}

// specOf returns the specification of the pack for a request.
func specOf(t testing.TB, r *repo.Repo, args ...string) *packsource.Spec {
	t.Helper()
	source := &asked{}
	q := testRequest{command: "fetch", args: args}
	in := pktline.NewReader(bytes.NewReader(q.bytes(r.Format)))
	_, err := New(source, Options{Wants: WantsAny}).Serve(t.Context(), r, version2, in, newRecorder())
	if source.spec == nil || !fault.Is(err, fault.Exhausted) {
		t.Fatalf("%v\n%v", err, &q)
	}
	return source.spec
}

func TestKey(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	a := g.Commit("a")
	b := g.Commit("b", a)
	c := g.Commit("c", b)
	side := g.Commit("side", a)
	g.Git("update-ref", "refs/heads/main", c.String())
	g.Git("update-ref", "refs/heads/side", side.String())
	r := openRepo(t, g.Dir)
	key := func(args ...string) packsource.Key {
		t.Helper()
		return specOf(t, r, append(args, "done")...).Key()
	}
	want, have := "want "+c.String(), "have "+a.String()
	incremental := key(want, have)

	for _, test := range []struct{ one, other []string }{
		{[]string{want, "filter blob:limit=1k"}, []string{want, "filter blob:limit=1024"}},
		{[]string{want, "filter combine:tree:2+blob:none"}, []string{want, "filter combine:blob%3anone+tree:0x2"}},
		{[]string{want, "filter combine:blob:none+blob:none"}, []string{want, "filter blob:none"}},
		{[]string{want, "filter sparse:oid=main:file"}, []string{want, "filter sparse:oid=" +
			g.ID("main:file").String()}},
		{[]string{want, "want " + side.String()}, []string{"want " + side.String(), want, want}},
		{[]string{want, "have " + b.String(), "have " + side.String()},
			[]string{want, "have " + side.String(), "have " + b.String()}},
		{[]string{want, "have " + b.String(), have}, []string{want, "have " + b.String()}},
		{[]string{want}, []string{"want-ref refs/heads/main"}},
		{[]string{want}, []string{want, "no-progress", "sideband-all", "wait-for-done"}},
		{[]string{want}, []string{want, "thin-pack"}}, // nothing to be thin against
		{[]string{want}, []string{want, "have " + strings.Repeat("1", 40)}},
		{[]string{want}, []string{want, "shallow " + strings.Repeat("1", 40)}},
		{[]string{want}, []string{want, "include-tag"}},
		// Boundaries that the walk does not meet: of earlier fetches with --depth.
		{[]string{want, "deepen 1"}, []string{want, "deepen 1", "shallow " + a.String()}},
		{[]string{want, "deepen 1", "have " + b.String(), "shallow " + b.String()},
			[]string{want, "deepen 1", "have " + b.String(), "shallow " + b.String(), "shallow " + side.String()}},
	} {
		if key(test.one...) != key(test.other...) {
			t.Errorf("different keys:\n%q\n%q", test.one, test.other)
		}
	}
	seen := map[packsource.Key][]string{}
	for _, args := range [][]string{
		{want}, {want, have}, {want, have, "thin-pack"}, {want, "ofs-delta"}, {want, "have " + b.String()},
		{"want " + b.String()},
		{want, "deepen 1"}, {want, "deepen 2"}, {want, "filter blob:none"}, {want, "filter tree:0"},
		{want, "filter combine:blob:none+tree:1"},
		{want, have, "shallow " + b.String()}, {want, have, "shallow " + a.String()},
		{want, "have " + b.String(), "shallow " + b.String()},
		{want, "have " + b.String(), have, "shallow " + b.String()},
	} {
		k := key(args...)
		if other, both := seen[k]; both {
			t.Errorf("one key:\n%q\n%q", args, other)
		}
		seen[k] = args
	}

	tagged := key(want, have, "include-tag")
	if tagged != incremental {
		t.Error("include-tag changes the key where there is no tag")
	}
	g.Git("tag", "-a", "-m", "x", "unrelated", side.String())
	g.Git("tag", "-a", "-m", "x", "had", a.String())
	g.Git("tag", "light", c.String())
	g.Git("tag", "-a", "-m", "x", "moved", c.String())
	g.Git("update-ref", "refs/elsewhere/moved", "refs/tags/moved")
	g.Git("update-ref", "-d", "refs/tags/moved")
	if key(want, have, "include-tag") != tagged {
		t.Error("tags that do not go with the pack change its key")
	}
	g.Git("tag", "-a", "-m", "y", "sent", b.String())
	if key(want, have, "include-tag") == tagged {
		t.Error("a tag that goes with the pack does not change its key")
	}
	if key(want, have) != incremental {
		t.Error("a tag changes the key of a fetch without include-tag")
	}
	if spec := specOf(t, r, want, have, "include-tag", "done"); len(spec.Tags) != 1 ||
		spec.Tags[0].ID != g.ID("refs/tags/sent") {
		t.Errorf("tags %v", spec.Tags)
	}
}

// TestSharedPacks takes the pack that was made for one client to every other client that asks for the same key.
func TestSharedPacks(t *testing.T) {
	t.Parallel()
	for i, source := range sources {
		seed := uint64(i + 1)
		t.Run(source.name, func(t *testing.T) {
			t.Parallel()
			s := newTestServer(t, seed, "graph")
			rnd := rand.New(rand.NewPCG(seed, 3))
			server := New(source.make(t), Options{Wants: WantsAny})
			shared := 0
			for round := range 2 {
				clients := siblings(t, s, rnd, round > 0)
				for range 8 {
					shared += s.share(t, server, rnd, clients)
				}
			}
			if shared == 0 {
				t.Error("no two clients shared a pack: the test tests nothing")
			}
		})
	}
}

// siblings are clients with one boundary that differ in what else they have, ancestors of what they all have among it.
func siblings(t *testing.T, s *testServer, rnd *rand.Rand, shallow bool) []*testClient {
	t.Helper()
	first := pick(rnd, s.commits)
	ancestors := strings.Fields(s.Git("rev-list", first))
	args := []string{"fetch", "-q", "--no-tags", "file://" + s.Dir, first + ":refs/heads/first"}
	if shallow {
		args = slices.Insert(args, 1, fmt.Sprintf("--depth=%d", 1+rnd.IntN(3)))
	}
	var clients []*testClient
	for i := range 5 {
		dir := filepath.Join(t.TempDir(), "client.git")
		c := &testClient{Repo: gittest.InitAt(t, dir, "--object-format="+s.format.String()),
			name: fmt.Sprintf("sibling %d", i)}
		c.Git(args...)
		for n := range i / 2 {
			c.Git("fetch", "-q", "--no-tags", "file://"+s.Dir,
				fmt.Sprintf("%s:refs/heads/more%d", pick(rnd, ancestors), n))
		}
		c.look(t)
		clients = append(clients, c)
	}
	return clients
}

// share sends the same request for all clients. It returns the number of packs that fit more than one client.
func (s *testServer) share(t *testing.T, server *Server, rnd *rand.Rand, clients []*testClient) (shared int) {
	t.Helper()
	want := pick(rnd, s.commits)
	var deepen []string
	if chance(rnd, 30) {
		deepen = []string{fmt.Sprintf("deepen %d", 1+rnd.IntN(5))}
	}
	type made struct {
		from   *testClient
		answer *answer
	}
	packs := map[string]made{}
	for _, c := range clients {
		q := &testRequest{command: "fetch", client: c, args: append([]string{"want " + want, "thin-pack", "done"},
			deepen...)}
		for _, id := range c.tips {
			q.add("have %s", id)
		}
		for range rnd.IntN(4) {
			q.add("have %s", pick(rnd, c.commits))
		}
		for _, id := range c.shallow {
			q.add("shallow %s", id)
		}
		response, outcome, err := s.serve(server, q.bytes(s.format))
		if err != nil {
			t.Fatalf("%v\n%v", err, q)
		}
		a, err := parseAnswer(response.Bytes(), false)
		if err != nil {
			t.Fatal(err)
		}
		first, known := packs[outcome.Fetch.Key]
		if !known {
			packs[outcome.Fetch.Key] = made{c, a}
			continue
		}
		shared++
		a.pack = first.answer.pack
		if err := c.accept(t, a, []string{want}, true); err != nil {
			t.Errorf("the pack of %s in %s: %v\n%v", first.from.name, c.name, err, q)
		}
	}
	return shared
}

// TestHaveBehindBoundary has two clients with the same boundary, of which one has an ancestor of the boundary commit
// too. That is not an ancestor in its history, so it must not be dropped: the other client does not have it.
func TestHaveBehindBoundary(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	a := g.Commit("a")
	b := g.Commit("b", a)
	c := g.Commit("c", b)
	w := g.Commit("a", c) // has the content of a again
	g.Git("update-ref", "refs/heads/main", w.String())
	r := openRepo(t, g.Dir)
	args := []string{"want " + w.String(), "have " + c.String(), "shallow " + c.String(), "done"}
	poor, rich := specOf(t, r, args...), specOf(t, r, append(args, "have "+a.String())...)
	if !slices.Equal(poor.Haves, []git.ObjectID{c}) || len(rich.Haves) != 2 || poor.Key() == rich.Key() {
		t.Errorf("haves %v and %v", poor.Haves, rich.Haves)
	}
}
