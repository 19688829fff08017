package command

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// startServe runs a server until the test ends. It answers when this returns.
func startServe(t *testing.T, args ...string) {
	t.Helper()
	state := ""
	for i, a := range args {
		if a == "--root" {
			state = filepath.Join(args[i+1], ".packhorse")
		}
	}
	startServeIn(t, state, args...)
}

// startServeIn is startServe with another state directory than that below the root.
func startServeIn(t *testing.T, state string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var log bytes.Buffer
	done := make(chan int, 1)
	go func() {
		done <- Main(ctx, Env{Args: append([]string{"serve", "--http", "127.0.0.1:0", "--ops", "", "--shutdown-grace", "1s"},
			args...), Stdout: &log, Stderr: &log})
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != 0 {
			t.Errorf("the server ended with %d: %s", code, log.String())
		}
	})
	gittest.WaitFor(t, "the server writes serve.json", func() bool {
		var s statedir.Server
		text, _ := os.ReadFile(filepath.Join(state, "serve.json"))
		return json.Unmarshal(text, &s) == nil && s.Admin != ""
	})
}

// TestRepoCommands runs every command without a server, beside one, and over a node's port.
func TestRepoCommands(t *testing.T) {
	t.Parallel()
	from := gittest.Init(t)
	from.Git("update-ref", "refs/heads/main", from.Commit("x").String())
	for _, where := range []string{"alone", "beside", "node"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			root := socketDir(t)
			to := []string{"--root", root}
			switch where {
			case "beside":
				startServe(t, "--root", root)
			case "node":
				startServe(t, "--root", root, "--listen", "unix:"+root+"/node.sock")
				to = []string{"--node", "unix:" + root + "/node.sock"}
			}
			repo := func(want string, code int, args ...string) {
				t.Helper()
				where := to
				if args[0] == "import" {
					where = []string{"--root", root}
				}
				got, out, errs := runMain(append(append([]string{"repo"}, args...), where...)...)
				if got != code || !strings.Contains(out+errs, want) {
					t.Errorf("repo %q ended with %d, want %d and %q\n%s%s", args, got, code, want, out, errs)
				}
			}
			repo("created team/app.git\n", 0, "create", "team/app", "--default-branch", "trunk")
			repo("refs/heads/trunk (unborn)", 0, "info", "team/app")
			repo("repository team/app already exists", exitFailed, "create", "team/app.git")
			repo("path component", exitFailed, "create", "x/-y")
			repo("imported team/tool.git: 1 refs, 3 objects", 0, "import", "team/tool", from.Dir)
			repo(`"path": "team/two.git"`, 0, "import", "team/two", from.Dir, "--json")
			repo("invalid source", exitUsage, "import", "team/ext", "ext::sh -c true")
			repo("team/app.git\nteam/tool.git\nteam/two.git\n", 0, "list")
			repo(`"team/tool.git"`, 0, "list", "team/t", "--json")
			repo("bitmap, commit-graph, multi-pack-index", 0, "info", "team/tool")
			repo(`"head_oid": "`, 0, "info", "team/tool", "--json")
			if err := os.MkdirAll(root+"/team/tool.git/hooks", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(root+"/team/tool.git/hooks/update", nil, 0o755); err != nil {
				t.Fatal(err)
			}
			repo("hooks/update (pushes are refused)", 0, "info", "team/tool")
			repo("changed the settings of team/tool\n", 0, "set", "team/tool", "--description", "a tool", "--quota", "10GiB",
				"--read-only", "--hide", "refs/x", "--label", "team=web,tier=1")
			repo(" 10 GiB\nstate                         read-only\nhidden refs                   refs/x\nlabel team ", 0,
				"info", "team/tool")
			repo("changed", 0, "set", "team/tool", "--read-only=false", "--remove", "quota_bytes,labels/tier", "--label", "a=")
			repo(`"read_only": false`, 0, "info", "team/tool", "--json")
			repo("not a size", exitUsage, "set", "team/tool", "--quota", "x")
			repo("unknown setting", exitFailed, "set", "team/tool", "--remove", "x")
			repo("created", 0, "create", "team/new", "--description", "new", "--label", "a=b")
			repo("team/new.git\n", 0, "list", "--label", "a=b")
			repo("LABELS  DESCRIPTION\nteam/new.git  0 B   0     -       -        -      a=b     new\n", 0, "list", "team/n",
				"--long")
			repo(`"object_format": "sha1"`, 0, "list", "--label", "a", "--long", "--json")
			repo("created", 0, "create", "team/copy", "--fork-of", "team/tool", "--label", "copy=1")
			repo("label copy                    1\n", 0, "info", "team/copy")
			repo("removed", 0, "remove", "team/copy", "--yes")
			repo(" new\nlabel a                       b\n", 0, "info", "team/new")
			repo("removed", 0, "remove", "team/new", "--yes")
			repo("team/tool: 1 packs and 0 loose objects", 0, "maintain", "team/tool")
			repo("was not removed", exitFailed, "remove", "team/two")
			repo("refs? Enter its path to confirm", exitFailed, "remove", "team/two")
			repo("removed team/two\n", 0, "remove", "team/two", "--yes")
			repo("no repository team/two here", exitFailed, "remove", "team/two", "--yes")
			repo("takes one PATH", exitUsage, "maintain")
			complete := append(append([]string{"__complete", "repo", "info"}, to...), "team/t")
			if _, out, _ := runMain(complete...); !strings.HasPrefix(out, "team/tool.git\n:4") {
				t.Errorf("completion of team/t = %q, want team/tool.git", out)
			}
		})
	}
	if code, _, errs := runMain("repo", "list"); code != exitUsage || !strings.Contains(errs, "--root DIR") {
		t.Errorf("repo list without a root = %d, %s, want %d and --root DIR", code, errs, exitUsage)
	}
}

// TestRepoWithoutASocket checks that a server in a directory too deep for a socket serves, and that commands report the
// problem.
func TestRepoWithoutASocket(t *testing.T) {
	t.Parallel()
	root := filepath.Join(socketDir(t), strings.Repeat("deep/", 30))
	if err := os.MkdirAll(root, 0o700); err != nil {
		t.Fatal(err)
	}
	code, _, errs := runMain("repo", "create", "app", "--root", root)
	if code != exitFailed || !strings.Contains(errs, "--state") {
		t.Errorf("%d %s", code, errs)
	}
	if code, out, errs := runMain("repo", "create", "app", "--root", root, "--state", socketDir(t)); code != 0 {
		t.Errorf("%d %s%s", code, out, errs)
	}
}
