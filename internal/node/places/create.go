package places

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// ClassManage is the class of Git commands that create repositories. They are short.
const ClassManage process.Class = "manage"

// requestFile is the file in the directory of a repository with the RequestID that created it.
const requestFile = "packhorse-request"

// Create implements Places.
func (d *Directories) Create(ctx context.Context, path git.RepoPath, format git.ObjectFormat, head git.RefName,
	request string, settings Settings) error {
	return d.importOnce(ctx, path, request, func(ctx context.Context, dir string) error {
		if err := Initialize(ctx, d.Runner, dir, format, head); err != nil {
			return err
		}
		if request != "" {
			if err := os.WriteFile(filepath.Join(dir, requestFile), []byte(request), 0o600); err != nil {
				return WriteError(err)
			}
		}
		if err := settings.appendTo(filepath.Join(dir, "config")); err != nil {
			return WriteError(err)
		}
		return SyncTree(dir)
	})
}

// importOnce is Import for a request with an ID: it succeeds if the repository exists and fill wrote the ID to
// requestFile. "" means that there is no ID.
func (d *Directories) importOnce(ctx context.Context, path git.RepoPath, request string,
	fill func(ctx context.Context, dir string) error) error {
	err := d.Import(ctx, path, fill)
	if fault.Is(err, fault.Exists) && request != "" {
		id, readErr := os.ReadFile(filepath.Join(d.root, filepath.FromSlash(path.String()), requestFile))
		if readErr == nil && string(id) == request {
			return nil
		}
	}
	return err
}

// Import implements Places. It has fill create a repository in a temporary directory, and moves it to its place.
func (d *Directories) Import(ctx context.Context, path git.RepoPath,
	fill func(ctx context.Context, dir string) error) error {
	if err := d.checkVacant(ctx, path); err != nil { // checked again before the repository is moved to its place
		return err
	}
	dir, err := tempDir(filepath.Join(d.root, repo.PrivateDir))
	if err != nil {
		return WriteError(err)
	}
	defer os.RemoveAll(filepath.Dir(dir))
	if err := fill(ctx, dir); err != nil {
		return err
	}
	if err := d.placing.Acquire(ctx, 1); err != nil {
		return err
	}
	defer d.placing.Release(1)
	if err := d.checkVacant(ctx, path); err != nil {
		return err
	}
	parent, err := d.makeParents(filepath.Dir(filepath.FromSlash(path.String())))
	if err != nil {
		return err
	}
	target := filepath.Join(parent, filepath.Base(path.String()))
	err = renameNew(dir, target)
	if errors.Is(err, syscall.EXDEV) {
		err = d.placeElsewhere(ctx, parent, target, fill)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return fault.Wrap(fault.Exists, "another file has the path "+path.String(), err)
	case err != nil:
		return WriteError(err)
	}
	if err := d.Sync(parent); err != nil {
		return &unsyncedError{fault.Wrap(fault.Unavailable, "the repository was created, but can be lost in a power failure",
			err)}
	}
	return nil
}

// checkVacant returns an error of kind Exists if a repository or another file has the path, or if a repository is above
// or below it.
func (d *Directories) checkVacant(ctx context.Context, name git.RepoPath) error {
	short := strings.TrimSuffix(name.String(), ".git")
	for path := short; path != "."; path = filepath.Dir(path) {
		above, err := git.ParseRepoPath(path)
		if err != nil {
			return fault.Wrap(fault.Invalid, "invalid path", err)
		}
		_, _, err = d.find(above)
		switch {
		case err == nil && path == short:
			return fault.New(fault.Exists, "repository %s already exists", short)
		case err == nil:
			return fault.New(fault.Exists, "%s is a repository: another one cannot be below it", path)
		case !fault.Is(err, fault.NotFound):
			return err
		}
	}
	for _, place := range []string{short, short + ".git"} {
		info, err := os.Lstat(filepath.Join(d.root, filepath.FromSlash(place)))
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		case err != nil:
			return fault.Wrap(fault.Unavailable, "cannot read the place of the repository", err)
		case !info.IsDir() || place != short:
			return fault.New(fault.Exists, "another file has the path %s", place)
		}
	}
	below, err := d.List(ctx, ListQuery{Prefix: short + "/", Limit: 1})
	switch {
	case err != nil:
		return err
	case len(below.Paths) > 0:
		return fault.New(fault.Exists, "a repository is below %s: %s", short, below.Paths[0])
	case below.Next != "":
		return fault.New(fault.Exists, "too many directories below %s to search for repositories", short)
	}
	return nil
}

// placeElsewhere is Import for a file system other than the root's. The caller holds Directories.placing.
func (d *Directories) placeElsewhere(ctx context.Context, parent, target string,
	fill func(ctx context.Context, dir string) error) error {
	own, err := d.privateDirectory(parent)
	if err != nil {
		return err
	}
	dir, err := tempDir(own)
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Dir(dir))
	if err := fill(ctx, dir); err != nil {
		return err
	}
	return renameNew(dir, target)
}

// tempDir returns the path of a new directory to be created in a private directory. Its parent is temporary.
func tempDir(own string) (string, error) {
	base := filepath.Join(own, newKind)
	if err := os.MkdirAll(base, 0o700); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(base, "")
	return filepath.Join(temp, "repo.git"), err
}

// Initialize runs git init for dir, without templates.
func Initialize(ctx context.Context, runner *process.Runner, dir string, format git.ObjectFormat,
	head git.RefName) error {
	branch := strings.TrimPrefix(string(head), BranchPrefix)
	err := runner.Run(ctx, process.Command{Class: ClassManage, Subcommand: "init", Repository: dir, Args: []string{
		"init", "--quiet", "--bare", "--template=", "--initial-branch=" + branch, "--object-format=" + format.String(),
		"--end-of-options", dir,
	}})
	return GitError(filepath.Dir(dir), err)
}

// maxSyncs is the number of files that are synced at the same time: the disk then writes them together.
const maxSyncs = 16

// SyncTree syncs a directory with all files below it.
func SyncTree(dir string) error {
	var group errgroup.Group
	group.SetLimit(maxSyncs)
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			group.Go(func() error { return disk.SyncDir(path) }) // works for files too
		}
		return err
	})
	return WriteError(errors.Join(err, group.Wait()))
}

// makeParents creates the directories above a new repository, and returns the real path of the last one. They must not
// be links to outside the root, hidden, or in a repository.
func (d *Directories) makeParents(below string) (string, error) {
	dir := d.root
	if below == "." {
		return dir, nil
	}
	for component := range strings.SplitSeq(below, "/") {
		next := filepath.Join(dir, component)
		err := os.Mkdir(next, 0o777)
		if err == nil {
			err = d.Sync(dir)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", WriteError(err)
		}
		real, err := filepath.EvalSymlinks(next)
		if err != nil {
			return "", WriteError(err)
		}
		if info, err := os.Stat(real); err == nil && !info.IsDir() {
			return "", fault.New(fault.Exists, "%s is a file, not a directory", component)
		}
		if !d.Repo.Allows(real) || repo.IsPrivate(real[len(d.root):]) || repo.IsGitDir(real) {
			return "", fault.New(fault.Denied, "repositories are not allowed below %s", component)
		}
		dir = real
	}
	for above := dir; above != d.root; above = filepath.Dir(above) { // a link can lead into another repository
		if is, _ := repo.IsRepository(filepath.Join(above, ".git")); is || repo.IsGitDir(filepath.Dir(above)) {
			return "", fault.New(fault.Denied, "a repository cannot be below another one")
		}
	}
	return dir, nil
}

// renameUnlessExists is renameNew for systems whose rename always replaces. It can replace an empty directory that
// another process creates at the same time.
func renameUnlessExists(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: fs.ErrExist}
	}
	return os.Rename(from, to)
}
