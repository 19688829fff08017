package repo

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// executable makes a file that can be run.
func executable(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// pushHooks lists the result of PushHooks by name, and commands by their kind.
func pushHooks(t *testing.T, dir string) []string {
	t.Helper()
	hooks, err := PushHooks(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, h := range hooks {
		text := string(h.Event) + " " + h.Name
		if h.Command != "" {
			text += " = " + h.Command
		} else if !filepath.IsAbs(h.File) {
			t.Errorf("%+v has no path", h)
		}
		names = append(names, text)
	}
	return names
}

// The configuration's hooks come before the file, in the order in which their events were named last (git-hook(1)).
func TestHooksOfTheConfiguration(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	f, err := os.OpenFile(r.Dir+"/config", os.O_APPEND|os.O_WRONLY, 0) // git config would change the order
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, setting := range [][2]string{
		{"hook.a.command", "first"}, {"hook.a.event", "update"}, {"hook.b.command", "second"}, {"hook.b.event", "update"},
		{"hook.a.command", "changed"},
		{"hook.A.event", "post-update"}, {"hook.A.command", "other case"}, {"hook.a.event", "update"}, // now the last
		{"hook.none.event", "update"}, {"hook.later.command", "no event"}, {"hook.commit.command", "x"},
		{"hook.commit.event", "pre-commit"},
		{"hook.off.command", "x"}, {"hook.off.event", "update"}, {"hook.off.enabled", "no"},
		{"hook.reset.command", "x"}, {"hook.reset.event", "update"}, {"hook.reset.event", ""},
		{"hook.reset.event", "post-receive"},
		{"hook.ref.command", "x"}, {"hook.ref.event", "reference-transaction"},
		{"hook.reference-transaction.enabled", "false"},
		{"hook.dot.ted=.command", "y"}, {"hook.dot.ted=.event", "pre-receive"},
	} {
		name, key, _ := hookKey(setting[0])
		if _, err := fmt.Fprintf(f, "[hook %q]\n%s = %s\n", name, key, setting[1]); err != nil {
			t.Fatal(err)
		}
	}
	executable(t, r.Dir+"/hooks/update")
	want := []string{
		"pre-receive hook.dot.ted=.command: pre-receive = y", "update hook.b.command: update = second",
		"update hook.a.command: update = changed", "update hooks/update",
		"post-receive hook.reset.command: post-receive = x", "post-update hook.A.command: post-update = other case",
	}
	if got := pushHooks(t, r.Dir); !slices.Equal(got, want) {
		t.Errorf("found\n%q, want\n%q", got, want)
	}
	open, err := Open(r.Dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if off := open.HooksOff(); !slices.Contains(off, [2]string{"hook.dot.ted=.enabled", "false"}) ||
		!slices.Contains(off, [2]string{"hook.off.enabled", "false"}) || len(off) != 11 {
		t.Errorf("turned off are %q", off)
	}
}

// Hooks are in git's directory for them, in every kind of repository.
func TestHooksOfPlaces(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	bare := gittest.Init(t)
	if got := pushHooks(t, bare.Dir); len(got) > 0 {
		t.Errorf("the samples are hooks: %q", got)
	}
	executable(t, bare.Dir+"/own/update")
	bare.Git("config", "core.hooksPath", "own")
	if got := pushHooks(t, bare.Dir); !slices.Equal(got, []string{"update core.hooksPath: update"}) {
		t.Errorf("relative: %q", got)
	}
	executable(t, os.Getenv("HOME")+"/hooks/post-update")
	bare.Git("config", "core.hooksPath", "~/hooks")
	if got := pushHooks(t, bare.Dir); !slices.Equal(got, []string{"post-update core.hooksPath: post-update"}) {
		t.Errorf("at home: %q", got)
	}
	for _, path := range []string{"~root/hooks", "%(prefix)/hooks"} {
		bare.Git("config", "core.hooksPath", path)
		if _, err := PushHooks(bare.Dir, Options{}); !fault.Is(err, fault.Denied) {
			t.Errorf("%s: %v", path, err)
		}
	}
	dir := filepath.Join(t.TempDir(), "work")
	gittest.Run(t, "", "", "init", "-q", "-b", "main", dir)
	work := gittest.At(t, dir)
	work.Git("commit", "-q", "--allow-empty", "-m", "x")
	work.Git("worktree", "add", "-q", filepath.Join(dir, "linked"))
	executable(t, dir+"/.git/hooks/pre-receive")
	for _, path := range []string{dir + "/.git", dir + "/linked/.git"} {
		if got := pushHooks(t, path); !slices.Equal(got, []string{"pre-receive hooks/pre-receive"}) {
			t.Errorf("%s has %q", path, got)
		}
	}
}
