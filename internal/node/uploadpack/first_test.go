package uploadpack

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestWantedObjectsPassFilters wants blobs and trees, by ID and by tag, in orders that have the installed git meet them
// inside others first.
func TestWantedObjectsPassFilters(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	blob := git.MustParseObjectID(g.GitIn("content", "hash-object", "-w", "--stdin"))
	// A chain of trees, each inside the next, so that some inner one has a greater ID than one that it lies in.
	chain := []git.ObjectID{git.MustParseObjectID(g.GitIn(fmt.Sprintf("100644 blob %s\tfile\n", blob), "mktree"))}
	for i := range 6 {
		entry := fmt.Sprintf("040000 tree %s\tdir%d\n", chain[i], i)
		chain = append(chain, git.MustParseObjectID(g.GitIn(entry, "mktree")))
	}
	if slices.IsSortedFunc(chain, git.ObjectID.Compare) {
		t.Fatal("the trees are in the order of their IDs")
	}
	commit := git.MustParseObjectID(g.Git("commit-tree", "-m", "x", chain[len(chain)-1].String()))
	g.Git("update-ref", "refs/heads/main", commit.String())
	g.Git("tag", "-a", "-m", "x", "blob", blob.String())
	// A tag of a tree that comes before that of the blob.
	for i := 0; ; i++ {
		g.Git("tag", "-f", "-a", "-m", fmt.Sprint(i), "tree", chain[0].String())
		if g.ID("tree").Compare(g.ID("blob")) < 0 {
			break
		}
	}
	s := &testServer{Repo: g, repo: openRepo(t, filepath.Clean(g.Dir)), format: git.SHA1}
	var servers []*Server
	for _, source := range sources {
		servers = append(servers, New(source.make(t), Options{Wants: WantsAny}))
	}
	ids := func(list ...git.ObjectID) (lines []string) {
		for _, id := range list {
			lines = append(lines, "want "+id.String())
		}
		return lines
	}
	for _, filter := range []string{"blob:none", "blob:limit=1", "tree:0", "tree:1", "object:type=commit",
		"combine:blob:none+tree:1"} {
		for _, wants := range [][]git.ObjectID{
			{commit, g.ID("blob"), g.ID("tree")}, {commit, blob}, append([]git.ObjectID{blob}, chain...),
			{g.ID("tree"), g.ID("blob"), chain[2], chain[4]},
		} {
			q := &testRequest{command: "fetch", args: append(ids(wants...), "filter "+filter, "done")}
			for i, server := range servers {
				p := s.pack(t, server, q)
				for _, id := range wants {
					for _, id := range []git.ObjectID{id, g.ID(id.String() + "^{}")} {
						if _, in := p.Objects[id]; !in {
							t.Errorf("%s, filter %s, wants %v: %s is not in the pack", sources[i].name, filter, wants, id)
						}
					}
				}
			}
		}
	}
}

// pack asks us for a pack.
func (s *testServer) pack(t testing.TB, server *Server, q *testRequest) *gittest.Pack {
	t.Helper()
	response, _, err := s.serve(server, q.bytes(git.SHA1))
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseAnswer(response.Bytes(), false)
	if err != nil {
		t.Fatal(err)
	}
	p, err := gittest.ReadPack(got.pack, s.format, s.readObject)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestFirstIsCanonical: the order of the wants makes no difference to the key.
func TestFirstIsCanonical(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	blob := git.MustParseObjectID(g.GitIn("content", "hash-object", "-w", "--stdin"))
	other := git.MustParseObjectID(g.GitIn("other", "hash-object", "-w", "--stdin"))
	tree := git.MustParseObjectID(g.GitIn(fmt.Sprintf("100644 blob %s\tfile\n", blob), "mktree"))
	r := openRepo(t, g.Dir)
	a, b, c := "want "+blob.String(), "want "+other.String(), "want "+tree.String()
	one := specOf(t, r, a, b, c, "filter tree:0", "done")
	two := specOf(t, r, c, b, a, "filter tree:0", "done")
	if one.Key() != two.Key() || len(one.First) != 3 || one.First[2] != tree {
		t.Errorf("%v, %v", one.First, two.First)
	}
	if plain := specOf(t, r, a, b, c, "done"); plain.First != nil {
		t.Errorf("without a filter: %v", plain.First)
	}
}

// TestOrderIsBounded wants the ends of a chain of huge trees, which are not all held in memory to find their order.
func TestOrderIsBounded(t *testing.T) {
	t.Parallel()
	g := gittest.Init(t)
	blob := git.MustParseObjectID(g.GitIn("content", "hash-object", "-w", "--stdin"))
	tree := func(entries string) git.ObjectID {
		return git.MustParseObjectID(g.GitIn(entries, "hash-object", "-w", "-t", "tree", "--literally", "--stdin"))
	}
	inner := tree("100644 file\x00" + string(blob.Raw()))
	name := strings.Repeat("x", 4<<20)
	outer := inner
	for range maxOrderedBytes/len(name) + 1 {
		outer = tree("40000 dir\x00" + string(outer.Raw()) + "100644 " + name + "\x00" + string(blob.Raw()))
	}
	for i := 0; outer.Compare(inner) > 0; i++ {
		outer = tree(fmt.Sprintf("40000 dir%d\x00%s", i, outer.Raw()))
	}
	want := []git.ObjectID{outer, inner}
	spec := specOf(t, openRepo(t, g.Dir), "want "+outer.String(), "want "+inner.String(), "filter tree:0", "done")
	if !slices.Equal(spec.First, want) {
		t.Errorf("%v, want %v as sorted", spec.First, want)
	}
}
