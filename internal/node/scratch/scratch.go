// Package scratch lets Git work on the objects of a repository without the repository itself. Git runs in a git
// directory of the server, which has neither refs nor hooks nor attributes, and a fixed configuration. It reads the
// objects of the repository, with its alternates, commit-graphs and shallow boundary. So no setting of a repository has
// an effect, and none can run a program.
//
// New objects go to the git directory, from where they become part of a change (package write).
package scratch

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Space has the git directories of a server. It is safe for concurrent use.
type Space struct{ dir string }

// New creates a Space in a directory, and removes the files of an earlier run. No other program may use the directory.
func New(dir string) (*Space, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("empty the scratch directory: %w", err)
	}
	s := &Space{dir: dir}
	for _, format := range []git.ObjectFormat{git.SHA1, git.SHA256} {
		if err := makeGitDir(s.plain(format), format); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Space) plain(format git.ObjectFormat) string {
	return filepath.Join(s.dir, format.String()+".git")
}

// config is the configuration of all git directories. New objects are read soon and then removed. Git treats larger
// files as binary, which bounds its memory.
const config = `[core]
	repositoryFormatVersion = 1
	bare = true
	attributesFile = /dev/null
	fsync = none
	bigFileThreshold = 64m
[extensions]
	objectFormat = %s
`

func makeGitDir(dir string, format git.ObjectFormat) error {
	for _, sub := range []string{"objects", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return fmt.Errorf("make a scratch git directory: %w", err)
		}
	}
	for name, text := range map[string]string{"HEAD": "ref: refs/heads/none\n",
		"config": fmt.Sprintf(config, format)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("make a scratch git directory: %w", err)
		}
	}
	return nil
}

// Env returns the environment of Git commands that only read objects of a repository, which the caller holds.
func (s *Space) Env(r *repo.Repo) []string {
	return []string{"GIT_DIR=" + s.plain(r.Format), "GIT_OBJECT_DIRECTORY=" + filepath.Join(r.Common, "objects"),
		"GIT_SHALLOW_FILE=" + filepath.Join(r.Common, "shallow"), "GIT_LITERAL_PATHSPECS=1"}
}

// Dir is a git directory for Git commands that write objects. It is used by one goroutine.
type Dir struct {
	Path  string // of the git directory
	repo  *repo.Repo
	store *pack.Store           // its objects without those of the repository
	put   map[git.ObjectID]bool // objects that exist
}

// Open creates a git directory that borrows the objects of a repository, which the caller holds.
func (s *Space) Open(r *repo.Repo) (*Dir, error) {
	path, err := os.MkdirTemp(s.dir, "call-*.git")
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot write to the state directory", err)
	}
	d := &Dir{Path: path, repo: r, put: make(map[git.ObjectID]bool)}
	if err = makeGitDir(path, r.Format); err == nil {
		d.store, err = pack.Open(filepath.Join(path, "objects"), pack.Options{Format: r.Format, Alone: true})
	}
	if err != nil {
		os.RemoveAll(path)
		return nil, fault.Wrap(fault.Unavailable, "cannot write to the state directory", err)
	}
	return d, nil
}

// Env returns the environment of Git commands in the directory.
func (d *Dir) Env() []string {
	return append(process.ObjectsEnv(filepath.Join(d.Path, "objects"), filepath.Join(d.repo.Common, "objects")),
		"GIT_DIR="+d.Path, "GIT_SHALLOW_FILE="+filepath.Join(d.repo.Common, "shallow"), "GIT_LITERAL_PATHSPECS=1")
}

// Write writes a file of the directory.
func (d *Dir) Write(name string, data []byte) error {
	file := filepath.Join(d.Path, name)
	err := os.MkdirAll(filepath.Dir(file), 0o700)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	return fault.Wrap(fault.Unavailable, "cannot write to the state directory", err)
}

// Close removes the directory. No command may run in it.
func (d *Dir) Close() {
	d.store.Close()
	_ = os.RemoveAll(d.Path) // if it fails, New removes it at the next start
}
