package receivepack

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

// hooks makes a directory with hooks of the administrator's; the values are shell.
func hooks(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// decider answers by a function.
type decider func(ctx context.Context, p *Push) error

func (d decider) Decide(ctx context.Context, p *Push) error { return d(ctx, p) }

func TestHooksReadAndWrite(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	w := newWorld(t, Options{RepositoryHooks: IgnoreHooks, Hooks: hooks(t, map[string]string{
		"pre-receive": `read old new ref; echo "pre $old $new $ref" >>` + log + `; env | sort | grep -E '^(PACKHORSE_(USER|REPO|ADD)|GIT_PUSH|GIT_DIR)' >>` + log + `
git cat-file -e "$new" && git rev-parse --verify -q "$ref" >/dev/null || echo "not there yet" >>` + log + `
test -n "$GIT_QUARANTINE_PATH" && test -d "$GIT_QUARANTINE_PATH" && printf 'looks \033[31mgood\n'`,
		"update": `echo "update $1 $2 $3" >>` + log + `; case $1 in *bad) echo "no $1" >&2; exit 1;; esac`,
		"post-receive": `while read old new ref; do echo "post $ref" >>` + log + `; done; git rev-parse --verify -q main >>` +
			log + `; echo welcome; exit 1`,
	})})
	w.Git("config", "core.hooksPath", hooks(t, map[string]string{"pre-receive": "exit 1",
		"reference-transaction": "exit 1"}))
	c := w.clone()
	id := c.ID("main").String()
	out, err := w.push(c, "-o", "a=1", "-o", "$(id); `x`", "main", "main:refs/heads/bad")
	if err == nil || !strings.Contains(out, "looks \x1b[31mgood") || !strings.Contains(out, "remote: no refs/heads/bad") ||
		!strings.Contains(out, "hook declined") || !strings.Contains(out, "welcome") {
		t.Errorf("git says %v\n%s", err, out)
	}
	text, _ := os.ReadFile(log)
	zero := strings.Repeat("0", 40)
	for _, want := range []string{
		"pre " + zero + " " + id + " refs/heads/main\n",
		"GIT_DIR=.\nGIT_PUSH_OPTION_0=a=1\nGIT_PUSH_OPTION_1=$(id); `x`\nGIT_PUSH_OPTION_COUNT=2\n",
		"PACKHORSE_ADDRESS=192.0.2.1\nPACKHORSE_REPOSITORY=team/app\nPACKHORSE_USER=tester\n", "not there yet\n",
		"update refs/heads/bad " + zero + " " + id + "\n", "update refs/heads/main " + zero + " " + id +
			"\n", "post refs/heads/main\n" + id + "\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "post refs/heads/bad") || w.refs() != "refs/heads/main "+id {
		t.Errorf("the refs are %s, the hooks say\n%s", w.refs(), text)
	}
	w.clean()
}

// Git reports the deletion of a missing ref, and runs no post-receive hook for it. We do the same.
func TestNoHookForMissingRefs(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	w := newWorld(t, Options{Hooks: hooks(t, map[string]string{"post-receive": "cat >>" + log})})
	w.server.options.Recorder = w
	id := w.Commit("one")
	w.Git("update-ref", "refs/heads/old", id.String())
	none := zeros(id)
	for _, old := range []string{none, strings.Repeat("12", 20)} {
		out, err := w.post(commands(reports, old+" "+none+" refs/heads/never"))
		if err != nil || !strings.Contains(out, "ok refs/heads/never") {
			t.Errorf("%v\n%s", err, out)
		}
	}
	if _, err := os.Stat(log); err == nil || w.changed() != "" {
		t.Errorf("a hook was asked (%v), others were told of %s", err, w.changed())
	}
	if out, err := w.post(commands(reports, none+" "+none+" refs/heads/never",
		none+" "+none+" refs/heads/old")); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	text, _ := os.ReadFile(log)
	if want := none + " " + none + " refs/heads/old\n"; string(text) != want ||
		w.changed() != "refs/heads/old 0000000 0000000" {
		t.Errorf("the hook reads %q, others were told of %s", text, w.changed())
	}
	w.clean()
}

// If a hook or webhook that decides about a push fails in any way, no ref is changed.
func TestDecisionsFailClosed(t *testing.T) {
	t.Parallel()
	long := 10 * time.Minute
	for name, test := range map[string]struct {
		options func(t *testing.T) Options
		says    string
	}{
		"denied": {func(t *testing.T) Options {
			return Options{Decider: decider(func(_ context.Context, p *Push) error {
				return fault.New(fault.Denied, "%s may not\n\x1b[2Jpush", p.Pusher.Name)
			})}
		}, "tester may not"},
		"declined": {func(t *testing.T) Options {
			return Options{Hooks: hooks(t, map[string]string{"pre-receive": "cat >/dev/null; echo sorry; exit 3"})}
		}, "sorry"},
		"reads nothing": {func(t *testing.T) Options {
			return Options{Hooks: hooks(t, map[string]string{"pre-receive": "exit 1"})}
		}, "pre-receive hook declined"},
		"hangs": {func(t *testing.T) Options {
			return Options{HookTime: 200 * time.Millisecond, Hooks: hooks(t,
				map[string]string{"pre-receive": "sleep 600 & sleep 600"})}
		}, "exceeded its time limit"},
		"dies": {func(t *testing.T) Options {
			return Options{HookTime: long, Hooks: hooks(t, map[string]string{"pre-receive": "kill -9 $$"})}
		}, "pre-receive hook declined"},
		"floods and hangs": {func(t *testing.T) Options {
			return Options{HookTime: time.Second, Hooks: hooks(t, map[string]string{"update": "yes y | tr -d '\\n'"})}
		}, "hook declined"},
		"cannot be run": {func(t *testing.T) Options {
			dir := hooks(t, map[string]string{"pre-receive": "exit 0"})
			if err := os.Chmod(filepath.Join(dir, "pre-receive"), 0o644); err != nil {
				t.Fatal(err)
			}
			return Options{Hooks: dir}
		}, "cannot execute its pre-receive hook"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, test.options(t))
			out, err := w.push(w.clone(), "main")
			if err == nil || !strings.Contains(out, test.says) || strings.Contains(out, "\x1b[2J") ||
				len(out) > 2*maxHookOutput {
				t.Errorf("git says %v\n%.2000s", err, out)
			}
			if got := w.refs(); got != "" || w.changed() != "" {
				t.Errorf("the refs are %s, told of %s", got, w.changed())
			}
			w.clean()
		})
	}
}

// A hook that git would leave out in silence keeps pushes from being taken.
func TestScriptsThatCannotBeRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{Decider: decider(func(context.Context, *Push) error { return nil })})
	c := w.clone()
	w.mustPush(c, "main")
	for _, damage := range []func(path string) error{func(path string) error { return os.Chmod(path, 0o600) }, os.Remove} {
		if err := damage(filepath.Join(w.server.options.Scripts, scriptsOnce, string(repo.PreReceive))); err != nil {
			t.Fatal(err)
		}
		if out, err := w.push(c, "main:refs/heads/other"); err == nil {
			t.Errorf("a push was taken: %s", out)
		}
	}
}

// The server that was to decide is gone: the scripts refuse.
func TestScriptsWithoutServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{Decider: decider(func(context.Context, *Push) error { return nil })})
	w.Git("config", "core.hooksPath", filepath.Join(w.server.options.Scripts, "each"))
	if out, err := w.clone().Try("push", w.Dir, "main"); err == nil {
		t.Errorf("a push was taken: %s", out)
	}
}

// The push does not wait for a process that a hook leaves behind with its output open.
func TestHookLeavesAProcess(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("SKIPPED: no setsid here")
	}
	file := filepath.Join(t.TempDir(), "pid")
	w := newWorld(t, Options{Hooks: hooks(t, map[string]string{
		"pre-receive": `setsid sh -c 'echo $$ >` + file + `; exec sleep 300' &
while ! test -s ` + file + `; do sleep 0.01; done; echo fine`})})
	out := w.mustPush(w.clone(), "main")
	text, _ := os.ReadFile(file)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		t.Fatalf("the hook says %q", text)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Errorf("the push has waited for what the hook left: %v", err)
	}
	if !strings.Contains(out, "remote: fine") {
		t.Errorf("git says %s", out)
	}
	w.clean()
}

// The post-receive hook runs with the changed refs even if the client has disconnected.
func TestHookAfterAClientThatLeft(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	w := newWorld(t, Options{Hooks: hooks(t, map[string]string{"post-receive": "cat >" + log})})
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	w.recorder = func(bool) { leave() }
	w.server.options.Recorder = w
	c := w.clone()
	body := command2(t, c.ID("main"), "refs/heads/main", "report-status") +
		c.GitIn("main\n", "pack-objects", "--revs", "--stdout", "-q")
	_, err := w.server.Serve(ctx, w.target(), node.Session{Stateless: true}, tester, strings.NewReader(body), &recorder{})
	text, _ := os.ReadFile(log)
	if !strings.Contains(string(text), c.ID("main").String()+" refs/heads/main") {
		t.Errorf("the hook was told %q; %v", text, err)
	}
}

// A client that receives the report of a push finds the result in the repository that exists then.
func TestRepositoryReplaced(t *testing.T) {
	t.Parallel()
	var w *world
	w = newWorld(t, Options{Decider: decider(func(context.Context, *Push) error {
		if err := os.Rename(w.Dir, filepath.Join(t.TempDir(), "old.git")); err != nil {
			return err
		}
		gittest.InitAt(t, w.Dir)
		return nil
	})})
	if out, err := w.push(w.clone(), "main"); err == nil || w.refs() != "" || w.changed() != "" {
		t.Errorf("git says %s; the refs are %q, told of %q", out, w.refs(), w.changed())
	}
}
