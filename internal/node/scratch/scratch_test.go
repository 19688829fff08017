package scratch_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// run runs Git with the environment of a directory.
func run(t *testing.T, env []string, stdin string, args ...string) string {
	t.Helper()
	c := exec.Command("git", args...)
	c.Env, c.Stdin, c.Dir = append(gittest.Env(), env...), strings.NewReader(stdin), "/"
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// pending is a State with objects that are not on the disk.
type pending struct {
	write.State
	objects map[git.ObjectID]*write.Object
}

func (p pending) Read(id git.ObjectID, _ int64) (git.ObjectType, []byte, error) {
	o := p.objects[id]
	if o == nil {
		return 0, nil, fault.New(fault.NotFound, "no object %s", id)
	}
	return o.Type, o.Data, nil
}

// TestObjects makes a commit in one directory, and a second one on top of it in another directory, while the first one
// is not on the disk.
func TestObjects(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		g := gittest.InitAt(t, filepath.Join(t.TempDir(), "a:b\" c.git"), "--object-format="+format)
		base := g.Commit("base")
		r, err := repo.Open(g.Dir, repo.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		state := filepath.Join(t.TempDir(), "scratch")
		space, err := scratch.New(state)
		if err != nil {
			t.Fatal(err)
		}
		if got := run(t, space.Env(r), "", "cat-file", "-t", base.String()); got != "commit" {
			t.Errorf("the base is %q, want a commit", got)
		}
		var first, second git.ObjectID
		known := pending{objects: make(map[git.ObjectID]*write.Object)}
		make := func(text string, parent git.ObjectID) (git.ObjectID, []*write.Object) {
			t.Helper()
			d, err := space.Open(r)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := d.Copy(known, parent); err != nil {
				t.Fatal(err)
			}
			env := d.Env()
			run(t, env, "", "read-tree", parent.String())
			blob := run(t, env, text, "hash-object", "-w", "--stdin")
			run(t, env, "unused", "hash-object", "-w", "--stdin")
			run(t, env, "", "update-index", "--add", "--cacheinfo", "100644,"+blob+",dir/"+text)
			commit, err := git.ParseObjectID(run(t, env, "", "-c", "user.name=a", "-c", "user.email=a@b", "commit-tree", "-m",
				text, "-p", parent.String(), run(t, env, "", "write-tree")))
			if err != nil {
				t.Fatal(err)
			}
			objects, err := d.Objects(commit)
			if err != nil {
				t.Fatal(err)
			}
			return commit, objects
		}
		first, objects := make("first", base)
		for _, o := range objects {
			known.objects[o.ID] = o
		}
		second, more := make("second", first)
		for i, list := range [][]*write.Object{objects, more} {
			if want := 4 + 4*i; len(list) != want { // commit, two trees, blob
				t.Errorf("%d new objects, want %d", len(list), want)
			}
			for _, o := range list {
				id := strings.TrimSpace(g.GitIn(string(o.Data), "hash-object", "-w", "-t", o.Type.String(), "--stdin"))
				if id != o.ID.String() {
					t.Errorf("object %s is %s", id, o.ID)
				}
			}
		}
		got := strings.Fields(g.Git("ls-tree", "-r", "--name-only", second.String()))
		if !slices.Contains(got, "dir/first") || !slices.Contains(got, "dir/second") {
			t.Errorf("files %q", got)
		}
		if left, _ := filepath.Glob(filepath.Join(state, "call-*")); len(left) > 0 {
			t.Errorf("%q is left, want nothing", left)
		}
		if _, err := os.Stat(filepath.Join(state, "sha256.git", "HEAD")); err != nil {
			t.Error(err)
		}
	}
}
