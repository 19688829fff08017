package gittest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// Shape describes the repository that Random builds.
type Shape struct {
	Commits  int     // approximate number of commits. Zero means 40
	Branches int     // number of branches. Zero means 4
	Merge    float64 // share of commits that are merges
	Skew     bool    // some commits are older than their parents
	Format   string  // "sha1" (the default) or "sha256"
}

// Random builds a bare repository from a seed. It has a random history with merges and several roots, nested trees, and
// odd names of files, branches and tags. It has light and annotated tags, and tags of tags, trees and blobs. The same
// seed and shape give the same repository. The repository has one pack, no commit-graph, and loose refs.
func Random(t testing.TB, seed uint64, shape Shape) *Repo {
	t.Helper()
	if shape.Commits == 0 {
		shape.Commits = 40
	}
	if shape.Branches == 0 {
		shape.Branches = 4
	}
	if shape.Format == "" {
		shape.Format = "sha1"
	}
	r := Init(t, "--object-format="+shape.Format)
	type random struct {
		seed  uint64
		shape Shape
	}
	fromTemplate(t, random{seed, shape}, r.Dir, func(string) { r.fill(seed, shape) })
	return r
}

// fill makes the random history in an empty repository.
func (r *Repo) fill(seed uint64, shape Shape) {
	r.t.Helper()
	g := &generator{rnd: rand.New(rand.NewPCG(seed, 0)), shape: shape}
	g.history()
	r.GitIn(g.out.String(), "-c", "fastimport.unpackLimit=0", "fast-import", "--quiet", "--force")
	r.tagOddObjects()
}

var (
	fileNames = []string{"README", "a.txt", "b b.txt", "été", "-dash", "dir/x", "dir/y", "dir/sub/z", "dir.d/w",
		"x\"quote", "deep/er/and/deeper/f"}
	branchNames = []string{"main", "feature/a", "feature/b-ü", "-dash", "release/1.0", "x@y", "topic+1", "UPPER"}
	tagNames    = []string{"v1", "v1.0", "odd/tag", "rel-é", "t@g"}
)

func branchName(i int) string {
	if i < len(branchNames) {
		return branchNames[i]
	}
	return fmt.Sprintf("extra/%d", i)
}

type generator struct {
	rnd   *rand.Rand
	shape Shape
	out   strings.Builder
	mark  int
	tips  []int // mark of each branch's tip; 0: none yet
	date  int
}

func (g *generator) history() {
	g.tips = make([]int, g.shape.Branches)
	g.date = 1_600_000_000
	for i := range g.shape.Commits {
		b := 0
		if i > 0 {
			b = g.rnd.IntN(g.shape.Branches)
		}
		g.commit(b)
	}
	for i, name := range tagNames {
		var live []int
		for _, tip := range g.tips {
			if tip != 0 {
				live = append(live, tip)
			}
		}
		target := 1 + g.rnd.IntN(g.mark)
		if g.rnd.IntN(2) == 0 {
			target = live[g.rnd.IntN(len(live))]
		}
		if i%3 == 2 {
			fmt.Fprintf(&g.out, "reset refs/tags/%s\nfrom :%d\n\n", name, target)
			continue
		}
		fmt.Fprintf(&g.out, "tag %s\nfrom :%d\ntagger T <t@example.com> %d +0000\ndata 4\ntag\n\n", name, target, g.date)
	}
}

func (g *generator) commit(branch int) {
	g.mark++
	g.date += g.rnd.IntN(1000)
	date := g.date
	if g.shape.Skew && g.rnd.IntN(4) == 0 {
		date -= g.rnd.IntN(20000)
	}
	message := fmt.Sprintf("commit %d\n", g.mark)
	fmt.Fprintf(&g.out, "commit refs/heads/%s\nmark :%d\ncommitter C <c@example.com> %d +0100\ndata %d\n%s",
		branchName(branch), g.mark, date, len(message), message)
	parent := g.tips[branch]
	if parent == 0 && g.mark > 1 && g.rnd.IntN(8) != 0 { // else: one more root
		parent = 1 + g.rnd.IntN(g.mark-1)
	}
	if parent != 0 {
		fmt.Fprintf(&g.out, "from :%d\n", parent)
		if g.rnd.Float64() < g.shape.Merge {
			if other := 1 + g.rnd.IntN(g.mark-1); other != parent {
				fmt.Fprintf(&g.out, "merge :%d\n", other)
			}
		}
	}
	g.files()
	g.tips[branch] = g.mark
}

// files changes up to three files in the current commit.
func (g *generator) files() {
	for range 1 + g.rnd.IntN(3) {
		content := strings.Repeat(fmt.Sprintf("line %d\n", g.rnd.IntN(50)), 1+g.rnd.IntN(40))
		name := fileNames[g.rnd.IntN(len(fileNames))]
		fmt.Fprintf(&g.out, "M 100644 inline %s\ndata %d\n%s\n", quotePath(name), len(content), content)
	}
	g.out.WriteByte('\n')
}

// Push makes random commits on top of a revision, and sets a branch to the last one. The objects are loose.
func (r *Repo) Push(rnd *rand.Rand, branch, from string, commits int) {
	r.t.Helper()
	g := &generator{rnd: rnd}
	for i := range commits {
		text := fmt.Sprintf("push %d\n", rnd.Int64())
		fmt.Fprintf(&g.out, "commit refs/heads/%s\ncommitter C <c@example.com> %d +0100\ndata %d\n%s", branch,
			1_700_000_000+rnd.IntN(1_000_000), len(text), text)
		if i == 0 {
			fmt.Fprintf(&g.out, "from %s\n", r.ID(from))
		}
		g.files()
	}
	r.GitIn(g.out.String(), "-c", "fastimport.unpackLimit=100000", "fast-import", "--quiet", "--force")
}

func quotePath(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `\"`) + `"`
}

// tagOddObjects adds tags that fast-import cannot make: of a tag, of a tree, of a blob.
func (r *Repo) tagOddObjects() {
	r.t.Helper()
	r.Git("tag", "-a", "-m", "tag of a tag", "nested", "v1")
	r.Git("tag", "-a", "-m", "tag of a tree", "tree", "HEAD^{tree}")
	blob := r.GitIn("a blob that only a tag holds\n", "hash-object", "-w", "--stdin")
	r.Git("tag", "light-blob", blob)
	r.Git("tag", "-a", "-m", "tag of a blob", "blob", blob)
}
