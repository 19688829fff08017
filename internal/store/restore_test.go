package store

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// The bucket is sufficient: restore.sh needs curl and git only. The refs have odd names, and changes after the
// checkpoint.
func TestRestoreScript(t *testing.T) {
	t.Parallel()
	server := buckettest.Versitygw(t)
	b := server.Bucket("git/store")
	if _, err := Init(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	root := newDirectory(t)
	object := lfsFile(lfsObjectOf("large").OID)
	if err := os.MkdirAll(filepath.Join(root, "team/app.git", filepath.Dir(object)), 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "team/app.git", object), "large")
	if _, err := ImportAll(t.Context(), b, ImportOptions{Dir: root, Node: "n"}); err != nil {
		t.Fatal(err)
	}
	setAsideAll(t, b)
	source := gittest.At(t, filepath.Join(root, "team/app.git"))
	changeRefs(t, b, source)
	out := filepath.Join(t.TempDir(), "out")
	env := append(os.Environ(), "S3_ENDPOINT=http://"+server.Address, "AWS_ACCESS_KEY_ID="+server.AccessKey,
		"AWS_SECRET_ACCESS_KEY="+server.SecretKey)
	run := func(args ...string) (string, error) {
		script := exec.CommandContext(t.Context(), "../../deploy/store/restore.sh", args...)
		script.Env = env
		text, err := script.CombinedOutput()
		return string(text), err
	}
	restore := func(args ...string) string {
		t.Helper()
		text, err := run(args...)
		if err != nil {
			t.Fatalf("restore.sh %q = %v\n%s", args, err, text)
		}
		return text
	}
	if got := restore("-l", "s3://bucket/git/store"); strings.Count(got, "\n") != 4 ||
		!strings.Contains(got, "team/app\t") {
		t.Errorf("restore.sh -l = %s, want 4 repositories", got)
	}
	if got := restore("-l", "s3://bucket/git/store", "team/app.git"); strings.Count(got, "\n") != 1 ||
		!strings.HasPrefix(got, "team/app\t") {
		t.Errorf("restore.sh -l team/app.git = %s, want one repository", got)
	}
	restore("s3://bucket/git/store", out)
	for path, source := range map[string]string{"empty": "empty", "team/Sub/sha256": "team/Sub/sha256.git",
		"team/app": "team/app.git"} {
		restored := filepath.Join(out, path+".git")
		if got, want := allRefs(t, restored), allRefs(t, filepath.Join(root, source)); got != want {
			t.Errorf("%s was restored with\n%s\nwant\n%s", path, got, want)
		}
		gittest.At(t, restored).Git("fsck", "--full", "--strict")
	}
	if got := appConfigOf(t, filepath.Join(out, "team/app.git")); !slices.Equal(got, appConfig) {
		t.Errorf("the configuration was restored as %q, want %q", got, appConfig)
	}
	if got, err := os.ReadFile(filepath.Join(out, "team/app.git", object)); err != nil || string(got) != "large" {
		t.Errorf("the LFS object was restored as %q, %v", got, err)
	}
	restore("-n", "1", "s3://bucket/git/store", out+"1", "team/app")
	if got := allRefs(t, filepath.Join(out+"1", "team/app.git")); strings.Contains(got, "refs/heads/new") {
		t.Errorf("record 1 was restored with the refs of a later one:\n%s", got)
	}
	for path, source := range map[string]string{"team/app": "team/app.git", "team/Sub/sha256.git": "team/Sub/sha256.git"} {
		restoreOne(t, b, restore, out+"3", path)
		restored := filepath.Join(out+"3", strings.TrimSuffix(path, ".git")+".git")
		if got, want := allRefs(t, restored), allRefs(t, filepath.Join(root, source)); got != want {
			t.Errorf("%s alone was restored with\n%s\nwant\n%s", path, got, want)
		}
	}
	packs, err := filepath.Glob(filepath.Join(server.Dir, "bucket/git/store/repos/*/packs/*.pack"))
	if err != nil || packs == nil {
		t.Fatalf("packs are %q, %v", packs, err)
	}
	for _, pack := range packs {
		write(t, pack, "damaged")
	}
	text, err := run("s3://bucket/git/store", out+"2")
	if err == nil || !strings.Contains(text, "object git/store/repos/") || !strings.Contains(text, "is damaged") ||
		!strings.Contains(text, " team/app") {
		t.Errorf("restore of damaged packs = %v, %s, want an error that names objects and repositories", err, text)
	}
	if _, err := os.Stat(filepath.Join(out+"2", "empty.git")); err != nil {
		t.Errorf("restore stopped at a damaged pack: %v", err)
	}
	if text, err := run("-l", "s3://bucket/git/wrong"); err == nil || !strings.Contains(text, "check the prefix") {
		t.Errorf("restore.sh -l of a wrong prefix = %v, %s, want an error", err, text)
	}
}

// restoreOne restores one repository of the bucket while the records of all others cannot be read.
func restoreOne(t *testing.T, b bucket.Bucket, restore func(args ...string) string, out, path string) {
	t.Helper()
	s, end, err := openTemporary(t.Context(), b, t.TempDir(), "n")
	if err != nil {
		t.Fatal(err)
	}
	id := idOf(t, s, path)
	end()
	hidden := map[string][]byte{}
	err = bucket.Each(t.Context(), b, reposPrefix, func(info bucket.Info) error {
		if strings.Contains(info.Key, "/log/") && !strings.HasPrefix(info.Key, reposPrefix+id) {
			hidden[info.Key], _, err = b.Get(t.Context(), info.Key, 1<<20)
		}
		return err
	})
	if err != nil || len(hidden) == 0 {
		t.Fatalf("%d other records, %v", len(hidden), err)
	}
	set := func(body func(key string) []byte) {
		for key := range hidden {
			if err := errors.Join(b.Delete(t.Context(), key), b.Create(t.Context(), key, body(key))); err != nil {
				t.Fatal(err)
			}
		}
	}
	set(func(string) []byte { return []byte("damaged") })
	restore("s3://bucket/git/store", out, path)
	set(func(key string) []byte { return hidden[key] })
}

// changeRefs changes refs in the store and in its source.
func changeRefs(t *testing.T, b bucket.Bucket, source *gittest.Repo) {
	t.Helper()
	id, err := ReadIdentity(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	s, err := open(Options{Bucket: b, URL: "s3://bucket/git/store", Node: "n", Cache: hydrate.Options{Root: t.TempDir()}},
		id, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, name := range []git.RefName{"refs/heads/new", `refs/heads/"quoted"&<é>`, "refs/heads/latin-\xe9-\xff",
		"refs/heads/new"} {
		setRef(t, s, "team/app", name, source.ID("HEAD~1"))
		source.Git("update-ref", string(name), "HEAD~1")
	}
	addSettings(t, s, "team/app", hostileSettings...)
	setRef(t, s, "team/app", "refs/heads/loose", git.ObjectID{})
	source.Git("update-ref", "-d", "refs/heads/loose")
	setRef(t, s, "team/app", "refs/heads/loose/below", source.ID("HEAD~1"))
	source.Git("update-ref", "refs/heads/loose/below", "HEAD~1")
}

// setAsideAll sets the LFS objects of team/app aside, as a collection does.
func setAsideAll(t *testing.T, b bucket.Bucket) {
	t.Helper()
	s, end, err := openTemporary(t.Context(), b, t.TempDir(), "n")
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	p, err := s.Acquire(t.Context(), repoPath("team/app"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	removed := 0
	err = p.LFS().Collect(t.Context(), objects.Collection{Before: time.Now().Add(time.Minute),
		Named:   func() (map[lfs.OID]bool, error) { return nil, nil },
		Removed: func(lfs.Object) { removed++ }})
	if err != nil || removed != 1 {
		t.Fatalf("Collect removed %d objects, %v, want one", removed, err)
	}
}

// A restored fork has what its refs need, and nothing else of its source.
func TestRestoreFork(t *testing.T) {
	t.Parallel()
	server := buckettest.Versitygw(t)
	b := server.Bucket("git/forks")
	if _, err := Init(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	s, end, err := openTemporary(t.Context(), b, t.TempDir(), "n")
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	clone := newClone(t)
	secret := clone.Commit("secret")
	clone.Git("update-ref", "refs/heads/secret", secret.String())
	if err := s.ImportDir(t.Context(), repoPath("app"), clone.Dir); err != nil {
		t.Fatal(err)
	}
	fork(t, s, "app", "ann", places.ForkOptions{Refs: []string{"refs/heads/main"}})
	out := t.TempDir()
	script := exec.CommandContext(t.Context(), "../../deploy/store/restore.sh", "s3://bucket/git/forks", out, "ann")
	script.Env = append(os.Environ(), "S3_ENDPOINT=http://"+server.Address, "AWS_ACCESS_KEY_ID="+server.AccessKey,
		"AWS_SECRET_ACCESS_KEY="+server.SecretKey)
	if text, err := script.CombinedOutput(); err != nil {
		t.Fatalf("restore.sh = %v\n%s", err, text)
	}
	restored := gittest.At(t, filepath.Join(out, "ann.git"))
	restored.Git("fsck", "--full", "--strict")
	if got := restored.Git("cat-file", "--batch-all-objects", "--batch-check"); strings.Contains(got, secret.String()) {
		t.Error("the restored fork has an object that its refs do not reach")
	}
}
