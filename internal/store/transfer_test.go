package store

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// newDirectory returns a directory with repositories: a random one with loose objects, one in SHA-256 with one pack, an
// empty one, and ones that cannot be imported.
func newDirectory(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	add := func(r *gittest.Repo, path string) *gittest.Repo {
		t.Helper()
		to := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(r.Dir, to); err != nil {
			t.Fatal(err)
		}
		return gittest.At(t, to)
	}
	app := add(gittest.Random(t, 1, gittest.Shape{}), "team/app.git")
	app.Git("update-ref", "refs/heads/loose", app.Commit("loose").String())
	for _, s := range appConfig {
		app.Git("config", "--add", s[0], s[1])
	}
	app.Git("config", "remote.origin.url", "https://example.com/x")
	add(gittest.Random(t, 2, gittest.Shape{Commits: 5, Format: "sha256"}), "team/Sub/sha256.git").
		Git("pack-refs", "--all")
	add(gittest.Init(t), "empty")
	add(gittest.Random(t, 3, gittest.Shape{Commits: 2}), "bad/shallow.git")
	write(t, filepath.Join(root, "bad/shallow.git/shallow"), app.ID("HEAD").String()+"\n")
	add(gittest.Init(t), "bad/alternates.git")
	write(t, filepath.Join(root, "bad/alternates.git/objects/info/alternates"), app.Dir+"/objects\n")
	add(gittest.Init(t), "bad/detached.git")
	add(gittest.Init(t), "bad/emptyhead.git")
	write(t, filepath.Join(root, "bad/emptyhead.git/HEAD"), "")
	write(t, filepath.Join(root, "bad/detached.git/HEAD"), app.ID("HEAD").String()+"\n")
	add(gittest.Init(t), "bad/incomplete.git")
	write(t, filepath.Join(root, "bad/incomplete.git/refs/heads/main"), app.ID("HEAD").String()+"\n")
	hook := filepath.Join(add(gittest.Init(t), "bad/hooks.git").Dir, "hooks/update")
	if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, hook, "#!/bin/sh\n")
	if err := os.Chmod(hook, 0o755); err != nil {
		t.Fatal(err)
	}
	add(gittest.Init(t), "bad/include.git").Git("config", "include.path", "/etc/other")
	add(gittest.Init(t), "bad/.hidden.git")
	add(gittest.Init(t), "bad/name.lock.git")
	add(gittest.Init(t), "bad/tree/.git")
	if err := os.Symlink("../empty", filepath.Join(root, "bad/link")); err != nil {
		t.Fatal(err)
	}
	add(gittest.Init(t), "twice")
	add(gittest.Init(t), "twice.git")
	return root
}

// appConfig is the configuration of team/app about requests of clients. Later values count more.
var appConfig = [][2]string{{"receive.denynonfastforwards", "true"}, {"uploadpack.hiderefs", "!refs/x/y"},
	{"transfer.hiderefs", "refs/x"}, {"transfer.hiderefs", "refs/z"}, {"http.receivepack", "false"},
	{"uploadpackfilter.tree.maxdepth", "1"}}

// addSettings adds settings to those of a repository in the store, as a user with access to the bucket could.
func addSettings(t *testing.T, s *Store, path string, settings ...replog.Setting) {
	t.Helper()
	r, err := s.find(t.Context(), repoPath(path))
	if err != nil {
		t.Fatal(err)
	}
	defer s.release(r)
	if _, err := r.change(t.Context(), func(head *state) (*replog.Record, error) {
		next := head.record.Next(replog.KindConfigure, "n", time.Now())
		next.Config = append(next.Config, settings...)
		return next, nil
	}); err != nil {
		t.Fatal(err)
	}
}

// hostileSettings run programs and read files, if Git finds them.
var hostileSettings = []replog.Setting{
	{Key: "hook.x.command", Value: "/x"}, {Key: "hook.x.event", Value: "pre-receive"},
	{Key: "core.hookspath", Value: "/x"}, {Key: "include.path", Value: "/x"},
	{Key: "receive.fsck.skiplist", Value: "/x"},
}

// appConfigOf returns the same part of a repository's configuration.
func appConfigOf(t *testing.T, dir string) (list [][2]string) {
	t.Helper()
	for line := range strings.Lines(gittest.At(t, dir).Git("config", "--local", "--list")) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		section, _, _ := strings.Cut(key, ".")
		if section != "core" && section != "extensions" || key == "core.hookspath" {
			list = append(list, [2]string{key, value})
		}
	}
	return list
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// allRefs lists HEAD and all refs of a repository.
func allRefs(t *testing.T, dir string) string {
	t.Helper()
	r := gittest.At(t, dir)
	return r.Git("symbolic-ref", "HEAD") + "\n" + r.Git("for-each-ref", "--format=%(objectname) %(refname)")
}

// Repositories come out of the store as they went in. A second import has nothing to do.
func TestImportAndExport(t *testing.T) {
	t.Parallel()
	root, b := newDirectory(t), newBucket(t)
	dry, err := ImportAll(t.Context(), b, ImportOptions{Dir: root, Node: "n", DryRun: true})
	if err != nil || len(b.Keys()) != 1 {
		t.Fatalf("dry run = %v, and the bucket has %q", err, b.Keys())
	}
	report, err := ImportAll(t.Context(), b, ImportOptions{Dir: root, Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"empty", "team/Sub/sha256", "team/app", "twice"}; !slices.Equal(report.Imported, want) ||
		!slices.Equal(dry.Imported, want) || report.Bytes == 0 {
		t.Errorf("imported %q (dry run: %q) with %d bytes, want %q", report.Imported, dry.Imported, report.Bytes, want)
	}
	want := []struct{ path, text string }{
		{"bad/.hidden.git", "begins with a dot"}, {"bad/alternates.git", "alternates"}, {"bad/detached.git", "HEAD"},
		{"bad/emptyhead.git", "HEAD is missing or invalid"},
		{"bad/hooks.git", "hooks/update"}, {"bad/include.git", "include.path"}, {"bad/incomplete.git", "not complete"},
		{"bad/link", "symbolic link"}, {"bad/name.lock.git", ".lock"}, {"bad/shallow.git", "--unshallow"},
		{"bad/tree/.git", "not bare"}, {"twice.git", "same path"},
	}
	for i, p := range report.Refused {
		if len(report.Refused) != len(want) || p.Path != want[i].path || !strings.Contains(p.Text, want[i].text) {
			t.Errorf("refused %v, want %v", report.Refused, want)
			break
		}
	}
	gittest.At(t, filepath.Join(root, "team/Sub/sha256.git")).Git("branch", "new")
	again, err := ImportAll(t.Context(), b, ImportOptions{Dir: root, Node: "n"})
	gittest.At(t, filepath.Join(root, "team/Sub/sha256.git")).Git("branch", "-d", "new")
	if err != nil || len(again.Imported) > 0 || !slices.Equal(again.Exists, report.Imported) ||
		!slices.Equal(again.Differs, []string{"team/Sub/sha256"}) {
		t.Errorf("second import = %+v, %v, want all skipped", again, err)
	}
	checkClean(t, b)
	addSettings(t, newNode(t, b), "team/app", hostileSettings...)
	for path, source := range map[string]string{
		"empty": "empty", "team/Sub/sha256": "team/Sub/sha256.git", "team/app": "team/app.git",
	} {
		out := filepath.Join(t.TempDir(), "out.git")
		if err := Export(t.Context(), b, repoPath(path), out, nil); err != nil {
			t.Errorf("Export(%s) = %v", path, err)
			continue
		}
		if got, want := allRefs(t, out), allRefs(t, filepath.Join(root, source)); got != want {
			t.Errorf("%s came out with\n%s\nwant\n%s", path, got, want)
		}
		if got := appConfigOf(t, out); path == "team/app" && !slices.Equal(got, appConfig) {
			t.Errorf("%s came out with the configuration %q, want %q", path, got, appConfig)
		}
		gittest.At(t, out).Git("fsck", "--full", "--strict")
	}
}

// An import considers the repositories that a server without a store lists, and these alone. They can be opened.
func TestImportConsidersWhatIsServed(t *testing.T) {
	t.Parallel()
	root := newDirectory(t)
	n, err := storage.New(uploadpack.New(nil, uploadpack.Options{}), storage.Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	gittest.InitAt(t, filepath.Join(root, "bad/tree/beside")) // ".git" is beside it
	gittest.InitAt(t, filepath.Join(root, ".hidden/app.git"))
	gittest.InitAt(t, filepath.Join(root, ".packhorse/new/app.git"))
	gittest.InitAt(t, filepath.Join(root, "empty/inside"))
	if err := os.Remove(filepath.Join(gittest.InitAt(t, filepath.Join(root, "plain")).Dir, "HEAD")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(gittest.Init(t).Dir, filepath.Join(root, "outside")); err != nil {
		t.Fatal(err)
	}
	found, err := findRepositories(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	var considered []string
	for _, f := range found {
		if f.refusal == nil || !strings.HasPrefix(f.refusal.Error(), "it is not served") {
			considered = append(considered, f.name)
		}
	}
	page, err := n.List(t.Context(), places.ListQuery{})
	if err != nil || !slices.Equal(page.Paths, considered) || !slices.Contains(page.Paths, ".hidden/app.git") {
		t.Errorf("List = %q, %v, and the import considers %q, want the same", page.Paths, err, considered)
	}
	for _, name := range page.Paths {
		if _, err := n.Describe(t.Context(), repoPath(name)); err != nil && fault.Is(err, fault.NotFound) {
			t.Errorf("Describe(%s) = %v, want a repository", name, err)
		}
	}
}

// checkClean checks the store, also its checksums.
func checkClean(t *testing.T, b *buckettest.Memory) {
	t.Helper()
	report, err := Check(t.Context(), b, CheckOptions{Deep: true})
	if err != nil || len(report.Problems) > 0 || report.Repositories == 0 || report.Unnamed > 0 {
		t.Errorf("Check = %+v, %v, want no problems", report, err)
	}
}

// An export has the changes of refs after the checkpoint, and a name that is used is not overwritten.
func TestExportOfTail(t *testing.T) {
	t.Parallel()
	b, root := newBucket(t), t.TempDir()
	source := gittest.Random(t, 4, gittest.Shape{Commits: 10})
	if err := os.Rename(source.Dir, filepath.Join(root, "app.git")); err != nil {
		t.Fatal(err)
	}
	source = gittest.At(t, filepath.Join(root, "app.git"))
	if _, err := ImportAll(t.Context(), b, ImportOptions{Dir: root, Node: "n"}); err != nil {
		t.Fatal(err)
	}
	s := newNode(t, b)
	setRef(t, s, "app", "refs/heads/new", source.ID("HEAD~1"))
	setRef(t, s, "app", "refs/heads/main/next", source.ID("HEAD~1")) // main is a directory now
	setRef(t, s, "app", "refs/heads/main", git.ObjectID{})
	source.Git("update-ref", "refs/heads/new", "HEAD~1")
	source.Git("update-ref", "-d", "refs/heads/main")
	source.Git("update-ref", "refs/heads/main/next", source.ID("refs/heads/new").String())
	out := filepath.Join(root, "out.git")
	if err := Export(t.Context(), b, repoPath("app"), out, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := allRefs(t, out), allRefs(t, source.Dir); got != want {
		t.Errorf("refs are\n%s\nwant\n%s", got, want)
	}
	if err := Export(t.Context(), b, repoPath("app"), out, nil); !fault.Is(err, fault.Exists) {
		t.Errorf("Export over a directory = %v, want an error of kind Exists", err)
	}
	if err := Export(t.Context(), b, repoPath("other"), out+"2", nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("Export of a missing repository = %v, want an error of kind NotFound", err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 2 {
		t.Errorf("the directory has %v, %v, want two repositories", entries, err)
	}
}

// A configured file would be missing on the nodes.
func TestImportRefusesFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	gittest.InitAt(t, filepath.Join(root, "app")).Git("config", "receive.fsck.skipList", "/etc/skip")
	report, err := ImportAll(t.Context(), newBucket(t), ImportOptions{Dir: root, Node: "n"})
	want := "--unset receive.fsck.skipList"
	if err != nil || len(report.Refused) != 1 || !strings.Contains(report.Refused[0].Text, want) {
		t.Errorf("ImportAll = %+v, %v, want a refusal with a remedy", report, err)
	}
}

// A node's copies are refused, and a symbolic link to the directory is followed.
func TestImportOfDirectories(t *testing.T) {
	t.Parallel()
	b, root, link := newBucket(t), t.TempDir(), filepath.Join(t.TempDir(), "link")
	gittest.InitAt(t, filepath.Join(root, "app"))
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	if report, err := ImportAll(t.Context(), b, ImportOptions{Dir: link, Node: "n"}); err != nil ||
		len(report.Imported) != 1 {
		t.Errorf("ImportAll of a link = %+v, %v, want one repository", report, err)
	}
	if err := os.MkdirAll(filepath.Join(root, cacheDir), 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, cacheDir, identityOfCache), "{}")
	if _, err := ImportAll(t.Context(), b, ImportOptions{Dir: root, Node: "n"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("ImportAll of a cache = %v, want an error of kind Invalid", err)
	}
}

// An import whose uploads fail leaves nothing behind, and a later one succeeds.
func TestImportAgain(t *testing.T) {
	t.Parallel()
	b, root := newBucket(t), t.TempDir()
	source := gittest.Random(t, 5, gittest.Shape{Commits: 3})
	if err := os.Rename(source.Dir, filepath.Join(root, "app.git")); err != nil {
		t.Fatal(err)
	}
	b.SetHook(func(operation, key string) error {
		if operation == "put" && strings.Contains(key, "/refs/") {
			return fault.New(fault.Unavailable, "no connection")
		}
		return nil
	})
	_, err := ImportAll(t.Context(), b, ImportOptions{Dir: root, Node: "n"})
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "app.git") {
		t.Errorf("ImportAll = %v, want an error of kind Unavailable that names app.git", err)
	}
	if keys := b.Keys(); len(keys) != 1 {
		t.Errorf("the bucket has %q, want only its identity", keys)
	}
	b.SetHook(nil)
	if report, err := ImportAll(t.Context(), b, ImportOptions{Dir: root, Node: "n"}); err != nil ||
		len(report.Imported) != 1 {
		t.Errorf("second ImportAll = %+v, %v, want one repository", report, err)
	}
	checkClean(t, b)
}

func TestImportOfARelativeDirectory(t *testing.T) {
	b, parent := newBucket(t), t.TempDir()
	source := gittest.Random(t, 5, gittest.Shape{Commits: 3})
	if err := os.Mkdir(filepath.Join(parent, "root"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(source.Dir, filepath.Join(parent, "root/app.git")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(parent)
	for _, want := range []string{"[app] []", "[] [app]"} {
		report, err := ImportAll(t.Context(), b, ImportOptions{Dir: "root", Node: "n"})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(report.Imported, report.Exists); got != want || len(report.Refused)+len(report.Differs) > 0 {
			t.Errorf("ImportAll = %+v, want imported and existing paths %s", report, want)
		}
	}
}

// A caller that leaves while the first record is written does not end the import in the middle.
func TestImportWithoutItsCaller(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	s := newNode(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	b.SetHook(func(operation, key string) error {
		if operation == "create" && strings.Contains(key, "/log/") {
			cancel()
		}
		return nil
	})
	if err := s.ImportDir(ctx, repoPath("x"), gittest.Random(t, 5, gittest.Shape{Commits: 3}).Dir); err != nil {
		t.Errorf("Import = %v", err)
	}
	checkClean(t, b)
}

// The first record of an import is written, but not confirmed. Its objects stay until the repository is deleted again.
func TestImportWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	dir := gittest.Random(t, 5, gittest.Shape{Commits: 3}).Dir
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		s := newNode(t, b)
		b.SetHook(func(operation, key string) error {
			if operation == "create" && strings.HasPrefix(key, reposPrefix) {
				return fault.New(fault.Unavailable, "503")
			}
			return nil
		})
		err := s.ImportDir(t.Context(), repoPath("x"), dir)
		if !fault.Is(err, fault.Unavailable) || len(packKeys(b)) == 0 {
			t.Errorf("Import = %v, and the bucket has the packs %q, want unavailable and packs", err, packKeys(b))
		}
		b.SetHook(nil)
		time.Sleep(time.Minute)
		report, err := Check(t.Context(), b, CheckOptions{})
		if err != nil || len(report.Problems) > 0 || report.Records != 2 {
			t.Errorf("Check = %+v, %v, want a created and deleted repository without problems", report, err)
		}
	})
}

// Check names the key of each kind of damage, and a remedy.
func TestCheckFinds(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	source := gittest.Random(t, 6, gittest.Shape{Commits: 3})
	if err := os.Rename(source.Dir, filepath.Join(root, "app.git")); err != nil {
		t.Fatal(err)
	}
	head := gittest.At(t, filepath.Join(root, "app.git")).ID("HEAD")
	for name, test := range map[string]struct {
		deep   bool
		key    string // part of the damaged key
		damage func([]byte) []byte
		text   string
	}{
		"missing pack":       {false, ".pack", func([]byte) []byte { return nil }, "does not exist"},
		"short index":        {false, ".idx", func(b []byte) []byte { return b[:len(b)-1] }, "bytes"},
		"missing checkpoint": {false, "/refs/", func([]byte) []byte { return nil }, "does not exist"},
		"flipped pack":       {true, ".pack", func(b []byte) []byte { b[20] ^= 1; return b }, "SHA-256"},
		"missing record":     {false, "/log/3ffffffffffffffe", func([]byte) []byte { return nil }, "record 2 is missing"},
		"damaged record":     {false, "/log/3ffffffffffffffe", func(b []byte) []byte { return b[:9] }, "damaged"},
		"other record": {false, "/log/3ffffffffffffffe", func(b []byte) []byte {
			copy(b[bytes.Index(b, []byte(`"txn":"`))+7:], "aaaaaa")
			return b
		}, "does not follow"},
		"missing name": {false, "names/", func([]byte) []byte { return nil }, "does not lead to"},
	} {
		b := newBucket(t)
		if _, err := ImportAll(t.Context(), b, ImportOptions{Dir: root, Node: "n"}); err != nil {
			t.Fatal(err)
		}
		s := newNode(t, b)
		setRef(t, s, "app", "refs/heads/two", head)
		setRef(t, s, "app", "refs/heads/three", head)
		var damaged string
		for _, key := range b.Keys() {
			if damaged == "" && strings.Contains(key, test.key) {
				body, _, err := b.Get(t.Context(), key, 1<<30)
				if err != nil {
					t.Fatal(err)
				}
				b.Set(key, test.damage(body))
				damaged = key
			}
		}
		report, err := Check(t.Context(), b, CheckOptions{Deep: test.deep, Paths: nil})
		if name == "other record" { // the one after it names another parent
			damaged = damaged[:len(damaged)-1] + "d"
		}
		if err != nil || len(report.Problems) != 1 || report.Problems[0].Key != damaged ||
			!strings.Contains(report.Problems[0].Text, test.text) || report.Problems[0].Remedy == "" {
			t.Errorf("%s: Check = %+v, %v, want a problem of %s with %q", name, report, err, damaged, test.text)
		}
	}
}

// Promote gives a copy another ID. Records whose objects, or earlier records, are not in the copy are removed.
func TestPromote(t *testing.T) {
	t.Parallel()
	b, root := newBucket(t), t.TempDir()
	for seed, name := range []string{"gap", "pack", "whole"} {
		source := gittest.Random(t, uint64(seed), gittest.Shape{Commits: 3})
		if err := os.Rename(source.Dir, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ImportAll(t.Context(), b, ImportOptions{Dir: root, Node: "n"}); err != nil {
		t.Fatal(err)
	}
	s := newNode(t, b)
	head := gittest.At(t, filepath.Join(root, "whole")).ID("HEAD")
	for range 3 {
		for _, path := range []string{"gap", "pack", "whole"} {
			setRef(t, s, path, "refs/heads/x", head)
		}
	}
	b.Set(replog.Open(b, idOf(t, s, "gap")).Key(3), nil)
	addPack(t, s, "pack") // record 5, without its pack
	before, err := ReadIdentity(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	requests := b.Requests()
	planned, err := Promote(t.Context(), b, PromoteOptions{DryRun: true})
	if err != nil || planned.ID != "" {
		t.Errorf("Promote without a change = %+v, %v, want no ID", planned, err)
	}
	for _, operation := range []string{"put", "create", "delete"} {
		if n := b.Requests()[operation] - requests[operation]; n != 0 {
			t.Errorf("Promote with DryRun sent %d requests of kind %s, want none", n, operation)
		}
	}
	promoted, err := Promote(t.Context(), b, PromoteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	after, err := ReadIdentity(t.Context(), b)
	if err != nil || after.ID != promoted.ID || after.ID == before.ID {
		t.Errorf("ID %s became %s, %v, want %s", before.ID, after.ID, err, promoted.ID)
	}
	if len(promoted.Dropped) != 2 || !slices.Equal(planned.Dropped, promoted.Dropped) {
		t.Errorf("Promote dropped %+v, want records of gap and pack, and the same as planned: %+v", promoted.Dropped,
			planned.Dropped)
	}
	for path, want := range map[string]uint64{"gap": 2, "pack": 4, "whole": 4} {
		record, err := replog.Open(b, idOf(t, s, path)).Head(t.Context())
		if err != nil || record.Number != want {
			t.Errorf("%s is at record %+v, %v, want %d", path, record, err, want)
		}
	}
	checkClean(t, b)
}

// busyBucket is a bucket in which something happens after the first listing of all repositories.
type busyBucket struct {
	bucket.Bucket
	after func() // nil: it has happened
}

func (b *busyBucket) List(ctx context.Context, prefix, after string, limit int) ([]bucket.Info, error) {
	list, err := b.Bucket.List(ctx, prefix, after, limit)
	if happen := b.after; prefix == "repos/" && happen != nil {
		b.after = nil
		happen()
	}
	return list, err
}

// A store in use is not promoted, and loses no record.
func TestPromoteInUse(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	s := newNode(t, b)
	if err := s.Create(t.Context(), repoPath("app"), git.SHA1, "refs/heads/main", "", nil); err != nil {
		t.Fatal(err)
	}
	busy := &busyBucket{Bucket: b, after: func() { addPack(t, s, "app") }}
	if _, err := Promote(t.Context(), busy, PromoteOptions{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("Promote of a store in use: %v, want Invalid", err)
	}
	if head, err := replog.Open(b, idOf(t, s, "app")).Head(t.Context()); err != nil || head.Number != 2 {
		t.Errorf("Head = %+v, %v, want record 2", head, err)
	}
}

// addPack appends a record that names a pack.
func addPack(t *testing.T, s *Store, path string) {
	t.Helper()
	r, err := s.find(t.Context(), repoPath(path))
	if err != nil {
		t.Fatal(err)
	}
	defer s.release(r)
	_, err = r.change(t.Context(), func(head *state) (*replog.Record, error) {
		next := head.record.Next(replog.KindPush, "n", head.record.At)
		missing := replog.Pack{Key: replog.PackKey("pack-1234", replog.NewID()), Bytes: 9, Since: next.Number}
		next.Packs = append(next.Packs, missing)
		return next, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
