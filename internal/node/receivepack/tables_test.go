package receivepack

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Refs in tables are git's to change. One that cannot is not asked to.
func TestPushToReftables(t *testing.T) {
	t.Parallel()
	program := os.Getenv("PACKHORSE_TEST_NEWER_GIT")
	if program == "" {
		t.Skip("PACKHORSE_TEST_NEWER_GIT names no git of 2.45 or later: reftables are NOT tested here (see .ci/newer-git)")
	}
	w := worldBy(t, program, Options{}, gittest.Init(t))
	by := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(program, args...)
		cmd.Dir, cmd.Env = w.Dir, gittest.Env()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	c := w.clone()
	by("refs", "migrate", "--ref-format=reftable")
	refs := func() string { t.Helper(); return by("for-each-ref", "--format=%(refname) %(objectname)") }
	first := c.ID("main").String()
	w.mustPush(c, "main", "main:refs/heads/old")
	if want := "refs/heads/main " + first + "\nrefs/heads/old " + first; refs() != want {
		t.Fatalf("the refs are %s, want %s", refs(), want)
	}
	c.Git("update-ref", "refs/heads/main", c.Commit("second", c.ID("main")).String())
	second := c.ID("main").String()
	w.mustPush(c, "--atomic", "main", "main:refs/tags/v1", ":refs/heads/old")
	want := "refs/heads/main " + second + "\nrefs/tags/v1 " + second
	if refs() != want {
		t.Errorf("the refs are %s, want %s", refs(), want)
	}
	if got := w.changed(); strings.Count(got, "\n") != 4 {
		t.Errorf("changed are said to be %s", got)
	}
	c.Git("update-ref", "refs/heads/main", c.Commit("other").String())
	for _, args := range [][]string{{"main"}, {"--atomic", "main", "main:refs/heads/new"},
		{"--force-with-lease=main:" + first, "main"}} {
		if out, err := w.push(c, args...); err == nil {
			t.Errorf("push %q went through: %s", args, out)
		}
	}
	if refs() != want {
		t.Errorf("the refs are %s, want %s", refs(), want)
	}
	by("fsck", "--strict")
	eventually(t, "the journal is not empty", func() bool {
		left, err := os.ReadDir(w.server.options.Journal)
		return err == nil && len(left) == 0
	})
}

// A git that cannot read reftables never touches them, and the client learns the reason.
func TestPushToReftablesOfALaterGit(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "git")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho git version 2.39.5\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := worldBy(t, program, Options{}, gittest.Init(t))
	id := w.Commit("x")
	w.Git("config", "core.repositoryFormatVersion", "1")
	w.Git("config", "extensions.refStorage", "reftable")
	_, err := w.server.Advertise(context.Background(), w.open(), node.Session{Stateless: true}, "", &recorder{})
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.Message(err), "reftable") {
		t.Errorf("who asks for the refs is told %v", err)
	}
	if _, err := w.post(command2(t, id, "refs/heads/main", "report-status")); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(fault.Message(err), "reftable") {
		t.Errorf("who pushes is told %v", err)
	}
}
