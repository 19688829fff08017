package storage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// newerGit is a git that knows reftables, or the test ends here.
func newerGit(t *testing.T) string {
	t.Helper()
	program := os.Getenv("PACKHORSE_TEST_NEWER_GIT")
	if program == "" {
		t.Skip("PACKHORSE_TEST_NEWER_GIT names no git of 2.45 or later: reftables are NOT tested here (see .ci/newer-git)")
	}
	return program
}

// newTables makes a root whose reftables are read by a git program, and returns a counter of the commands that
// started.
func newTables(t *testing.T, program string) (r *root, commands func(subcommand string) int) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	classes := map[process.Class]process.Limits{
		repo.ClassRefs: {Slots: 2, Queue: 100, Wait: time.Minute, Time: time.Minute},
	}
	runner, err := process.New(process.Options{Git: program, Registerer: registry, Classes: classes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	return newRoot(t, storage.Options{Tables: repo.NewTables(runner)}), func(subcommand string) int {
		n := 0
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "packhorse_git_commands_total" {
				continue
			}
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "subcommand" && l.GetValue() == subcommand {
						n += int(m.GetCounter().GetValue())
					}
				}
			}
		}
		return n
	}
}

// by runs a git program in a repository.
func by(t *testing.T, program, dir, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, gittest.Env(), strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// TestReftable serves reftables with the answers of git, and asks it once for each change.
func TestReftable(t *testing.T) {
	t.Parallel()
	program := newerGit(t)
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			r, commands := newTables(t, program)
			dir := filepath.Join(r.dir, "app.git")
			run := func(args ...string) string { t.Helper(); return by(t, program, dir, "", args...) }
			by(t, program, r.dir, "", "init", "-q", "--bare", "--initial-branch=main", "--ref-format=reftable",
				"--object-format="+format, dir)
			check := func(path string) {
				t.Helper()
				before := commands("upload-pack")
				if !r.asProgram(program, path) {
					t.Errorf("%s is not served", path)
				}
				if n := commands("upload-pack") - before; n > 1 {
					t.Errorf("%d git commands for three requests after one change", n)
				}
			}
			check("app.git") // unborn
			tree := by(t, program, dir, "", "mktree")
			one, two := run("commit-tree", "-m", "one", tree), run("commit-tree", "-m", "two", tree)
			for _, args := range [][]string{
				{"update-ref", "refs/heads/main", one}, {"tag", "-m", "t", "v1", one}, {"tag", "-m", "of a tag", "v2", "v1"},
				{"symbolic-ref", "refs/heads/alias", "refs/heads/main"}, {"symbolic-ref", "refs/tags/sym", "refs/tags/v1"},
				{"symbolic-ref", "refs/heads/dangling", "refs/heads/nothing"}, {"symbolic-ref", "HEAD", "refs/heads/alias"},
				{"update-ref", "refs/heads/main", two, one}, {"pack-refs", "--all"}, {"symbolic-ref", "HEAD", "refs/heads/later"},
				{"update-ref", "--no-deref", "HEAD", two}, {"update-ref", "refs/bisect/bad", one},
				{"update-ref", "-d", "refs/tags/v1"},
				{"config", "transfer.hideRefs", "refs/heads/alias"}, {"config", "--unset", "transfer.hideRefs"},
			} {
				run(args...)
				check("app.git")
			}
			run("config", "transfer.hideRefs", "refs/tags")
			run("config", "--add", "uploadpack.hideRefs", "HEAD")
			if hidden := r.hiddenRefs(program, "app.git"); !slices.Equal(hidden, []string{"HEAD", "refs/tags/v2"}) {
				t.Errorf("hidden: %q", hidden)
			}
			run("config", "--unset", "uploadpack.hideRefs") // version 0 of git reveals the target of a hidden HEAD
			check("app.git")
			before := commands("upload-pack")
			check("app.git")
			if n := commands("upload-pack") - before; n != 0 {
				t.Errorf("%d git commands though nothing changed", n)
			}
			run("worktree", "add", "-q", "-b", "side", filepath.Join(r.dir, "tree"), two)
			check("tree")
			by(t, program, filepath.Join(r.dir, "tree"), "", "update-ref", "refs/worktree/w", one)
			check("tree")
			check("app.git")
		})
	}
}

// hiddenRefs names the hidden refs of a repository: its tips may be wanted where a config allows that.
func (r *root) hiddenRefs(program, path string) (names []string) {
	r.t.Helper()
	runner, err := process.New(process.Options{Git: program,
		Classes: map[process.Class]process.Limits{repo.ClassRefs: {Slots: 1}}})
	r.do(err)
	defer runner.Close(context.Background())
	opened, err := repo.Open(filepath.Join(r.dir, path), repo.Options{Tables: repo.NewTables(runner)})
	r.do(err)
	defer opened.Close()
	snapshot, err := opened.Refs.Snapshot(r.t.Context())
	r.do(err)
	r.do(snapshot.EachHidden(func(ref refs.Ref) error { names = append(names, string(ref.Name)); return nil }))
	return names
}

// TestReftableComesAndGoes moves a repository's refs between files and tables, under an open handle.
func TestReftableComesAndGoes(t *testing.T) {
	t.Parallel()
	program := newerGit(t)
	r, _ := newTables(t, program)
	made := r.repo("app.git", "one")
	for range 2 {
		r.serves("app", made.ID("main"))
		by(t, program, made.Dir, "", "refs", "migrate", "--ref-format=reftable")
		r.asProgram(program, "app.git")
		id := by(t, program, made.Dir, "", "rev-parse", "main")
		if refs, err := r.refs("app"); err != nil || !strings.Contains(refs, id+" refs/heads/main") {
			t.Errorf("in tables: %q, %v", refs, err)
		}
		by(t, program, made.Dir, "", "refs", "migrate", "--ref-format=files")
	}
	by(t, program, made.Dir, "", "refs", "migrate", "--ref-format=reftable")
	r.do(os.Remove(filepath.Join(made.Dir, "reftable/tables.list")))
	r.refuses("app", fault.Unavailable, "reftable")
	r.do(os.RemoveAll(made.Dir))
	r.refuses("app", fault.NotFound, "")
}

// TestManyReftableRequests sends many requests while refs change: each response contains the refs that existed when
// its request began.
func TestManyReftableRequests(t *testing.T) {
	t.Parallel()
	program := newerGit(t)
	r, commands := newTables(t, program)
	made := r.repo("app.git", "one")
	id := made.ID("main").String()
	by(t, program, made.Dir, "", "refs", "migrate", "--ref-format=reftable")
	const changes, askers = 10, 8
	for i := range changes {
		name := fmt.Sprintf("refs/heads/b%d", i)
		by(t, program, made.Dir, "", "update-ref", name, id)
		var wg sync.WaitGroup
		for range askers {
			wg.Go(func() {
				if refs, err := r.refs("app"); err != nil || !strings.Contains(refs, id+" "+name+"\n") {
					t.Errorf("%s is missing: %q, %v", name, refs, err)
				}
			})
		}
		wg.Wait()
	}
	if n := commands("upload-pack"); n > changes {
		t.Errorf("%d git commands for %d changes", n, changes)
	}
}

// fakeGit writes a program instead of git.
func fakeGit(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "git")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestReftableWithoutHelp names the problem when git cannot read reftables.
func TestReftableWithoutHelp(t *testing.T) {
	t.Parallel()
	long := "for i in 1 2 3; do printf '%065520d' 0 | sed 's/^..../fff0/'; done\n"
	for _, script := range []string{"echo 'fatal: bad table' >&2; exit 128", "exit 0", "printf 0050abc", "echo hello",
		"printf '0014abc refs/heads/a0000'",
		"printf '003f1111111111111111111111111111111111111111 refs/heads/a..b0000'", long} {
		r, _ := newTables(t, fakeGit(t, script))
		made := r.repo("app.git", "one")
		r.serves("app", made.ID("main"))
		made.Git("config", "core.repositoryFormatVersion", "1")
		r.write("app.git/reftable/tables.list", "")
		f, err := os.OpenFile(filepath.Join(made.Dir, "config"), os.O_APPEND|os.O_WRONLY, 0)
		r.do(err)
		_, err = f.WriteString("[extensions]\n\trefStorage = reftable\n")
		r.do(err)
		r.do(f.Close())
		for range 2 {
			r.refuses("app", fault.Internal, "cannot list")
		}
	}
	r := newRoot(t, storage.Options{})
	id := r.repo("app.git", "one").ID("main")
	r.write("app.git/config", "[core]\n\trepositoryformatversion = 1\n[extensions]\n\trefstorage = reftable\n")
	r.refuses("app", fault.Unavailable, "reftables")
	r.write("app.git/config", "[core]\n\trepositoryformatversion = 0\n[extensions]\n\trefstorage = reftable\n")
	r.refuses("app", fault.Unavailable, "needs repository format version 1")
	r.write("app.git/config", "[core]\n\trepositoryformatversion = 1\n[extensions]\n\trefstorage = files\n")
	r.serves("app", id)
}

// TestReftableLinks: no table comes from outside the root, whatever leads there; links within are as good as what they
// lead to.
func TestReftableLinks(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("a1", 20)
	script := "printf '003d" + id + " refs/heads/main\\n0000'"
	for _, part := range []string{"reftable", "reftable/tables.list", "reftable/0x1-0x1-1.ref"} {
		r, commands := newTables(t, fakeGit(t, script))
		made := r.repo("app.git", "one")
		r.write("app.git/config", "[core]\n\trepositoryformatversion = 1\n[extensions]\n\trefStorage = reftable\n")
		r.write("app.git/reftable/tables.list", "0x1-0x1-1.ref\n")
		r.write("app.git/reftable/0x1-0x1-1.ref", "")
		path, moved, outside := filepath.Join(made.Dir, part), filepath.Join(r.dir, "moved"), filepath.Join(t.TempDir(),
			"outside")
		r.do(errors.Join(os.Rename(path, moved), os.Symlink(moved, path)))
		if refs, err := r.refs("app"); err != nil || !strings.Contains(refs, id) {
			t.Errorf("%s within the root: %q, %v", part, refs, err)
		}
		r.do(errors.Join(os.Rename(moved, outside), os.Remove(path), os.Symlink(outside, path)))
		r.addTable("app.git/reftable/tables.list") // git would read the tables again
		asked := commands("upload-pack")
		r.refuses("app", fault.Denied, "outside the served root")
		if commands("upload-pack") != asked {
			t.Errorf("%s outside of the root: git was asked", part)
		}
	}
}

// addTable adds a name to a list of tables.
func (r *root) addTable(path string) {
	r.t.Helper()
	f, err := os.OpenFile(filepath.Join(r.dir, path), os.O_APPEND|os.O_WRONLY, 0)
	r.do(err)
	_, err = f.WriteString("0x2-0x2-2.ref\n")
	r.do(errors.Join(err, f.Close()))
}
