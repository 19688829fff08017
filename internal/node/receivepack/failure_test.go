package receivepack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
)

// last returns the results of the last call of Serve.
func (w *world) last() (outcome node.Outcome, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.outcomes {
		if o.Command == node.CommandPush {
			outcome = o
		}
	}
	if len(w.errs) > 0 {
		err = w.errs[len(w.errs)-1]
	}
	return outcome, err
}

// results are the results of an outcome's refs, as text.
func results(o node.Outcome) string {
	var all []string
	for _, u := range o.Push.Updates {
		all = append(all, fmt.Sprintf("%s %.7s %.7s %s", u.Ref, u.Old, u.New, u.Result))
	}
	return strings.Join(all, "\n")
}

// hookDir makes a directory with one hook.
func hookDir(t *testing.T, name, script string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// brokenGit is a git program that prints the given output instead of unpacking.
func brokenGit(t *testing.T, setup string) string {
	t.Helper()
	real, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "git")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+setup+"\nexec "+real+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// A push that did not change one of its refs has failed with a reason, and reports the result for each ref.
func TestFailedPushes(t *testing.T) {
	t.Parallel()
	const none = "0000000"
	for name, test := range map[string]struct {
		options Options
		program string
		config  string // key=value of the repository
		args    []string
		reason  string
		kind    fault.Kind
		results string // with the ID of main as MAIN
		says    string // to the client
	}{
		"non-fast-forward": {args: []string{"side:refs/heads/main", "main:refs/heads/new"}, reason: "",
			results: "refs/heads/new 0000000 MAIN ok"},
		"behind": {args: []string{"--force", "side:refs/heads/main"}, config: "receive.denyNonFastForwards=true",
			reason: reasonConflict, kind: fault.Denied,
			results: "refs/heads/main MAIN SIDE non-fast-forward"},
		"one of two": {args: []string{"main:refs/heads/new", "main:refs/hidden/x"}, config: "receive.hideRefs=refs/hidden",
			reason: reasonPolicy, kind: fault.Denied,
			results: "refs/heads/new 0000000 MAIN ok\nrefs/hidden/x 0000000 MAIN deny updating a hidden ref"},
		"deletion": {args: []string{":refs/heads/main"}, config: "receive.denyDeletes=true", reason: reasonPolicy,
			kind:    fault.Denied,
			results: "refs/heads/main MAIN " + none + " deletion prohibited"},
		"hook": {args: []string{"side"}, options: Options{Hooks: hookDir(t, "pre-receive", "echo no; exit 1")},
			reason: reasonHook, kind: fault.Denied,
			results: "refs/heads/side 0000000 SIDE pre-receive hook declined"},
		"hook that hangs": {args: []string{"side"}, options: Options{Hooks: hookDir(t, "pre-receive", "sleep 60"),
			HookTime: 1}, reason: reasonHook,
			kind: fault.Deadline, results: "refs/heads/side 0000000 SIDE pre-receive hook declined"},
		"tree": {args: []string{"main^{tree}:refs/heads/new"}, reason: reasonPolicy, kind: fault.Denied},
		"too large": {args: []string{"side"}, config: "receive.maxInputSize=10", reason: reasonTooLarge, kind: fault.Invalid,
			results: "refs/heads/side 0000000 SIDE unpacker error"},
		"full disk": {args: []string{"side"}, program: brokenGit(t, "trap '' XFSZ; ulimit -f 0"), reason: reasonDiskFull,
			kind:    fault.Unavailable,
			results: "refs/heads/side 0000000 SIDE unpacker error"},
		"dead git": {args: []string{"side"}, program: brokenGit(t,
			`case "$*" in *receive-pack*) echo 'fatal: boom' >&2; exit 3;; esac`),
			reason: reasonInternal, kind: fault.Internal, results: "refs/heads/side 0000000 SIDE not changed"},
		"unknown extension": {args: []string{"side"}, program: brokenGit(t, `case "$*" in *receive-pack*)
			printf 'fatal: unknown repository extension found:\n\n\tnewone\n' >&2; exit 128;; esac`),
			reason: reasonDisabled, kind: fault.Unavailable, says: "support extensions of this repository (newone)"},
		"turned off": {args: []string{"side"}, config: "http.receivepack=false", results: ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := test.program
			if program == "" {
				program = "git"
			}
			w := worldBy(t, program, test.options, gittest.Init(t))
			c := w.clone()
			first := c.ID("main")
			w.GitIn(c.GitIn("main\n", "pack-objects", "--revs", "--stdout", "-q"), "unpack-objects", "-q")
			w.Git("update-ref", "refs/heads/main", first.String())
			c.Git("update-ref", "refs/heads/side", c.Commit("side").String())
			if key, value, ok := strings.Cut(test.config, "="); ok {
				w.Git("config", key, value)
			}
			out, err := w.push(c, test.args...)
			if err == nil {
				t.Fatalf("it was taken: %s", out)
			}
			if !strings.Contains(out, test.says) {
				t.Errorf("the client reads\n%s", out)
			}
			o, err := w.last()
			if o.Reason != test.reason || test.reason != "" && !fault.Is(err, test.kind) ||
				(err == nil) != (test.reason == "" && test.config == "") {
				t.Errorf("reason %q, error of kind %v: %v\n%s", o.Reason, fault.KindOf(err), err, out)
			}
			want := strings.NewReplacer("MAIN", first.String()[:7], "SIDE", c.ID("side").String()[:7]).Replace(test.results)
			if got := results(o); got != want && test.results != "" {
				t.Errorf("refs:\n%s\nwant:\n%s", got, want)
			}
			if test.reason != "" {
				if n := testutil.ToFloat64(w.server.metrics.failed.WithLabelValues(test.reason)); n != 1 {
					t.Errorf("%v failures for this reason were counted", n)
				}
				if n := testutil.ToFloat64(w.server.metrics.pushes.WithLabelValues("ok")); n != 0 {
					t.Error("it was counted as a success")
				}
			}
		})
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		unpack, ref, said string
		reason            string
		kind              fault.Kind
	}{
		{"unpack-objects abnormal exit", "unpacker error", "fatal: unable to create temporary file: Permission denied",
			reasonPermission, fault.Internal},
		{noQuarantine, "unpacker error", "", reasonInternal, fault.Internal},
		{noQuarantine, "unpacker error", "permission denied", reasonPermission, fault.Internal},
		{"index-pack abnormal exit", "unpacker error", "fatal: attempting to allocate 10 over limit 1", reasonTooLarge,
			fault.Invalid},
		{"index-pack abnormal exit", "unpacker error", "fatal: write error: Disk quota exceeded", reasonDiskFull,
			fault.Unavailable},
		{"index-pack abnormal exit", "unpacker error", "fatal: cannot open x: Read-only file system", reasonReadOnly,
			fault.Unavailable},
		{"index-pack abnormal exit", "unpacker error", "fatal: pack is corrupted (SHA1 mismatch)", reasonDamaged,
			fault.Invalid},
		{"index-pack abnormal exit", "unpacker error", "fatal: fsck error in packed object", reasonFsck, fault.Denied},
		{"ok", "missing necessary objects", "", reasonIncomplete, fault.Denied},
		{"ok", "failed to update ref",
			"error: cannot lock ref 'refs/heads/x': Unable to create 'refs/heads/x.lock': Permission " +
				"denied", reasonPermission, fault.Internal},
		{"ok", "failed to update ref", "error: cannot lock ref 'refs/heads/x': is at a but expected b", reasonConflict,
			fault.Denied},
		{"ok", "hook declined", "error: No space left on device", reasonHook, fault.Denied},
		{"ok", "invalid new value provided", "", reasonPolicy, fault.Denied},
		{"ok", "failed to update ref", "error: cannot update ref 'refs/heads/x': trying to write non-commit object a to " +
			"branch 'refs/heads/x'", reasonPolicy, fault.Denied},
		{"ok", "bad ref", "error: bad sha1 objects for refs/heads/x", reasonPolicy, fault.Denied},
		{"ok", "denyCurrentBranch = updateInstead needs a worktree", "", reasonPolicy, fault.Denied},
		{"ok", "bad pack", "", reasonIncomplete, fault.Denied},
		{"ok", "refname conflict", "", reasonConflict, fault.Denied},
		{"ok", "reference does not exist", "", reasonConflict, fault.Denied},
		{"ok", "expected symref but found regular ref", "", reasonConflict, fault.Denied},
		{"ok", "fail to run proc-receive hook", "", reasonHook, fault.Denied},
		{"ok", "unable to migrate objects to permanent storage", "", reasonInternal, fault.Internal},
		{"ok", "something new", "", reasonInternal, fault.Internal},
	} {
		if reason, kind := classify(test.unpack, test.ref, test.said); reason != test.reason || kind != test.kind {
			t.Errorf("%q, %q, %q: %s, %v; want %s, %v", test.unpack, test.ref, test.said, reason, kind, test.reason, test.kind)
		}
	}
}

// badTimezone makes a commit as old programs have made them.
func badTimezone(c *gittest.Repo) string {
	return c.GitIn("tree "+c.Git("rev-parse",
		"main^{tree}")+"\nauthor A <a@b> 1234567890 +051800\ncommitter A <a@b> 1234567890 +0000\n\nx\n",
		"hash-object", "-w", "-t", "commit", "--literally", "--stdin")
}

// The checks of pushed objects have the severities of the server, overridden by those of the repository. A refusal
// explains how to relax the check.
func TestFsckSeverities(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		server map[string]string
		own    []string // key, value of the repository's config
		taken  bool
	}{
		"default":                    {server: DefaultFsck(), taken: true},
		"none":                       {},
		"strict":                     {server: map[string]string{"badTimezone": "error"}},
		"warning":                    {server: map[string]string{"badTimezone": "warn"}, taken: true},
		"stricter repository":        {server: DefaultFsck(), own: []string{"receive.fsck.badTimezone", "error"}},
		"laxer repository":           {own: []string{"receive.fsck.badtimezone", "ignore"}, taken: true},
		"repository without checks":  {own: []string{"receive.fsckObjects", "false"}, taken: true},
		"repository without, by git": {own: []string{"transfer.fsckObjects", "false"}, taken: true},
		"repository with checks":     {own: []string{"receive.fsckObjects", "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Options{Fsck: test.server})
			c := w.clone()
			id := badTimezone(c)
			if test.own != nil {
				w.Git("config", test.own[0], test.own[1])
			}
			out, err := w.push(c, id+":refs/heads/old")
			if (err == nil) != test.taken {
				t.Fatalf("taken: %v\n%s", err == nil, out)
			}
			if o, _ := w.last(); !test.taken && (!strings.Contains(out, "remote: object "+id+" fails the check badTimezone") ||
				!strings.Contains(out, `push.fsck.badTimezone = "ignore"`) ||
				!strings.Contains(out, "receive.fsck.badTimezone = ignore") || o.Reason != reasonFsck) {
				t.Errorf("reason %q, and the client reads:\n%s", o.Reason, out)
			}
		})
	}
}

// The known checks are those that git has, but for those of refs.
func TestFsckChecks(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, check := range fsckChecks {
		known[check] = true
	}
	out, err := exec.Command("git", "help", "-c").Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		check, ok := strings.CutPrefix(strings.TrimSpace(line), "receive.fsck.")
		if !ok || check == "skipList" || strings.Contains(strings.ToLower(check), "ref") {
			continue
		}
		if n++; !known[check] {
			t.Errorf("git checks %s", check)
		}
	}
	if n < 40 {
		t.Errorf("git lists %d checks", n)
	}
	for text, want := range map[string]string{
		"badTimezone=warn": "", "badtimezone=warn": "did you mean " +
			"badTimezone", "bad=warn": "git-fsck(1)", "badName=info": "error, warn or ignore",
		"nulInHeader=warn": "cannot be relaxed", "nulInHeader=error": "",
	} {
		check, severity, _ := strings.Cut(text, "=")
		wrong := ValidateFsck(map[string]string{check: severity})
		if (len(wrong) == 0) != (want == "") || len(wrong) > 0 && !strings.Contains(wrong[0].Error(), want) {
			t.Errorf("%s: %v", text, wrong)
		}
	}
	if wrong := ValidateFsck(map[string]string{"badname": "warn", "badTimezone": "off",
		"badDate": "warn"}); len(wrong) != 2 {
		t.Errorf("of two mistakes: %v", wrong)
	}
}
