package command

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// filesBelow lists all files below a directory with their owners, sizes and times of change.
func filesBelow(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil {
			list = append(list, path+" "+info.Mode().String()+" "+info.ModTime().String())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// readingCommands create nothing and change nothing; those behind "server" fail without one.
var readingCommands = []string{
	"repo list", "repo list --json", "repo info app", "resolve app main", "token list", "__complete repo info a",
	"token revoke nobody", "search status", "workers", "nodes", "drain node a", "debug dump --patience 10ms", "top --once",
	"config show",
}

func TestReadingCommandsCreateNothing(t *testing.T) {
	t.Parallel()
	root := socketDir(t)
	r := gittest.Init(t)
	r.Git("update-ref", "refs/heads/main", r.Commit("x").String())
	if err := os.CopyFS(filepath.Join(root, "app.git"), os.DirFS(r.Dir)); err != nil {
		t.Fatal(err)
	}
	before := filesBelow(t, root)
	for _, command := range readingCommands {
		args := append(strings.Fields(command), "--root", root)
		if strings.HasPrefix(command, "__complete") {
			args = append([]string{"__complete", "repo", "info", "--root", root}, "a")
		}
		code, out, errs := runMain(args...)
		if works := strings.HasPrefix(command, "re"); works && (code != 0 || out == "") {
			t.Errorf("%s ended with %d: %s%s", command, code, out, errs)
		}
		if after := filesBelow(t, root); !slices.Equal(before, after) {
			t.Fatalf("%s changed the root from\n%q\nto\n%q", command, before, after)
		}
	}
}

func TestRootHasToExist(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "typo")
	commands := append([]string{"serve", "storage --listen unix:x", "token create a", "repo create a", "repo maintain a",
		"repo remove a --yes",
		"repo import a " + t.TempDir()}, readingCommands[:len(readingCommands)-1]...)
	for _, command := range commands {
		if strings.HasPrefix(command, "__complete") {
			continue
		}
		code, _, errs := runMain(append(strings.Fields(command), "--root", root)...)
		if code != exitUsage || !strings.Contains(errs, "the root "+root+" does not exist") {
			t.Errorf("%s ended with %d: %s", command, code, errs)
		}
		if _, err := os.Stat(root); err == nil {
			t.Fatalf("%s made the root", command)
		}
	}
}

// Commands find the state directory of a server that has --state by the root alone, also when it has ended.
func TestStateIsRecorded(t *testing.T) {
	t.Parallel()
	root, state := socketDir(t), socketDir(t)
	startServeIn(t, state, "--root", root, "--state", state)
	ok := func(want string, args ...string) {
		t.Helper()
		if code, out, errs := runMain(append(args, "--root", root)...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%q ended with %d: %s%s", args, code, out, errs)
		}
	}
	ok("created app.git", "repo", "create", "app")
	ok("app.git\n", "repo", "list")
	ok("phk_", "token", "create", "me")
	ok("me/1", "token", "list")
	if _, err := os.Stat(filepath.Join(state, "tokens")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, ".packhorse", "serve.json")); err == nil {
		t.Error("a command made another state directory")
	}
}

func TestStateNote(t *testing.T) {
	t.Parallel()
	root, state := t.TempDir(), t.TempDir()
	file := filepath.Join(root, ".packhorse", "state.json")
	found := func(want, wantErr string) {
		t.Helper()
		got, _, err := statedir.ReadNote(root)
		if got != want || (wantErr == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("the note says %q (%v), want %q (%s)", got, err, want, wantErr)
		}
	}
	note := func(state string) {
		t.Helper()
		if err := statedir.WriteNote(root, state); err != nil {
			t.Fatal(err)
		}
	}
	found("", "")
	note(state)
	found(state, "")
	second := t.TempDir()
	note(second)
	found(second, "")
	if left, err := filepath.Glob(filepath.Join(root, ".packhorse", "*")); err != nil || len(left) != 1 {
		t.Errorf("left over: %q", left)
	}
	if err := os.Remove(second); err != nil {
		t.Fatal(err)
	}
	found(second, "does not exist here; name it with --state DIR, or remove")
	note(filepath.Join(root, ".packhorse"))
	found("", "")
	write := func(text string, mode fs.FileMode) {
		t.Helper()
		os.Remove(file)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	text, _ := json.Marshal(statedir.StateNote{State: state})
	write(string(text), 0o666)
	found("", "others than the owner")
	write(`{"state": "relative"}`, 0o600)
	found("", "does not name a state directory")
	write("{", 0o600)
	found("", "does not name a state directory")
	os.Remove(file)
	if err := os.Symlink(filepath.Join(state, "x"), file); err != nil {
		t.Fatal(err)
	}
	found("", "name it with --state DIR")
}

// TestStateOwner: who owns a root does not have commands of root's run as root.
func TestStateOwner(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	const somebody = 54321
	root, ofRoot, own := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{root, own} {
		if err := os.Chown(dir, somebody, somebody); err != nil {
			t.Fatal(err)
		}
	}
	is := func(what string, want int, of target) {
		t.Helper()
		of.root = root
		cfg, err := of.load()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got, err := of.stateOwner(&cfg); err != nil || got.Uid != want {
			t.Errorf("%s: commands run as %d (%v), want %d", what, got.Uid, err, want)
		}
	}
	note := func(state string) {
		t.Helper()
		if err := statedir.WriteNote(root, state); err != nil {
			t.Fatal(err)
		}
	}
	is("no state directory", somebody, target{})
	is("a state directory that is named", 0, target{state: ofRoot})
	note(own)
	is("a note", somebody, target{})
	note(ofRoot)
	is("a note of root's", 0, target{})
	if err := os.Chown(statedir.NoteFile(root), somebody, somebody); err != nil {
		t.Fatal(err)
	}
	is("somebody's note of a directory of root's", somebody, target{})
	is("the same, and a state directory that is named", 0, target{state: ofRoot})
	if err := os.RemoveAll(filepath.Join(root, ".packhorse")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(ofRoot, filepath.Join(root, ".packhorse")); err != nil {
		t.Fatal(err)
	}
	is("a link to a directory of root's", somebody, target{})
}

// TestNewerState runs commands on a state directory of a newer version. They change nothing.
func TestNewerState(t *testing.T) {
	t.Parallel()
	root := socketDir(t)
	bundle := filepath.Join(t.TempDir(), "a.bundle")
	r := gittest.Init(t)
	r.Git("update-ref", "refs/heads/main", r.Commit("x").String())
	r.Git("bundle", "create", bundle, "main")
	for _, args := range [][]string{{"token", "create", "alice"}, {"repo", "create", "app"}} {
		if code, _, errs := runMain(append(args, "--root", root)...); code != exitOK {
			t.Fatalf("%q: %d, %s", args, code, errs)
		}
	}
	write := func(format string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, ".packhorse/format.json"), []byte(format), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for format, want := range map[string]string{
		`{"format":2,"version":"9.0.0"}`: "format 2 of packhorse 9.0.0", `{}`: "damaged", `{"format":-5}`: "damaged",
	} {
		write(format)
		before := filesBelow(t, root)
		for _, args := range [][]string{{"token", "create", "bob"}, {"token", "revoke", "alice"}, {"repo", "create", "new"},
			{"repo", "import", bundle, "new"}, {"backup", filepath.Join(t.TempDir(), "backup")}, {"webhook", "list"}} {
			code, _, errs := runMain(append(args, "--root", root)...)
			if code == exitOK || !strings.Contains(errs, want) {
				t.Errorf("%q with %s: %d, %s; want %q", args, format, code, errs, want)
			}
		}
		if after := filesBelow(t, root); !slices.Equal(before, after) {
			t.Errorf("with %s files changed from %q to %q", format, before, after)
		}
	}
}
