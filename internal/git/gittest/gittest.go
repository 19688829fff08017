// Package gittest builds repositories, runs the real git and compares clones. For tests only.
package gittest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Repo is a repository that a test drives with the real git.
type Repo struct {
	Dir string
	t   testing.TB

	format func() git.ObjectFormat
}

// Init makes a bare repository in a temporary directory; args go to git init.
func Init(t testing.TB, args ...string) *Repo {
	t.Helper()
	return InitAt(t, filepath.Join(t.TempDir(), "repo.git"), args...)
}

// InitAt makes a bare repository at dir.
func InitAt(t testing.TB, dir string, args ...string) *Repo {
	t.Helper()
	fromTemplate(t, "init "+strings.Join(args, " "), dir, func(dir string) {
		cmd := append([]string{"init", "-q", "--bare", "--initial-branch=main"}, args...)
		Run(t, "", "", append(cmd, dir)...)
	})
	r := At(t, dir)
	format := git.SHA1
	if slices.Contains(args, "--object-format=sha256") {
		format = git.SHA256
	}
	r.format = func() git.ObjectFormat { return format }
	return r
}

// At wraps a repository that is already there.
func At(t testing.TB, dir string) *Repo {
	r := &Repo{Dir: dir, t: t}
	r.format = sync.OnceValue(func() git.ObjectFormat {
		format, err := git.ParseObjectFormat(r.Git("rev-parse", "--show-object-format"))
		if err != nil {
			t.Fatal(err)
		}
		return format
	})
	return r
}

// Format returns the format of the repository's object IDs.
func (r *Repo) Format() git.ObjectFormat {
	r.t.Helper()
	return r.format()
}

// Git runs git in the repository and returns its output without the final newline; a failure ends the test.
func (r *Repo) Git(args ...string) string {
	r.t.Helper()
	return r.GitIn("", args...)
}

// GitIn is Git with text on standard input.
func (r *Repo) GitIn(stdin string, args ...string) string {
	r.t.Helper()
	return Run(r.t, r.Dir, stdin, args...)
}

// Try runs git in the repository; the error holds what git printed.
func (r *Repo) Try(args ...string) (string, error) { return run(r.Dir, "", args...) }

// TryIn is Try with text on standard input.
func (r *Repo) TryIn(stdin string, args ...string) (string, error) { return run(r.Dir, stdin, args...) }

// ID resolves a revision.
func (r *Repo) ID(rev string) git.ObjectID {
	r.t.Helper()
	return git.MustParseObjectID(r.Git("rev-parse", "--verify", "--end-of-options", rev))
}

// Blob stores a blob and returns its ID.
func (r *Repo) Blob(content string) git.ObjectID {
	r.t.Helper()
	return git.MustParseObjectID(r.GitIn(content, "hash-object", "-w", "--stdin"))
}

// Commit makes a commit with one file on the given parents and returns its ID; it moves no ref. The text is its message
// and the file's content.
func (r *Repo) Commit(text string, parents ...git.ObjectID) git.ObjectID {
	r.t.Helper()
	b := r.Batch()
	commit := b.Commit(text, parents...)
	b.Store()
	return commit
}

// CommitTree makes a commit with the given entries of git mktree on the given parents and returns its ID; it moves no
// ref.
func (r *Repo) CommitTree(message, entries string, parents ...git.ObjectID) git.ObjectID {
	r.t.Helper()
	b := r.Batch()
	commit := b.CommitTree(message, entries, parents...)
	b.Store()
	return commit
}

// Objects lists every object reachable from all refs, sorted.
func (r *Repo) Objects() []string {
	r.t.Helper()
	return ReachableObjects(r.t, r.Dir, "--all")
}

// ReachableObjects lists the objects that rev-list reaches from args, sorted.
func ReachableObjects(t testing.TB, dir string, args ...string) []string {
	t.Helper()
	out := Run(t, dir, "", append([]string{"rev-list", "--objects", "--no-object-names"}, args...)...)
	return sortedLines(out)
}

func sortedLines(out string) []string {
	if out == "" {
		return nil
	}
	lines := strings.Split(out, "\n")
	slices.Sort(lines)
	return lines
}

// Run runs git in dir with a clean configuration; a failure ends the test.
func Run(t testing.TB, dir, stdin string, args ...string) string {
	t.Helper()
	out, err := run(dir, stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func run(dir, stdin string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = Env()
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// Env is an environment in which git depends on nothing of the user's.
func Env() []string {
	inherited := slices.DeleteFunc(os.Environ(), func(setting string) bool { // some clients refuse it without TLS
		return strings.HasPrefix(setting, "GIT_SSL_")
	})
	return append(inherited,
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=A U Thor", "GIT_AUTHOR_EMAIL=author@example.com", "GIT_AUTHOR_DATE=1700000000 +0000",
		"GIT_COMMITTER_NAME=C O Mitter", "GIT_COMMITTER_EMAIL=committer@example.com", "GIT_COMMITTER_DATE=1700000000 +0000",
		// Unlike gc.auto = 0, these two settings also save the process that would find nothing to do.
		"GIT_CONFIG_COUNT=3", "GIT_CONFIG_KEY_0=maintenance.auto", "GIT_CONFIG_VALUE_0=false",
		"GIT_CONFIG_KEY_1=receive.autogc", "GIT_CONFIG_VALUE_1=false",
		"GIT_CONFIG_KEY_2=protocol.file.allow", "GIT_CONFIG_VALUE_2=always", "LC_ALL=C")
}
