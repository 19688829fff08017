package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// porcelain writes the hunks of a file as git blame --porcelain does, without the lines of the file.
func (i *Inspector) porcelain(t *testing.T, r *repo.Repo, q *packhorsev1.BlameRequest) string {
	t.Helper()
	var b strings.Builder
	commits, known := map[string]*packhorsev1.BlameCommit{}, map[string]bool{}
	err := call(t, i, r, (*Call).Blame, q, func(m *packhorsev1.BlameResponse) error {
		for _, c := range m.GetCommits() {
			if commits[c.GetOid()] != nil {
				t.Errorf("%+v: commit %s is sent twice", q, c.GetOid())
			}
			commits[c.GetOid()] = c
		}
		for _, h := range m.GetHunks() {
			fmt.Fprintf(&b, "%s %d %d %d", h.GetCommit(), h.GetOriginalLine(), h.GetFirstLine(), h.GetLines())
			if c := commits[h.GetCommit()]; !known[h.GetCommit()] {
				known[h.GetCommit()] = true
				fmt.Fprintf(&b, " %q %s %d %d %s %s %q", c.GetAuthor().GetName(), c.GetAuthor().GetEmail(),
					c.GetAuthor().GetSeconds(), c.GetAuthor().GetOffsetMinutes(), c.GetCommitter().GetName(),
					c.GetCommitter().GetEmail(), c.GetSummary())
			}
			fmt.Fprintf(&b, " %q %t %s %q\n", h.GetOriginalPath(), h.GetBoundary(), h.GetPreviousCommit(),
				h.GetPreviousPath())
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	return b.String()
}

// gitPorcelain is the same by git, in the form in which each line has all facts.
func gitPorcelain(t *testing.T, g *gittest.Repo, args ...string) string {
	t.Helper()
	var b strings.Builder
	var first []string
	facts, seen := map[string]string{}, map[string]bool{}
	out := gitOutput(t, g, append([]string{"blame", "--line-porcelain"}, args...)...)
	for line := range strings.SplitSeq(strings.TrimSuffix(out, "\n"), "\n") {
		name, value, _ := strings.Cut(line, " ")
		if _, err := git.ParseObjectID(name); err == nil {
			first, facts = strings.Fields(line), map[string]string{}
		} else if !strings.HasPrefix(line, "\t") {
			facts[name] = value
		} else if len(first) == 4 {
			b.WriteString(strings.Join(first, " "))
			if !seen[first[0]] {
				seen[first[0]] = true
				zone := 0
				fmt.Sscanf(facts["author-tz"], "%d", &zone)
				fmt.Fprintf(&b, " %q %s %s %d %s %s %q", facts["author"], strings.Trim(facts["author-mail"], "<>"),
					facts["author-time"], zone/100*60+zone%100, facts["committer"],
					strings.Trim(facts["committer-mail"], "<>"), facts["summary"])
			}
			path := unquote(facts["filename"])
			id, previous, _ := strings.Cut(facts["previous"], " ")
			from := unquote(previous)
			_, boundary := facts["boundary"]
			fmt.Fprintf(&b, " %q %t %s %q\n", path, boundary, id, from)
		}
	}
	return b.String()
}

func TestBlameAsGit(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	worlds := map[string]*gittest.Repo{"project": thisProject(t), "sha256": odd(t, 1, 60, "sha256"),
		"odd": odd(t, 2, 100, "sha1")}
	sample := sampleSize(8, 150)
	if !testing.Short() {
		for seed := range uint64(10) {
			worlds[fmt.Sprint("odd ", seed)] = odd(t, 10+seed, 150, "sha1")
		}
	}
	for name, g := range worlds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := open(t, g)
			var files []string
			for f := range strings.SplitSeq(gitOutput(t, g, "ls-tree", "-r", "-z", "main"), "\x00") {
				if entry, path, _ := strings.Cut(f, "\t"); strings.HasPrefix(entry, "100") {
					files = append(files, path)
				}
			}
			head := g.Git("rev-parse", "main")
			for n := range min(sample, len(files)) {
				path := files[n*len(files)/min(sample, len(files))]
				q := &packhorsev1.BlameRequest{Path: path}
				var args []string
				switch n % 4 {
				case 1:
					q.IgnoreWhitespace, q.DetectMoves, args = true, true, []string{"-w", "-M"}
				case 2:
					q.DetectCopies, args = true, []string{"-C"}
				case 3:
					q.IgnoreRevisions, args = []string{"main~3"}, []string{"--ignore-rev", "main~3"}
				}
				args = append(args, head, "--", path)
				if got, want := i.porcelain(t, r, q), gitPorcelain(t, g, args...); got != want {
					t.Errorf("%q:\n%.1000s\nwant\n%.1000s", args, got, want)
				}
			}
		})
	}
}

// TestBlameRequests checks line ranges, a .mailmap, moved files, a shallow repository, and bad requests.
func TestBlameRequests(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	g := gittest.Init(t)
	const who = "author Old <old@x> 5 +0200\ncommitter C <c@example.com> 1 -0130\ndata 3\none\n"
	g.GitIn("commit refs/heads/main\n"+who+"M 644 inline a\ndata 6\n1\n2\n3\n\n"+
		"M 644 inline .mailmap\ndata 20\nNew <new@x> <old@x>\n\n"+
		"M 644 inline empty\ndata 0\n\nM 160000 "+strings.Repeat("1", 40)+" sub\ncommit refs/heads/main\n"+who+
		"R a b\nM 644 inline b\ndata 8\n1\n2\n2a\n3\nM 644 inline d/x\ndata 4\nlast\n", "fast-import", "--quiet")
	r := open(t, g)
	for first := range 4 {
		for last := range 6 {
			if last > 0 && first > last {
				continue
			}
			q := &packhorsev1.BlameRequest{Path: "b", FirstLine: int32(first), LastLine: int32(last)}
			from, to := max(first, 1), ""
			if last > 0 {
				to = fmt.Sprint(last)
			}
			got, want := i.porcelain(t, r, q), gitPorcelain(t, g, fmt.Sprintf("-L%d,%s", from, to), "main", "--", "b")
			if got != want || !strings.Contains(got, `"New" new@x`) {
				t.Errorf("%d to %d:\n%s\nwant\n%s", first, last, got, want)
			}
		}
	}
	if got := i.porcelain(t, r, &packhorsev1.BlameRequest{Path: "empty"}); got != "" {
		t.Errorf("an empty file: %q", got)
	}
	for field, list := range map[string][]*packhorsev1.BlameRequest{
		"path": {{}, {Path: "a"}, {Path: "d"}, {Path: "sub"},
			{Path: "../b"}, {Path: "/b"}, {Path: "./b"},
			{Path: "b\x00"}, {Path: "b/"},
			{Path: strings.Repeat("x", 70_000)}},
		"revision": {{Revision: "nothing", Path: "b"},
			{Revision: "--contents=/etc/passwd", Path: "b"}},
		"first_line":          {{Path: "b", FirstLine: 5}, {Path: "empty", FirstLine: 1}},
		"last_line":           {{Path: "b", FirstLine: -1}, {Path: "b", FirstLine: 3, LastLine: 2}},
		"ignore_revisions[1]": {{Path: "b", IgnoreRevisions: []string{"main", "x"}}},
		"ignore_revisions":    {{Path: "b", IgnoreRevisions: slices.Repeat([]string{"main"}, 1001)}},
	} {
		for _, q := range list {
			err := call(t, i, r, (*Call).Blame, q, func(*packhorsev1.BlameResponse) error { return nil })
			if f, ok := err.(*fault.Error); !ok || f.Field != field || f.Kind != fault.Invalid && f.Kind != fault.NotFound {
				t.Errorf("%.300v: %v, want an error of field %q", q, err, field)
			}
		}
	}
	shallow := gittest.Init(t)
	shallow.Git("fetch", "-q", "--depth=1", "file://"+g.Dir, "+main:main")
	q := &packhorsev1.BlameRequest{Path: "b"}
	if got, want := i.porcelain(t, open(t, shallow), q), gitPorcelain(t, shallow, "main", "--", "b"); got != want ||
		got == i.porcelain(t, r, q) {
		t.Errorf("shallow:\n%s\nwant\n%s", got, want)
	}
}
