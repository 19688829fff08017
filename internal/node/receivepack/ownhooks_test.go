package receivepack

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

// script writes a program.
func script(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// A repository with hooks accepts no pushes until the administrator has decided how its hooks are handled. The client
// learns the reason.
func TestRepositoryHooksRefused(t *testing.T) {
	t.Parallel()
	elsewhere := t.TempDir()
	for name, test := range map[string]struct {
		prepare func(w *world)
		says    string // "": the push is taken
	}{
		"pre-receive":  {func(w *world) { script(t, w.Dir+"/hooks/pre-receive", "") }, "hooks/pre-receive"},
		"update":       {func(w *world) { script(t, w.Dir+"/hooks/update", "") }, "hooks/update"},
		"post-receive": {func(w *world) { script(t, w.Dir+"/hooks/post-receive", "") }, "hooks/post-receive"},
		"post-update":  {func(w *world) { script(t, w.Dir+"/hooks/post-update", "") }, "hooks/post-update"},
		"reference-transaction": {func(w *world) { script(t, w.Dir+"/hooks/reference-transaction", "") },
			"hooks/reference-transaction"},
		"pre-auto-gc": {func(w *world) { script(t, w.Dir+"/hooks/pre-auto-gc", "") }, "hooks/pre-auto-gc"},
		"no auto gc": {func(w *world) {
			script(t, w.Dir+"/hooks/pre-auto-gc", "")
			w.Git("config", "receive.autogc", "false")
		}, ""},
		"proc-receive": {func(w *world) {
			script(t, w.Dir+"/hooks/proc-receive", "")
			w.Git("config", "receive.procReceiveRefs", "refs/for")
		}, "hooks/proc-receive"},
		"proc-receive for nothing":     {func(w *world) { script(t, w.Dir+"/hooks/proc-receive", "") }, ""},
		"push-to-checkout for nothing": {func(w *world) { script(t, w.Dir+"/hooks/push-to-checkout", "") }, ""},
		"of commits":                   {func(w *world) { script(t, w.Dir+"/hooks/pre-commit", "") }, ""},
		"sample":                       {func(w *world) { script(t, w.Dir+"/hooks/pre-receive.sample", "") }, ""},
		"not executable": {func(w *world) {
			if err := os.Chmod(script(t, w.Dir+"/hooks/pre-receive", ""), 0o644); err != nil {
				t.Fatal(err)
			}
		}, ""},
		"hooksPath": {func(w *world) {
			script(t, elsewhere+"/pre-receive", "")
			w.Git("config", "core.hooksPath", elsewhere)
		}, "core.hooksPath: pre-receive"},
		"hooksPath of a user": {func(w *world) { w.Git("config", "core.hooksPath", "~nobody/hooks") }, "core.hooksPath"},
		"configured": {func(w *world) {
			w.Git("config", "hook.lint.command", "true")
			w.Git("config", "hook.lint.event", "pre-receive")
		}, "hook.lint.command"},
		"configured, disabled": {func(w *world) {
			w.Git("config", "hook.lint.command", "true")
			w.Git("config", "hook.lint.event", "pre-receive")
			w.Git("config", "hook.lint.enabled", "false")
		}, ""},
		"many": {func(w *world) {
			for _, event := range []string{"pre-receive", "update", "post-receive", "post-update"} {
				script(t, w.Dir+"/hooks/"+event, "")
			}
		}, "hooks/pre-receive, hooks/update, hooks/post-receive and 1 more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{})
			test.prepare(w)
			c := w.clone()
			request := command2(t, c.ID("main"), "refs/heads/main", "report-status") +
				c.GitIn("main\n", "pack-objects", "--revs", "--stdout", "-q")
			answer, err := w.post(request)
			_, begin := w.server.Advertise(context.Background(), w.open(), node.Session{Service: protocol.ReceivePack}, "",
				&recorder{})
			if test.says == "" {
				if err != nil || begin != nil || !strings.Contains(answer, "ok refs/heads/main") {
					t.Errorf("%v, %v: %s", begin, err, answer)
				}
				return
			}
			for _, err := range []error{begin, err} {
				if text := fault.Message(err); !fault.Is(err, fault.Denied) || !strings.Contains(text, test.says) ||
					test.says != "core.hooksPath" && !strings.Contains(text, "push.repository_hooks") ||
					strings.Contains(text, w.Dir) {
					t.Errorf("%v", err)
				}
			}
			if w.refs() != "" {
				t.Errorf("the refs are %s", w.refs())
			}
		})
	}
}

// own is a repository with its own hooks that are run, after the administrator's.
func own(t *testing.T, administrators, repositorys map[string]string) *world {
	t.Helper()
	w := newWorld(t, Options{RepositoryHooks: RunHooks, Hooks: hooks(t, administrators)})
	for event, text := range repositorys {
		script(t, filepath.Join(w.Dir, "hooks", event), text)
	}
	return w
}

// readLog reads what hooks have written, and forgets it.
func readLog(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRepositoryHooksRun(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	say := func(who string) map[string]string {
		return map[string]string{
			"pre-receive":           "echo " + who + " pre-receive $(cat) $PACKHORSE_USER >>" + log + "; echo said by $0",
			"update":                "echo " + who + " update $1 >>" + log,
			"reference-transaction": "echo " + who + " reference-transaction $1 $(cat | cut -d' ' -f3) >>" + log,
			"post-receive":          "echo " + who + " post-receive $(cut -d' ' -f3) >>" + log,
			"post-update":           "echo " + who + ` post-update "$@" >>` + log,
		}
	}
	w := own(t, say("server"), say("own"))
	w.Git("config", "hook.b.command", "echo configured pre-receive")
	w.Git("config", "hook.b.event", "pre-receive")
	c := w.clone()
	out := w.mustPush(c, "main:refs/heads/b") // one ref: how many are one transaction depends on the version of git
	text := readLog(t, log)
	given := strings.Repeat("0", 40) + " " + c.ID("main").String() + " refs/heads/b tester\n"
	at := -1
	for _, line := range []string{
		"server pre-receive " + given, "own pre-receive " +
			given, "server update refs/heads/b\n", "own update refs/heads/b\n",
		"server reference-transaction prepared refs/heads/b\n", "own reference-transaction prepared refs/heads/b\n",
		"own reference-transaction committed refs/heads/b\n", "server post-receive refs/heads/b\n", "own post-receive " +
			"refs/heads/b\n",
		"server post-update refs/heads/b\n", "own post-update refs/heads/b\n",
	} {
		next := strings.Index(text, line)
		if next < at || next < 0 {
			t.Errorf("%q is not where it should be in\n%s", line, text)
		}
		at = next
	}
	if !strings.Contains(out, "remote: said by hooks/pre-receive") ||
		!strings.Contains(out, "remote: configured pre-receive") {
		t.Errorf("the client sees\n%s", out)
	}
	w.clean()
}

// Each hook may refuse what git lets it refuse, and the administrator's come first.
func TestRepositoryHooksRefuse(t *testing.T) {
	t.Parallel()
	for event, says := range map[string]string{
		"pre-receive": "pre-receive hook declined", "update": "hook declined", "reference-transaction": "the " +
			"reference-transaction hook refused the push",
	} {
		t.Run(event, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "log")
			w := own(t, nil, map[string]string{event: "cat >/dev/null; echo no; exit 1", "post-receive": "touch " + log,
				"post-update": "touch " + log})
			out, err := w.push(w.clone(), "main")
			if err == nil || !strings.Contains(out, says) || !strings.Contains(out, "remote: no") || w.refs() != "" {
				t.Errorf("%v, the refs are %q; %v\n%s", err, w.refs(), w.errs, out)
			}
			if _, err := os.Stat(log); err == nil {
				t.Error("hooks were told of a push that was refused")
			}
			script(t, filepath.Join(w.Dir, "hooks", event), "cat >/dev/null")
			w.mustPush(w.clone(), "--force", "main")
			w.server.options.Hooks = hooks(t, map[string]string{"pre-receive": "exit 1"})
			script(t, filepath.Join(w.Dir, "hooks/pre-receive"), "touch "+log+".own")
			if out, err := w.push(w.clone(), "main:refs/heads/x"); err == nil {
				t.Errorf("a push was taken\n%s", out)
			}
			if _, err := os.Stat(log + ".own"); err == nil {
				t.Error("the repository's hook was run though the administrator's had refused")
			}
			w.clean()
		})
	}
}

// A repository's commands are not run by git either where they are not run here: core.hooksPath is not about them.
func TestConfiguredHooksAreOff(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	program, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	git := script(t, filepath.Join(t.TempDir(), "git"),
		`echo "$(`+program+` config --get 'hook.a=b.enabled')" >>`+log+"\nexec "+program+` "$@"`)
	r := gittest.Init(t)
	w := worldBy(t, git, Options{RepositoryHooks: IgnoreHooks}, r)
	w.Git("config", "hook.a=b.command", "touch "+log+".ran")
	w.Git("config", "hook.a=b.event", "pre-receive")
	w.mustPush(w.clone(), "main")
	if text := readLog(t, log); text != "false\n" {
		t.Errorf("git was told %q of the hook", text)
	}
	if _, err := os.Stat(log + ".ran"); err == nil {
		t.Error("the command was run")
	}
}

// A proc-receive hook decides about its refs itself, and its results reach hooks, webhooks and the client.
func TestProcReceive(t *testing.T) {
	t.Parallel()
	const packets = `
# One packet of text, which ends with a new line.
packet() { printf '%04x%s\n' $((${#1} + 5)) "$1"; }
# The client's first: version=1 and capabilities, flush.
length() { dd bs=1 count=4 2>/dev/null; }
skip() { n=$(length); while [ "$n" != 0000 ]; do dd bs=1 count=$((0x$n - 4)) 2>/dev/null; echo; n=$(length); done; }
`
	w := own(t, nil, map[string]string{"proc-receive": packets + `
skip >/dev/null
printf '000eversion=1\n0000'
commands=$(skip)
new=$(echo "$commands" | cut -d' ' -f2)
GIT_DIR=. git update-ref refs/changes/1 "$new"
env | grep -E '^(PACKHORSE_USER|GIT_PUSH|GIT_DIR)' >&2
packet "ok refs/for/main"
packet "option refname refs/changes/1"
packet "option new-oid $new"
printf 0000`, "post-receive": "cat"})
	w.Git("config", "receive.procReceiveRefs", "refs/for")
	c := w.clone()
	out := w.mustPush(c, "-o", "a b=`$x`", "main:refs/for/main", "main:refs/heads/plain")
	id, zero := c.ID("main").String(), strings.Repeat("0", 40)
	if want := "refs/changes/1 " + id + "\nrefs/heads/plain " + id; w.refs() != want {
		t.Errorf("the refs are %s", w.refs())
	}
	for _, want := range []string{
		"remote: PACKHORSE_USER=tester", "remote: GIT_PUSH_OPTION_0=a b=`$x`", "remote: " + zero + " " + id +
			" refs/changes/1", "remote: " + zero + " " + id + " refs/heads/plain",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if told := w.changed(); !strings.Contains(told, "refs/changes/1") || strings.Contains(told, "refs/for") {
		t.Errorf("told of %s", told)
	}
	w.clean()
	for says, text := range map[string]string{"fix the title": `
skip >/dev/null
printf '000eversion=1\n0000'
skip >/dev/null
packet "ng refs/for/main fix the title"
printf 0000`, "fail to run proc-receive hook": "exit 1"} {
		script(t, w.Dir+"/hooks/proc-receive", packets+text)
		if out, err := w.push(c, "main:refs/for/main"); err == nil || !strings.Contains(out, "("+says+")") {
			t.Errorf("%v\n%s", err, out)
		}
		if o, err := w.last(); o.Reason != reasonHook || !fault.Is(err, fault.Denied) {
			t.Errorf("%s: reason %q, error %v", says, o.Reason, err)
		}
		w.clean()
	}
}

// A hook of the repository may bring what was pushed into its working tree, which is not written to otherwise.
func TestPushToCheckout(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "work")
	gittest.Run(t, "", "", "init", "-q", "-b", "main", dir)
	w := worldAt(t, Options{RepositoryHooks: RunHooks}, gittest.At(t, filepath.Join(dir, ".git")))
	w.Git("config", "receive.denyCurrentBranch", "updateInstead")
	c := w.clone()
	if out, err := w.push(c, "main"); err == nil {
		t.Errorf("without a hook a push was taken\n%s", out)
	}
	script(t, w.Dir+"/hooks/push-to-checkout", `echo "$1" >"$GIT_WORK_TREE/pushed"
echo "in $GIT_DIR/index"; echo failure >&2`)
	says := w.mustPush(c, "main")
	if !strings.Contains(says, "remote: in index") || !strings.Contains(says, "remote: failure") ||
		strings.Contains(says, dir) {
		t.Errorf("the client reads\n%s", says)
	}
	text, err := os.ReadFile(filepath.Join(dir, "pushed"))
	if err != nil || string(text) != c.ID("main").String()+"\n" {
		t.Errorf("the hook left %q, %v", text, err)
	}
}

// The pre-auto-gc hook has a word in whether a repository is maintained.
func TestBeforeMaintenance(t *testing.T) {
	t.Parallel()
	w := own(t, nil, map[string]string{"pre-auto-gc": "exit 1"})
	before := func() error { return w.server.BeforeMaintenance(context.Background(), w.open(), w.target().Path) }
	if before() == nil {
		t.Error("a hook that fails does not keep maintenance away")
	}
	script(t, w.Dir+"/hooks/pre-auto-gc", `test -z "$GIT_COMMITTER_NAME"`)
	if err := before(); err != nil {
		t.Error(err)
	}
	w.server.options.RepositoryHooks = IgnoreHooks
	script(t, w.Dir+"/hooks/pre-auto-gc", "exit 1")
	if err := before(); err != nil {
		t.Errorf("a hook that is not run: %v", err)
	}
}

// An administrator's hook of an event at which only repositories' own are run does not go unnoticed.
func TestUnusedHooksAreLogged(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	newWorld(t, Options{Log: slog.New(slog.NewTextHandler(&text, nil)),
		Hooks: hooks(t, map[string]string{"proc-receive": "", "update": ""})})
	if log := text.String(); !strings.Contains(log, "hook=proc-receive") || strings.Contains(log, "hook=update") {
		t.Errorf("the log says\n%s", log)
	}
}

// Of the events that scripts are for each has one.
func TestScriptsForAllEvents(t *testing.T) {
	t.Parallel()
	dirs := scriptDirs()
	if all := dirs[len(dirs)-1].events; len(all) != len(hookScripts()) || hookScripts()[repo.ProcReceive] == "" {
		t.Errorf("%q and %d scripts", all, len(hookScripts()))
	}
}
