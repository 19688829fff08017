package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
)

// TestStoreShape repeats stories with the repositories in a store. Each serve imports $REPOS into a new one.
func TestStoreShape(t *testing.T) {
	t.Parallel()
	scripts := []string{"testdata/push/http.txtar", "testdata/push/lfs.txtar", "testdata/push/settings.txtar",
		"testdata/push/purge.txtar", "testdata/push/rules.txtar", "testdata/push/events.txtar",
		"testdata/push/webhook.txtar"}
	if !testing.Short() {
		scripts = append(scripts, "testdata/push/after.txtar", "testdata/push/fork.txtar", "testdata/ssh/push.txtar",
			"testdata/push/create.txtar", "testdata/auth/repos.txtar")
		for _, name := range []string{"clone", "negotiation", "resolve", "sparse", "wants"} {
			scripts = append(scripts, "testdata/fetch/"+name+".txtar")
		}
	}
	runStoriesIn(t, shape{store: buckettest.Versitygw(t)}, "", makeTemplates(t), "2", scripts...)
}

// intoStore imports $REPOS into a new store, and returns the flags of a server of it. Its state directory is that of a
// server of $REPOS, so that commands with --root $REPOS reach it.
func (s *story) intoStore(ts *testscript.TestScript, args []string) []string {
	o := s.shape.store.Options(filepath.Base(s.sockets) + fmt.Sprint(s.stores))
	cache := filepath.Join(s.sockets, fmt.Sprint("cache", s.stores))
	s.stores++
	text := ""
	args = slices.Clone(args)
	if i := slices.Index(args, "--config"); i >= 0 {
		given, err := os.ReadFile(ts.MkAbs(args[i+1]))
		ts.Check(err)
		text, args = string(given), slices.Delete(args, i, i+2)
	}
	s.config = ts.MkAbs("store-shape.toml") // paths in the configuration are relative to the file
	text += fmt.Sprintf("\n[store]\nurl = %q\nendpoint = %q\ncredentials_file = %q\n", o.URL, o.Endpoint,
		o.CredentialsFile)
	ts.Check(os.WriteFile(s.config, []byte(text), 0o600))
	s.packhorse(ts, "store", "init", "--config", s.config)
	s.packhorse(ts, "store", "import", ts.Getenv("REPOS"), "--config", s.config)
	args = append(args, "--config", s.config, "--root", cache)
	if !slices.Contains(args, "--state") {
		args = append(args, "--state", filepath.Join(ts.Getenv("REPOS"), ".packhorse"))
	}
	return args
}

// packhorse runs a command and returns its output.
func (s *story) packhorse(ts *testscript.TestScript, args ...string) string {
	cmd := exec.Command(filepath.Join(binDir, "packhorse"), args...)
	cmd.Dir, cmd.Env = ts.MkAbs("."), append(gittest.Env(), "HOME="+ts.Getenv("HOME"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		ts.Fatalf("packhorse %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// cmdExport replaces the repositories below $REPOS by those of the store, so that the script can look into them. If
// there is no store, they are the repositories.
func cmdExport(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	if neg || len(args) > 0 {
		ts.Fatalf("usage: export")
	}
	if s.shape.store == nil {
		return
	}
	list := bufio.NewScanner(strings.NewReader(s.packhorse(ts, "repo", "list", "--root", ts.Getenv("REPOS"))))
	for list.Scan() {
		dir := filepath.Join(ts.Getenv("REPOS"), list.Text()+".git")
		ts.Check(os.RemoveAll(dir))
		ts.Check(os.MkdirAll(filepath.Dir(dir), 0o755))
		s.packhorse(ts, "repo", "export", list.Text(), dir, "--config", s.config)
	}
}
