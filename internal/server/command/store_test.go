package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/server/config"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
	"github.com/packhorse-git/packhorse/internal/store"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
)

// storeConfig writes a configuration of a store on a server, and returns its path.
func storeConfig(t *testing.T, s *buckettest.Server, prefix string) string {
	t.Helper()
	o := s.Options(prefix)
	file := filepath.Join(t.TempDir(), "store.toml")
	text := fmt.Sprintf("[store]\nurl = %q\nendpoint = %q\npath_style = true\ncredentials_file = %q\n", o.URL, o.Endpoint,
		o.CredentialsFile)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestStoreFlags(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ args, want string }{
		{"store init", "which store? name it with --store s3://BUCKET/PREFIX"},
		{"store init https://git-prod/", "does not name a bucket"},
		{"store init s3://git-prod --store s3://git-dev", "takes one URL"},
		{"store check --store s3://git-prod ../x", "path"},
		{"store gc --store s3://git-prod --older-than never", `--older-than: "never" is not a period`},
		{"store import --store s3://git-prod", "takes one DIR"},
		{"store check s3://git-prod", "name the store with --store"},
		{"repo export app --store s3://git-prod", "takes a PATH and a DIR"},
		{"repo export app new --root .", "copy the directory of app, or use git clone --mirror"},
		{"store check --store s3://Git_Prod/x", `S3 does not permit the bucket name "Git_Prod": `},
	} {
		code, out, errs := runMain(strings.Fields(test.args)...)
		if code != exitUsage || !strings.Contains(errs, test.want) {
			t.Errorf("packhorse %s = %d, %s%s, want %d and %q", test.args, code, out, errs, exitUsage, test.want)
		}
	}
}

func TestNextStepOfInit(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]storeFinder{
		"packhorse store import DIR --store s3://b/p, or packhorse serve --store s3://b/p --root CACHE-DIR": {
			flags: config.StoreConfig{URL: "s3://b/p"}},
		"packhorse store import DIR --config x.toml, or packhorse serve --config x.toml --root CACHE-DIR": {
			config: "x.toml"},
		"write the url and the values of the flags into the table [store] of a FILE; then packhorse store import DIR " +
			"--config FILE, or packhorse serve --config FILE --root CACHE-DIR": {
			flags: config.StoreConfig{URL: "s3://b/p", Region: "eu-central-1"}},
	} {
		if got := f.nextStep(); got != want {
			t.Errorf("nextStep of %+v = %q, want %q", f, got, want)
		}
	}
}

// A node that is refused does not change where commands find the one that runs.
func TestRefusedNodeLeavesNote(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	state, err := statedir.Open(filepath.Join(root, ".packhorse"))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	if err := state.Write(statedir.Server{PID: os.Getpid(), Root: root}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, ".packhorse/store.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	serve := []string{"serve", "--root", root, "--http", "127.0.0.1:0", "--ops", ""}
	for want, args := range map[string][]string{
		"stop it, or give this one another root\n": {"--store", "s3://b/p"},
		"is the cache of a store":                  {"--state", t.TempDir()},
	} {
		if code, _, errs := runMain(append(serve, args...)...); code != exitFailed || !strings.Contains(errs, want) {
			t.Errorf("packhorse serve %q = %d, %s, want %d and %q", args, code, errs, exitFailed, want)
		}
	}
	if _, err := os.Stat(statedir.NoteFile(root)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the note of the state directory: %v, want none", err)
	}
}

// TestStoreCommands runs the commands against a real S3 server. It is not parallel: the S3 server ends with the thread
// that started it, and search processes of other tests end threads.
func TestStoreCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds, for a thorough probe")
	}
	s := buckettest.Versitygw(t)
	file := storeConfig(t, s, "store")
	run := func(want string, code int, args ...string) string {
		t.Helper()
		got, out, errs := runMain(append(args, "--config", file)...)
		if got != code || !strings.Contains(out+errs, want) {
			t.Errorf("packhorse %q = %d, want %d and %q\n%s%s", args, got, code, want, out, errs)
		}
		return out
	}
	run("s3://bucket-2/store cannot be a store: see", exitFailed, "store", "init", "s3://bucket-2/store")
	run("run packhorse store init", exitFailed, "store", "check")
	run("run packhorse store init", exitFailed, "serve", "--root", t.TempDir(), "--http", "127.0.0.1:0", "--ops", "")
	if out := run("created the store s3://bucket/store with ID ", exitOK, "store", "init"); !strings.Contains(out,
		"next: packhorse store import DIR --config "+file+", or packhorse serve --config "+file+" --root CACHE-DIR\n") {
		t.Errorf("packhorse store init: %s, want the next commands with --config", out)
	}
	run("is inside the store s3://bucket/store with ID ", exitFailed, "store", "init", "s3://bucket/store/a/b")
	var result struct {
		Created bool
		ID      string
		Probe   struct{ Checks []struct{ OK bool } }
	}
	if err := json.Unmarshal([]byte(run("", exitOK, "store", "init", "--json")), &result); err != nil || result.Created ||
		result.ID == "" || len(result.Probe.Checks) == 0 {
		t.Errorf("second init = %+v, %v, want the existing store and its checks", result, err)
	}

	from := gittest.Init(t)
	from.Git("update-ref", "refs/heads/main", from.Commit("x").String())
	root, exported := t.TempDir(), filepath.Join(t.TempDir(), "team/app.git")
	if err := os.CopyFS(filepath.Join(root, "team/app.git"), os.DirFS(from.Dir)); err != nil {
		t.Fatal(err)
	}
	_, out, _ := runMain("doctor", t.TempDir(), "--config", file) // the exit code depends on the machine
	if !strings.Contains(out, "store: 0 B of at most ") || !strings.Contains(out, "/store has ID "+result.ID) {
		t.Errorf("packhorse doctor: %s, want the ID of the store and the space of copies", out)
	}
	_, out, _ = runMain("doctor", "--config", file)
	if want := "not found: neither flags nor the configuration name its root"; !strings.Contains(out, want) {
		t.Errorf("packhorse doctor without a root: %s, want %q", out, want)
	}
	run("would import team/app", exitOK, "store", "import", root, "--dry-run")
	run("imported team/app", exitOK, "store", "import", root)
	run("skipped team/app", exitOK, "store", "import", root)
	run("checked 1 repositories", exitOK, "store", "check", "--deep")
	run("exported team/app", exitOK, "repo", "export", "team/app", exported)
	run("exists already", exitFailed, "repo", "export", "team/app", exported)
	options, cache := s.Options("store"), t.TempDir()
	node, err := store.Open(t.Context(), store.Options{Bucket: s.Bucket("store"), URL: options.URL, Node: "n",
		Cache: hydrate.Options{Root: cache}})
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := runMain("repo", "export", "team/app", exported+"2", "--root", cache, "--endpoint",
		options.Endpoint, "--path-style", "--credentials-file", options.CredentialsFile); code != exitOK {
		t.Errorf("repo export with the root of a node: %d, %s%s", code, out, errs)
	}
	run("would delete 0 objects", exitOK, "store", "gc", "--dry-run")
	run("drop records of 0 repositories", exitOK, "store", "promote", "--dry-run")
	run("the store was not promoted", exitFailed, "store", "promote")
	run("is a store of its own now", exitOK, "store", "promote", "--yes")
	run("checked 1 repositories", exitOK, "store", "check", "team/app")
}
