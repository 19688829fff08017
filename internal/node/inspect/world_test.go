package inspect

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
)

// newInspector returns an Inspector. Its runner may be used by several tests.
func newInspector(t *testing.T) *Inspector {
	t.Helper()
	runner, err := process.New(process.Options{TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		Class: {Slots: 2, Queue: 1000, Time: time.Minute},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	space, err := scratch.New(filepath.Join(t.TempDir(), "scratch"))
	if err != nil {
		t.Fatal(err)
	}
	return New(Options{Runner: runner, Space: space, Lookups: lookup.New(lookup.Options{})})
}

func open(t *testing.T, g *gittest.Repo) *repo.Repo {
	t.Helper()
	r, err := repo.Open(g.Dir, repo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// sampleSize is PACKHORSE_TEST_COMMITS, or a default.
func sampleSize(short, long int) int {
	n, err := strconv.Atoi(os.Getenv("PACKHORSE_TEST_COMMITS"))
	switch {
	case err == nil:
		return n
	case testing.Short():
		return short
	}
	return long
}

// call calls a method of Call.
func call[Q, M any](t *testing.T, i *Inspector, r *repo.Repo, method func(*Call, *Q, func(*M) error) error, q *Q,
	send func(*M) error) error {
	t.Helper()
	return i.Call(t.Context(), r, "", func(c *Call) error { return method(c, q, send) })
}

// output returns the output of git in a repository, byte for byte.
func gitOutput(t *testing.T, g *gittest.Repo, args ...string) string {
	t.Helper()
	c := exec.Command("git", args...)
	c.Dir, c.Env = g.Dir, gittest.Env()
	var message bytes.Buffer
	c.Stderr = &message
	out, err := c.Output()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, &message)
	}
	return string(out)
}

// thisProject returns a repository with the history of this project, or with that of the repository in
// PACKHORSE_TEST_HISTORY.
func thisProject(t *testing.T) *gittest.Repo {
	t.Helper()
	parse := func(args ...string) string {
		c := exec.Command("git", append([]string{"rev-parse"}, args...)...)
		c.Dir = os.Getenv("PACKHORSE_TEST_HISTORY")
		out, err := c.Output()
		if err != nil {
			t.Skip("the tests are not in a repository")
		}
		return strings.TrimSpace(string(out))
	}
	head := parse("HEAD")
	g := gittest.Init(t)
	alternate := filepath.Join(parse("--path-format=absolute", "--git-common-dir"), "objects") + "\n"
	if err := os.WriteFile(filepath.Join(g.Dir, "objects/info/alternates"), []byte(alternate), 0o600); err != nil {
		t.Fatal(err)
	}
	g.Git("update-ref", "refs/heads/main", head)
	return g
}

// pieces are parts of lines, some of which look like headers of patches.
var pieces = []string{"a", "b", "  b", "b ", "b\t", "", "c\r", "diff --git a/a b/a", "--- a/a", "+++ b/a",
	"@@ -1,3 +1,3 @@", "index 1..2", "Binary files a and b differ", "\\ No newline at end of file", "-", "+", "@@ ", " ",
	"\x00", "rename from x", "From 1234 Mon Sep 17 00:00:00 2001", "---", "é", "\xff"}

var oddNames = []string{"a", "b b", "new\nline", "quote\"",
	"tab\t", "back\\slash", "été", "\xff\xfe", "-dash", ":(top)x",
	"*", "d/a", "d/b", "d/e/f", "x b/x", "\x01\x7f", "a/x\"y"}

// odd makes a repository whose commits change files, modes, types and names at random.
func odd(t *testing.T, seed uint64, commits int, format string) *gittest.Repo {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	var out bytes.Buffer
	text := map[string]string{}
	quoted := func(name string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(name) + `"`
	}
	data := func(b string) { fmt.Fprintf(&out, "data %d\n%s\n", len(b), b) }
	for n := range commits {
		fmt.Fprintf(&out, "commit refs/heads/main\nmark :%d\nauthor Á %d <a@example.com> %d -0330\n"+
			"committer C <c@example.com> %d +0100\n", n+1, n%3, 1_600_000_000+n*1000, 1_600_000_500+n*1000)
		data(fmt.Sprintf("commit %d\n\nbody é\n", n))
		for range 1 + rnd.IntN(4) {
			name := oddNames[rnd.IntN(len(oddNames))]
			for other := range text { // a file where a directory is
				if strings.HasPrefix(other, name+"/") || strings.HasPrefix(name, other+"/") {
					fmt.Fprintf(&out, "D %s\n", quoted(other))
					delete(text, other)
				}
			}
			mode := []string{"100644", "100644", "100644", "100755"}[rnd.IntN(4)]
			switch rnd.IntN(9) {
			case 0:
				fmt.Fprintf(&out, "M 160000 %s %s\n", strings.Repeat(fmt.Sprintf("%x", 1+rnd.IntN(15)),
					map[string]int{"sha1": 40, "sha256": 64}[format]), quoted(name))
				text[name] = ""
			case 1:
				fmt.Fprintf(&out, "M 120000 inline %s\n", quoted(name))
				data(oddNames[rnd.IntN(len(oddNames))])
				text[name] = ""
			case 2:
				if _, ok := text[name]; ok {
					fmt.Fprintf(&out, "D %s\n", quoted(name))
					delete(text, name)
				}
			case 3:
				to := fmt.Sprintf("moved/%d %s", n, strings.ReplaceAll(name, "/", "\n"))
				if _, ok := text[name]; ok && len(text[name]) > 0 {
					fmt.Fprintf(&out, "R %s %s\n", quoted(name), quoted(to))
					text[to] = text[name]
					delete(text, name)
				}
			default:
				lines := strings.SplitAfter(text[name], "\n")
				for range 1 + rnd.IntN(12) {
					at := rnd.IntN(len(lines))
					lines[at] += pieces[rnd.IntN(len(pieces))] + pieces[rnd.IntN(len(pieces))]
					if rnd.IntN(5) > 0 {
						lines[at] += "\n"
					}
				}
				text[name] = strings.Join(lines, "")
				fmt.Fprintf(&out, "M %s inline %s\n", mode, quoted(name))
				data(text[name])
			}
		}
		out.WriteByte('\n')
	}
	g := gittest.Init(t, "--object-format="+format)
	g.GitIn(out.String(), "fast-import", "--quiet", "--force")
	return g
}
