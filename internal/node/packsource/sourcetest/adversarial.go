package sourcetest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// hostile is a repository that could mislead a Source.
type hostile struct {
	name  string
	build func(t testing.TB, r *gittest.Repo)
}

// adversarial lists the repositories. build gets an empty one and sets main.
var adversarial = []hostile{
	{"delta chain of 50", func(t testing.TB, r *gittest.Repo) { deltaChain(r, 50) }},
	{"delta chain of 4,000", func(t testing.TB, r *gittest.Repo) { deltaChain(r, 4000) }},
	{"thin packs completed on arrival", buildPushes},
	{"cycles of deltas between packs", buildCycles},
	{"different deltas of the same object", buildVersions},
	{"two packs with the same content", buildTwins},
	{"loose copies of packed objects", buildLooseCopies},
	{"offsets of 64 bits", buildLongOffsets},
	{"base after its delta", buildLateBase},
	{"similar object whose base is later", buildSimilarLoop},
	{"object twice in a pack", buildDuplicate},
	{"wanted object in a cruft pack", buildCruft},
	{"layers of the multi-pack-index", buildLayers},
	{"pack outside of the multi-pack-index", buildOutsideIndex},
	{"stale commit-graph", buildStaleGraph},
	{"cycle of alternates", buildAlternateCycle},
	{"shared object directory", buildShared},
	{"empty tree", buildEmptyTree},
	{"submodules and links", buildModes},
	{"tags of tags of blobs", buildTags},
	{"merge of 60 parents", buildOctopus},
	{"sizes at boundaries", buildSizes},
	{"deep directories", func(t testing.TB, r *gittest.Repo) { deepTree(r, 400) }},
	{"many refs", func(t testing.TB, r *gittest.Repo) {
		count := 20_000
		if testing.Short() {
			count = 1_000
		}
		manyRefs(t, r, count)
	}},
}

// testAdversarial makes packs of hostile repositories.
func testAdversarial(t *testing.T, newSource Make) {
	for i, h := range adversarial {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			formats := []string{"sha1", "sha256"}
			if testing.Short() {
				formats = formats[i%2 : i%2+1]
			}
			for _, format := range formats {
				r := gittest.Init(t, "--object-format="+format)
				h.build(t, r)
				s := newSource(t, "")
				for _, shape := range plainShapes(r) {
					FetchAndCheck(t, s, r, shape.spec)
					if t.Failed() {
						t.Fatalf("%s, %s: %.2000s", format, shape.name, describe(shape.spec))
					}
				}
			}
		})
	}
}

// plainShapes lists requests that any repository with a branch main allows.
func plainShapes(r *gittest.Repo) []shape {
	repo := Repository(r)
	all := sorted(ids(r.Git("for-each-ref", "--format=%(objectname)")))
	main := []git.ObjectID{r.ID("main")}
	g := generator{r: r, parents: make(map[git.ObjectID][]git.ObjectID)}
	parents := ids(strings.ReplaceAll(r.Git("log", "-1", "--format=%P", "main"), " ", "\n"))
	g.parents[main[0]] = parents
	full := packsource.Spec{Repo: repo, Wants: all, Offset: true}
	plain := full
	plain.Offset = false
	shallow := packsource.Spec{Repo: repo, Wants: main, Shallow: g.boundary(main, 1), Offset: true}
	blobless := full
	blobless.Filter = "blob:none"
	shapes := []shape{{"all refs", &full}, {"all refs without offsets", &plain}, {"depth 1", &shallow}}
	if len(all) < 100 { // First is made with a walk
		blobless.First = g.first(all)
		shapes = append(shapes, shape{"blob:none", &blobless})
	}
	if len(parents) > 0 {
		update := packsource.Spec{Repo: repo, Wants: main, Haves: parents[:1], Thin: true, Offset: true}
		whole := update
		whole.Thin, whole.Offset = false, false
		shapes = append(shapes, shape{"update", &update}, shape{"update that is not thin", &whole})
	}
	return shapes
}

// deltaChain makes one tree with versions of a file, each of which is a delta of the version before.
func deltaChain(r *gittest.Repo, depth int) {
	rnd := rand.New(rand.NewPCG(1, 1))
	text := make([]byte, 400)
	for i := range text {
		text[i] = byte('a' + rnd.IntN(26))
	}
	var in, files strings.Builder
	for i := range depth + 1 {
		text[rnd.IntN(len(text))] = byte('A' + rnd.IntN(26))
		fmt.Fprintf(&in, "blob\nmark :%d\ndata %d\n%s %d\n", i+1, len(text)+len(fmt.Sprintf(" %d", i)), text, i)
		fmt.Fprintf(&files, "M 100644 :%d %d/%d\n", i+1, i%20, i)
	}
	for _, part := range []string{files.String(), "M 100644 :1 more\n"} {
		in.WriteString("commit refs/heads/main\ncommitter C <c@example.com> 1700000000 +0000\ndata 4\ntext\n" + part)
	}
	r.GitIn(in.String(), "-c", "fastimport.unpackLimit=0", "-c", "pack.depth=4095", "fast-import", "--quiet",
		fmt.Sprintf("--depth=%d", depth))
	r.Git("tag", "last", gittest.HashObject(r.Format(), git.Blob, fmt.Appendf(text, " %d", depth)).String())
}

// buildPushes receives thin packs: git completes each with copies of the bases, so that objects are in several packs.
func buildPushes(t testing.TB, r *gittest.Repo) {
	other := gittest.Random(t, 3, gittest.Shape{Format: r.Format().String()})
	commits := strings.Fields(other.Git("rev-list", "--topo-order", "--reverse", "main"))
	for i, commit := range commits {
		revisions := commit + "\n"
		if i > 0 {
			revisions += "^" + commits[i-1] + "\n"
		}
		pack := other.GitIn(revisions, "pack-objects", "-q", "--revs", "--thin", "--stdout", "--delta-base-offset") + "\n"
		if len(pack) > packHeader+r.ID(commit).Format().Size()+1 {
			r.GitIn(strings.TrimSuffix(pack, "\n"), "index-pack", "--stdin", "--fix-thin")
		}
	}
	r.Git("update-ref", "refs/heads/main", commits[len(commits)-1])
}

// texts are versions of a file that are good deltas of one another.
func texts(n int) (list []string) {
	for i := range n {
		list = append(list, strings.Repeat("a common line\n", 100)+fmt.Sprintf("version %d\n", i))
	}
	return list
}

// commitFiles makes main a commit with these files.
func commitFiles(r *gittest.Repo, files ...git.ObjectID) {
	var entries strings.Builder
	for i, id := range files {
		fmt.Fprintf(&entries, "100644 blob %v\tfile%d\n", id, i)
	}
	root := r.Commit("root")
	r.Git("update-ref", "refs/heads/main", r.CommitTree("files", entries.String(), root).String())
}

// buildCycles has packs in which each of three objects is a delta of the next.
func buildCycles(t testing.TB, r *gittest.Repo) {
	format := r.Format()
	var all []git.ObjectID
	for _, n := range []int{2, 3} {
		versions := texts(n * 10)[(n-2)*10:]
		versions = versions[:n]
		for i, text := range versions {
			base := versions[(i+1)%n]
			id := gittest.HashObject(format, git.Blob, []byte(base))
			all = append(all, id)
			w := gittest.NewPackWriter(format)
			if i%2 == 0 {
				w.AddOffsetDelta(w.Add(git.Blob, []byte(base)), []byte(base), []byte(text))
			} else {
				w.AddRefDelta(id, []byte(base), []byte(text))
				w.Add(git.Blob, []byte(base))
			}
			r.GitIn(string(w.Bytes()), "index-pack", "--stdin")
		}
	}
	commitFiles(r, all...)
}

// buildVersions has three packs with all objects, with other deltas in each.
func buildVersions(t testing.TB, r *gittest.Repo) {
	other := gittest.Random(t, 4, gittest.Shape{Format: r.Format().String()})
	r.Git("fetch", "-q", other.Dir, "+refs/*:refs/*")
	for _, args := range [][]string{{"--window=50"}, {"--window=2", "--depth=1"}, {"--window=0"}} {
		args = append([]string{"pack-objects", "-q", "--all", "--no-reuse-delta", filepath.Join(r.Dir, "objects/pack/pack")},
			args...)
		r.GitIn("", args...)
	}
}

func buildTwins(t testing.TB, r *gittest.Repo) {
	commitFiles(r, r.Blob(texts(2)[0]), r.Blob(texts(2)[1]))
	r.Git("repack", "-qad")
	paths, err := filepath.Glob(filepath.Join(r.Dir, "objects/pack/pack-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err == nil {
			name := "pack-" + strings.Repeat("0", r.Format().HexSize()) + filepath.Ext(path)
			err = os.WriteFile(filepath.Join(filepath.Dir(path), name), data, 0o400)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func buildLooseCopies(t testing.TB, r *gittest.Repo) {
	other := gittest.Random(t, 5, gittest.Shape{Format: r.Format().String()})
	r.Git("-c", "fetch.unpackLimit=100000", "fetch", "-q", other.Dir, "+refs/*:refs/*")
	r.Git("repack", "-qa")
}

func buildLongOffsets(t testing.TB, r *gittest.Repo) {
	buildVersions(t, r)
	paths, err := filepath.Glob(filepath.Join(r.Dir, "objects/pack/*.pack"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		r.Git("index-pack", "--index-version=2,0x40", path)
	}
}

// buildLateBase has deltas before their bases, in a chain.
func buildLateBase(t testing.TB, r *gittest.Repo) {
	w := gittest.NewPackWriter(r.Format())
	versions := texts(6)
	var all []git.ObjectID
	for i, text := range versions {
		all = append(all, gittest.HashObject(r.Format(), git.Blob, []byte(text)))
		if i > 0 {
			prior := versions[i-1]
			w.AddRefDelta(gittest.HashObject(r.Format(), git.Blob, []byte(text)), []byte(text), []byte(prior))
		}
	}
	w.Add(git.Blob, []byte(versions[len(versions)-1]))
	r.GitIn(string(w.Bytes()), "index-pack", "--stdin")
	slices.Reverse(all)
	commitFiles(r, all...)
}

// buildSimilarLoop has a delta whose base is not needed, between two versions of a file. One is a delta of it, and the
// base of the other: a new delta between the versions could make a loop.
func buildSimilarLoop(t testing.TB, r *gittest.Repo) {
	format, versions := r.Format(), texts(4)
	id := func(i int) git.ObjectID { return gittest.HashObject(format, git.Blob, []byte(versions[i])) }
	w := gittest.NewPackWriter(format)
	unused := w.Add(git.Blob, []byte(versions[0]))
	w.AddRefDelta(id(3), []byte(versions[3]), []byte(versions[2]))
	middle := w.AddOffsetDelta(unused, []byte(versions[0]), []byte(versions[1]))
	w.AddOffsetDelta(middle, []byte(versions[1]), []byte(versions[3]))
	r.GitIn(string(w.Bytes()), "index-pack", "--stdin")
	files := func(i int) string {
		return fmt.Sprintf("100644 blob %v\tfile\n100644 blob %v\tother\n", id(i), id(3))
	}
	old := r.CommitTree("old", files(2))
	r.Git("update-ref", "refs/heads/main", r.CommitTree("new", files(1), old).String())
}

// buildDuplicate has a pack with an object twice, the second time as a delta of its own delta.
func buildDuplicate(t testing.TB, r *gittest.Repo) {
	format, versions := r.Format(), texts(2)
	w := gittest.NewPackWriter(format)
	first := w.Add(git.Blob, []byte(versions[0]))
	second := w.AddOffsetDelta(first, []byte(versions[0]), []byte(versions[1]))
	w.AddOffsetDelta(second, []byte(versions[1]), []byte(versions[0]))
	r.GitIn(string(w.Bytes()), "index-pack", "--stdin")
	commitFiles(r, gittest.HashObject(format, git.Blob, []byte(versions[0])),
		gittest.HashObject(format, git.Blob, []byte(versions[1])))
}
