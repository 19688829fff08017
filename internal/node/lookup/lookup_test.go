package lookup

import (
	"bytes"
	"compress/zlib"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
)

func openRepo(t testing.TB, r *gittest.Repo) *repo.Repo {
	t.Helper()
	opened, err := repo.Open(r.Dir, repo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })
	return opened
}

// tight is a Reader with bounds that small repositories meet.
func tight() *Reader {
	l := New(Options{})
	l.bounds = bounds{whole: 1 << 10, piece: 1000, pageTrees: 200, depth: 60, diffTrees: 5000}
	return l
}

// store writes a loose object without git's checks.
func store(t testing.TB, r *gittest.Repo, typ git.ObjectType, data []byte) git.ObjectID {
	t.Helper()
	object := append(fmt.Appendf(nil, "%s %d\x00", typ, len(data)), data...)
	h := git.SHA1.New()
	h.Write(object)
	id := git.RawObjectID(h.Sum(nil))
	var z bytes.Buffer
	level := zlib.DefaultCompression
	if len(object) < 1<<16 {
		level = zlib.NoCompression // for thousands of objects
	}
	w, err := zlib.NewWriterLevel(&z, level)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(object)
	w.Close()
	path := loosePath(r, id)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, z.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return id
}

func loosePath(r *gittest.Repo, id git.ObjectID) string {
	return filepath.Join(r.Dir, "objects", id.String()[:2], id.String()[2:])
}

// treeOf writes a tree of "MODE NAME" and IDs.
func treeOf(t testing.TB, r *gittest.Repo, entries ...any) git.ObjectID {
	t.Helper()
	var b []byte
	for i := 0; i < len(entries); i += 2 {
		id := entries[i+1].(git.ObjectID)
		b = append(fmt.Appendf(b, "%s\x00", entries[i]), id.Raw()...)
	}
	return store(t, r, git.Tree, b)
}

// homes are the ways in which the same objects may be stored.
var homes = map[string]func(t *testing.T, r *gittest.Repo) *gittest.Repo{
	"packed": func(t *testing.T, r *gittest.Repo) *gittest.Repo {
		r.Git("repack", "-adfq", "--depth=50")
		return r
	},
	"loose": func(t *testing.T, r *gittest.Repo) *gittest.Repo {
		packs, err := filepath.Glob(filepath.Join(r.Dir, "objects/pack/*.pack"))
		if err != nil {
			t.Fatal(err)
		}
		for _, pack := range packs {
			aside := filepath.Join(t.TempDir(), "pack")
			if err := os.Rename(pack, aside); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(aside)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(strings.TrimSuffix(pack, ".pack") + ".idx"); err != nil {
				t.Fatal(err)
			}
			r.GitIn(string(b), "unpack-objects", "-q")
		}
		return r
	},
	"alternate": func(t *testing.T, r *gittest.Repo) *gittest.Repo {
		dir := filepath.Join(t.TempDir(), "borrows.git")
		gittest.Run(t, "", "", "clone", "-q", "--mirror", "--shared", r.Dir, dir)
		return gittest.At(t, dir)
	},
}

// everyHome runs a test over random repositories of both formats, stored in each way.
func everyHome(t *testing.T, test func(t *testing.T, r *gittest.Repo)) {
	for name, move := range homes {
		for i, format := range []string{"sha1", "sha256"} {
			t.Run(name+" "+format, func(t *testing.T) {
				t.Parallel()
				test(t, move(t, gittest.Random(t, uint64(len(name)+i), gittest.Shape{Commits: 25, Merge: 0.2, Format: format})))
			})
		}
	}
}

func TestRevisions(t *testing.T) {
	t.Parallel()
	r := gittest.Random(t, 3, gittest.Shape{})
	r.Git("branch", "v1") // tags take precedence
	r.Git("update-ref", "refs/secret/x", "HEAD")
	r.Git("config", "transfer.hideRefs", "refs/secret")
	l, opened := New(Options{}), openRepo(t, r)
	for _, revision := range []string{"HEAD", "main", "heads/main", "refs/heads/main", "v1", "heads/v1", "nested",
		"feature/b-ü", "main~1", "v1^{}", "nested^0",
		r.ID("HEAD").String(), r.ID("nested").String()} {
		c, err := l.Commit(context.Background(), opened, revision)
		if err != nil || c.ID != r.ID(revision+"^{commit}") {
			t.Errorf("%s is %s, %v", revision, c.ID, err)
		}
	}
	if c, err := l.Commit(context.Background(), opened, ""); err != nil || c.ID != r.ID("HEAD") {
		t.Errorf("no revision is %s, %v", c.ID, err)
	}
	for revision, kind := range map[string]fault.Kind{
		"nowhere": fault.NotFound, "main~1000": fault.NotFound, "refs/secret/x": fault.NotFound, "x\x00y": fault.Invalid,
		"..":     fault.Invalid,
		"-dash-": fault.NotFound, strings.Repeat("1", 40): fault.NotFound, strings.Repeat("0", 40): fault.NotFound,
		strings.Repeat("1", 64): fault.NotFound, "tree": fault.Invalid, "blob": fault.Invalid, "light-blob": fault.Invalid,
		r.ID("HEAD^{tree}").String(): fault.Invalid, strings.Repeat("x", 1<<20): fault.Invalid,
	} {
		if c, err := l.Commit(context.Background(), opened, revision); !fault.Is(err, kind) {
			t.Errorf("%.80q is %s, %v, want an error of kind %s", revision, c.ID, err, kind)
		} else if text := fault.Message(err); len(text) > 1000 {
			t.Errorf("an error has %d bytes", len(text))
		}
	}
	tree, err := l.Tree(context.Background(), opened, TreeRequest{In: PathIn{Revision: "tree"}})
	if err != nil || tree.ID != r.ID("tree^{tree}") {
		t.Errorf("a tag of a tree lists %s, %v", tree.ID, err)
	}
	r.Git("symbolic-ref", "HEAD", "refs/heads/unborn")
	if _, err := l.Commit(context.Background(), opened, "HEAD"); !fault.Is(err, fault.NotFound) ||
		!strings.Contains(fault.Message(err), "unborn") {
		t.Errorf("an unborn HEAD gave %v", err)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	budget := admit.NewBudget("objects", 100<<20)
	c := &operation{Reader: New(Options{Memory: budget})}
	if err := c.hold(small); err != nil || c.taken != 0 {
		t.Errorf("the free part took %d: %v", c.taken, err)
	}
	if err := c.hold(60 << 20); err != nil || c.taken != 60<<20 {
		t.Errorf("%d taken, %v", c.taken, err)
	}
	other := &operation{Reader: c.Reader}
	if err := other.hold(60 << 20); !fault.Is(err, fault.Exhausted) || other.held != 0 {
		t.Errorf("more than there is gave %v, %d held", err, other.held)
	}
	if err := other.hold(maxHeld + 1); !fault.Is(err, fault.Invalid) {
		t.Errorf("more than one call may hold gave %v", err)
	}
	c.drop(30 << 20)
	if err := other.hold(60 << 20); err != nil {
		t.Error(err)
	}
	c.end()
	other.end()
	if err := budget.Take("", 100<<20); err != nil || c.held != 0 || c.taken != 0 {
		t.Errorf("not all was given back: %v", err)
	}
}

func TestMissingObjectsAreCorrupt(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	blob := store(t, r, git.Blob, []byte("x"))
	gone := git.MustParseObjectID(strings.Repeat("12", 20))
	root := treeOf(t, r, "100644 blob", gone, "40000 dir", gone, "100644 good", blob, "40000 wrong", blob)
	r.Git("update-ref", "refs/heads/main", r.GitIn("", "commit-tree", root.String()))
	lost := store(t, r, git.Commit, []byte("tree "+root.String()+"\nparent "+gone.String()+
		"\nauthor A <a> 1 +0000\ncommitter A <a> 1 +0000\n\nx"))
	l, opened, ctx := New(Options{}), openRepo(t, r), context.Background()
	all := slices.Collect(func(yield func(error) bool) {
		for _, path := range []string{"blob", "wrong/x", "dir/x"} {
			yield(l.Blob(ctx, opened, BlobRequest{In: PathIn{"main", path}}, func(BlobHeader) error { return nil },
				func([]byte) error { return nil }))
		}
		_, err := l.Tree(ctx, opened, TreeRequest{In: PathIn{"main", "dir"}})
		yield(err)
		_, err = l.Tree(ctx, opened, TreeRequest{In: PathIn{Revision: "main"}, Recursive: true})
		yield(err)
		yield(l.Log(ctx, opened, LogRequest{Revisions: []string{lost.String()}}, func([]Commit) error { return nil }))
	})
	for i, err := range all {
		if !fault.Is(err, fault.Corrupt) || !strings.Contains(fault.Message(err), gone.String()) &&
			!strings.Contains(fault.Message(err), blob.String()) {
			t.Errorf("%d: %v, want Corrupt and the object's name", i, err)
		}
	}
}
