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
	"github.com/packhorse-git/packhorse/internal/node/lookup"
)

// porcelain writes the hunks of a file as git blame --porcelain does, without the lines of the file.
func (i *Inspector) porcelain(t *testing.T, r *repo.Repo, q BlameRequest) string {
	t.Helper()
	var b strings.Builder
	commits := map[git.ObjectID]bool{}
	err := i.Blame(t.Context(), r, q, func(h *Hunk) error {
		if commits[h.Commit] == (h.New != nil) {
			t.Errorf("%+v: commit %s is new: %t", q, h.Commit, h.New != nil)
		}
		fmt.Fprintf(&b, "%s %d %d %d", h.Commit, h.OriginalLine, h.First, h.Lines)
		if c := h.New; c != nil {
			commits[h.Commit] = true
			fmt.Fprintf(&b, " %q %s %d %d %s %s %q", c.Author.Name, c.Author.Email, c.Author.Seconds, c.Author.Offset,
				c.Committer.Name, c.Committer.Email, c.Summary)
		}
		fmt.Fprintf(&b, " %q %t %s %q\n", h.Path, h.Boundary, h.Previous, h.PreviousPath)
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
			path, _ := unquote([]byte(facts["filename"]))
			id, previous, _ := strings.Cut(facts["previous"], " ")
			from, _ := unquote([]byte(previous))
			_, boundary := facts["boundary"]
			previousID, _ := git.ParseObjectID(id)
			fmt.Fprintf(&b, " %q %t %s %q\n", path, boundary, previousID, from)
		}
	}
	return b.String()
}

func TestBlameAsGit(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	worlds := map[string]*gittest.Repo{"project": thisProject(t), "sha256": odd(t, 1, 60, "sha256"),
		"odd": odd(t, 2, 100, "sha1")}
	sample := 8
	if !testing.Short() {
		sample = 150
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
				q := BlameRequest{In: lookup.PathIn{Path: path}}
				var args []string
				switch n % 4 {
				case 1:
					q.IgnoreWhitespace, q.Moves, args = true, true, []string{"-w", "-M"}
				case 2:
					q.Copies, args = true, []string{"-C"}
				case 3:
					q.Ignore, args = []string{"main~3"}, []string{"--ignore-rev", "main~3"}
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
			q := BlameRequest{In: lookup.PathIn{Path: "b"}, First: first, Last: last}
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
	if got := i.porcelain(t, r, BlameRequest{In: lookup.PathIn{Path: "empty"}}); got != "" {
		t.Errorf("an empty file: %q", got)
	}
	for field, list := range map[string][]BlameRequest{
		"path": {{}, {In: lookup.PathIn{Path: "a"}}, {In: lookup.PathIn{Path: "d"}}, {In: lookup.PathIn{Path: "sub"}},
			{In: lookup.PathIn{Path: "../b"}}, {In: lookup.PathIn{Path: "/b"}}, {In: lookup.PathIn{Path: "./b"}},
			{In: lookup.PathIn{Path: "b\x00"}}, {In: lookup.PathIn{Path: "b/"}},
			{In: lookup.PathIn{Path: strings.Repeat("x", 70_000)}}},
		"revision": {{In: lookup.PathIn{Revision: "nothing", Path: "b"}},
			{In: lookup.PathIn{Revision: "--contents=/etc/passwd", Path: "b"}}},
		"first_line":          {{In: lookup.PathIn{Path: "b"}, First: 5}, {In: lookup.PathIn{Path: "empty"}, First: 1}},
		"last_line":           {{In: lookup.PathIn{Path: "b"}, First: -1}, {In: lookup.PathIn{Path: "b"}, First: 3, Last: 2}},
		"ignore_revisions[1]": {{In: lookup.PathIn{Path: "b"}, Ignore: []string{"main", "x"}}},
		"ignore_revisions":    {{In: lookup.PathIn{Path: "b"}, Ignore: slices.Repeat([]string{"main"}, 1001)}},
	} {
		for _, q := range list {
			err := i.Blame(t.Context(), r, q, func(*Hunk) error { return nil })
			if f, ok := err.(*fault.Error); !ok || f.Field != field || f.Kind != fault.Invalid && f.Kind != fault.NotFound {
				t.Errorf("%.300v: %v, want an error of field %q", q, err, field)
			}
		}
	}
	shallow := gittest.Init(t)
	shallow.Git("fetch", "-q", "--depth=1", "file://"+g.Dir, "+main:main")
	q := BlameRequest{In: lookup.PathIn{Path: "b"}}
	if got, want := i.porcelain(t, open(t, shallow), q), gitPorcelain(t, shallow, "main", "--", "b"); got != want ||
		got == i.porcelain(t, r, q) {
		t.Errorf("shallow:\n%s\nwant\n%s", got, want)
	}
}
