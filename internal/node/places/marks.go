package places

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Two marks make a repository a mirror of another server: MirrorFile in its directory (package mirror), and MirrorKey
// in its config. So the loss of one does not make an ordinary repository of it, which has other readers.
const (
	MirrorFile = "packhorse-mirror.json"
	MirrorKey  = "packhorse.mirror"
)

// MirrorMarks are the marks of a mirror that a repository has. One without the other means that the other was lost.
type MirrorMarks struct {
	Dir       string // the Git directory; of a linked worktree that of its repository
	File, Key bool
}

// Any reports whether the repository is or was a mirror.
func (m MirrorMarks) Any() bool { return m.File || m.Key }

// newMirrorMarks returns the marks of the repository in a directory by its config. A file of any kind counts, and so
// does one that cannot be examined.
func newMirrorMarks(dir string, config repo.Config) MirrorMarks {
	_, hasKey := config.Get(MirrorKey)
	_, err := os.Lstat(filepath.Join(dir, MirrorFile))
	return MirrorMarks{Dir: dir, File: !errors.Is(err, fs.ErrNotExist), Key: hasKey}
}

// FindMirrorMarks returns the marks of the repository at a path: a Git directory, or a ".git" file. It does not open
// the repository. The errors are those of reading its config; the marks that are found nevertheless count.
func FindMirrorMarks(path string, o repo.Options) (MirrorMarks, error) {
	text, err := os.ReadFile(filepath.Join(path, "config"))
	if err == nil && !bytes.Contains(bytes.ToLower(text), []byte("packhorse")) { // the usual case, and a fast one
		if _, err := os.Lstat(filepath.Join(path, MirrorFile)); errors.Is(err, fs.ErrNotExist) {
			return MirrorMarks{Dir: path}, nil
		}
	}
	dir, config, err := repo.ReadConfig(path, o)
	if err != nil {
		_, missing := os.Lstat(filepath.Join(path, MirrorFile))
		section, _, _ := strings.Cut(MirrorKey, ".")
		return MirrorMarks{path, missing == nil, bytes.Contains(bytes.ToLower(text), []byte("["+section))}, err
	}
	return newMirrorMarks(dir, config), nil
}

// MirrorCheck returns why a repository with a mark of a mirror is refused, or nil. NotFound hides from callers that it
// exists.
type MirrorCheck func(path git.RepoPath, marks MirrorMarks) error

// SetMirrorKey sets or removes MirrorKey of the repository in a directory.
func SetMirrorKey(ctx context.Context, runner *process.Runner, dir string, isMirror bool) error {
	file := filepath.Join(dir, "config")
	args := []string{"config", "--file", file, "--replace-all", MirrorKey, strconv.FormatBool(isMirror)}
	if !isMirror {
		args = []string{"config", "--file", file, "--unset-all", MirrorKey}
	}
	err := runner.Run(ctx, process.Command{Class: ClassManage, Subcommand: "config", Repository: dir, Args: args})
	if err != nil {
		return GitError(dir, err)
	}
	return WriteError(errors.Join(disk.SyncDir(file), disk.SyncDir(dir))) // SyncDir works for files too
}
