package inspect

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/write"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// onDisk is the state of a repository without other changes.
type onDisk struct {
	write.State
	r *repo.Repo
}

func (s onDisk) Repo() *repo.Repo { return s.r }

func (s onDisk) Read(id git.ObjectID, limit int64) (git.ObjectType, []byte, error) {
	return s.r.Objects.Read(id, limit)
}

// store writes objects to a repository.
func store(t *testing.T, g *gittest.Repo, made Applied) {
	t.Helper()
	for _, o := range made.Objects {
		if id := strings.TrimSpace(g.GitIn(string(o.Data), "hash-object", "-w", "-t", o.Type.String(), "--stdin")); id !=
			o.ID.String() {
			t.Fatalf("object %s, want %s", id, o.ID)
		}
	}
}

// TestApplyFormatted applies mails of commits to their parents: trees, authors and messages are those of the commits.
// With the committers of the commits their IDs are equal, too.
func TestApplyFormatted(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	worlds := map[string]*gittest.Repo{"project": thisProject(t), "odd": odd(t, 3, 40, "sha1"),
		"sha256": odd(t, 4, 30, "sha256")}
	sample := 6
	if !testing.Short() {
		sample = 60
		for seed := range uint64(8) {
			worlds[fmt.Sprint("odd ", seed)] = odd(t, 20+seed, 60, "sha1")
		}
	}
	for name, g := range worlds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := open(t, g)
			for _, id := range commits(g, sample) {
				parents := strings.Fields(g.Git("rev-list", "--parents", "-1", id))
				mails := i.formatted(t, r, &packhorsev1.FormatPatchRequest{To: id})
				if len(parents) > 2 || mails == "" { // a merge, or an empty commit
					continue
				}
				base := git.ObjectID{}
				if len(parents) == 2 {
					base = git.MustParseObjectID(parents[1])
				}
				committer := strings.SplitN(strings.SplitN(g.Git("cat-file", "commit", id), "\ncommitter ", 2)[1], "\n", 2)[0]
				made, err := i.Apply(t.Context(), onDisk{r: r}, base, &ApplyRequest{Patch: []byte(mails), HasCommitter: true,
					Header: edit.Header{Committer: committer}})
				if err != nil || len(made.Conflicts) > 0 || len(made.Commits) != 1 {
					t.Errorf("%s: %v, %+v", id, err, made.Conflicts)
					continue
				}
				if want := g.Git("rev-parse", id+"^{tree}"); made.Tree.String() != want {
					t.Errorf("%s: tree %s, want %s", id, made.Tree, want)
				}
				if made.Commits[0].String() != id {
					store(t, g, made)
					got, want := g.Git("cat-file", "commit", made.Commits[0].String()), g.Git("cat-file", "commit", id)
					if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
						t.Errorf("%s: commit\n%q\nwant\n%q", id, got, want)
					}
				}
				diff := gitOutput(t, g, "diff-tree", "--binary", "--full-index", "-p", "--root", "--no-commit-id", id)
				made, err = i.Apply(t.Context(), onDisk{r: r}, base, &ApplyRequest{Patch: []byte(diff),
					Header: edit.Header{Author: "a <b> 1 +0000", Committer: "c <d> 2 +0000", Message: []byte("m\n")}})
				if want := g.Git("rev-parse", id+"^{tree}"); err != nil || made.Tree.String() != want {
					t.Errorf("%s: tree %s of its diff, want %s: %v", id, made.Tree, want, err)
				}
			}
			series := i.formatted(t, r, &packhorsev1.FormatPatchRequest{From: "main~5", To: "main"})
			made, err := i.Apply(t.Context(), onDisk{r: r}, g.ID("main~5"), &ApplyRequest{Patch: []byte(series)})
			if err != nil || made.Tree.String() != g.Git("rev-parse", "main^{tree}") {
				t.Errorf("a series: %v, %+v", err, made.Conflicts)
			}
			store(t, g, made)
			g.Git("fsck", "--strict", "--connectivity-only", made.Commits[len(made.Commits)-1].String())
		})
	}
}

func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	i := newInspector(t)
	g := gittest.Init(t)
	const who = "committer C <c@example.com> 1 +0000\ndata 0\n"
	file := func(text string) string { return fmt.Sprintf("M 644 inline f\ndata %d\n%s\n", len(text), text) }
	g.GitIn("commit refs/heads/main\nmark :1\n"+who+file("1\n2\n3\n4\n5\n")+"M 120000 inline link\ndata 4\n/etc\n"+
		"commit refs/heads/main\n"+who+file("1\n2\nmain\n4\n5\n")+
		"commit refs/heads/topic\n"+who+"from :1\n"+file("1\n2\ntopic\n4\n5\n")+
		"commit refs/heads/clean\n"+who+"from :1\n"+file("0\n1\n2\n3\n4\n5\n"), "fast-import", "--quiet")
	r := open(t, g)
	apply := func(patch string) (Applied, error) {
		return i.Apply(t.Context(), onDisk{r: r}, g.ID("main"), &ApplyRequest{Patch: []byte(patch),
			Header: edit.Header{Author: "a <b> 1 +0000", Committer: "c <d> 2 +0000"}})
	}
	diff := func(branch string) string { return gitOutput(t, g, "diff", "--full-index", "main~1", branch) }
	made, err := apply(diff("clean")) // three-way, and without the blobs
	if got := g.Git("cat-file", "blob", "main:f"); err != nil || len(made.Conflicts) > 0 || len(made.Objects) != 3 {
		t.Errorf("merged with %q: %v %+v", got, err, made)
	}
	made, err = apply(diff("topic"))
	if err != nil || len(made.Conflicts) != 1 || len(made.Objects)+len(made.Commits) > 0 {
		t.Fatalf("a conflict: %v %+v", err, made)
	}
	c := made.Conflicts[0]
	for n, rev := range []string{"main~1:f", "main:f", "topic:f"} {
		if c.Stages[n].ID != g.ID(rev) || c.Stages[n].Mode != 0o100644 || c.Path != "f" || c.Kinds[0] != "contents" {
			t.Errorf("stage %d: %+v", n, c)
		}
	}
	for name, patch := range map[string]string{
		"other lines": "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n x\n-y\n+z\n",
		"missing":     "--- a/g\n+++ b/g\n@@ -1 +1 @@\n-y\n+z\n",
		"deleted":     "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-z\n"} {
		made, err := apply(patch)
		if err != nil || len(made.Conflicts) != 1 ||
			made.Conflicts[0].Kinds[0] != "patch" || made.Conflicts[0].Path == "" ||
			strings.Contains(made.Conflicts[0].Message, "/") {
			t.Errorf("%s: %v %+v", name, err, made.Conflicts)
		}
	}
	made, err = apply("--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+z\n")
	if err != nil || len(made.Conflicts) != 1 || made.Conflicts[0].Kinds[0] != "add/add" {
		t.Errorf("an existing file: %v %+v", err, made.Conflicts)
	}
	if _, err := os.Lstat("/f"); err == nil {
		t.Error("Git has checked out a file")
	}
	mail := func(patch string) string {
		return "From: A <a@x>\nDate: Sun, 13 Sep 2020 23:40:00 -0330\nSubject: [PATCH] s\n\nbody\n---\n" + patch
	}
	create := func(path string) string {
		return "diff --git a/" + path + " b/" + path + "\nnew file mode 100644\n--- /dev/null\n+++ b/" + path +
			"\n@@ -0,0 +1 @@\n+z\n"
	}
	for name, patch := range map[string]string{
		"no patch": "hello\n", "corrupt": "--- a/f\n+++ b/f\n@@ -1,9 +1,2 @@\n x\n", "empty mail": mail(""),
		"no author": strings.Replace(mail(diff("clean")), "A <a@x>", "", 1), "date": strings.Replace(mail(diff("clean")),
			"Sun, 13 Sep 2020 23:40:00 -0330", "noon", 1), "mails": "From x\n" + strings.Repeat("\nFrom x\n", 1001),
		".git": create(".git/config"), ".GIT": create(".GIT/hooks/x"), "dots": create("../x"), "inner": create("a/../../x"),
		"absolute": strings.ReplaceAll(create("/etc/x"), "b//", "b//"), "ntfs": create("git~1/config"),
		"hfs": create(".g\u200cit/config"), "link": create("link/passwd"), "dot": create("./x"),
		"in mail": mail(create(".git/x")),
	} {
		made, err := apply(patch)
		f, ok := err.(*fault.Error)
		if !ok || f.Kind != fault.Invalid || f.Field != "patch" {
			t.Errorf("%s: %v, want an invalid patch; %+v", name, err, made)
		} else if strings.Contains(f.Msg, i.Space.Env(r)[0]) || strings.Contains(f.Msg, "/tmp/") {
			t.Errorf("%s: %q has a path of the server", name, f.Msg)
		}
	}
	if made, err = apply(mail(diff("clean"))); err != nil || len(made.Commits) != 1 {
		t.Fatal(err)
	}
	store(t, g, made)
	g.Git("update-ref", "refs/heads/main", made.Commits[0].String())
	if _, err = apply(mail(diff("clean"))); !fault.Is(err, fault.Precondition) && err != nil {
		t.Errorf("again: %v", err)
	}
}
