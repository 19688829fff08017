package repo

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/refs"
)

// layout has the directories of a repository (gitrepository-layout(5), ".git" as a file, "commondir"; git-worktree(1),
// "Details"). A submodule and a linked worktree have a file named ".git" that names their git directory. The git
// directory of a worktree names the common directory.
type layout struct {
	gitDir    string // HEAD and the other files of one worktree
	commonDir string // the other files; mostly the same directory

	gitFile      *watchedFile // the ".git" file; nil: there is none
	gitFileTo    string       // the path in it, which may lead to gitDir by symbolic links
	commonFile   watchedFile  // the commondir file, which may be missing
	commonFileTo string       // the path in it, likewise
}

const (
	// maxPointer is the maximum size of a ".git" file and a commondir file in bytes: the longest path of the system and
	// some white space.
	maxPointer    = unix.PathMax + 1024
	pointerPrefix = "gitdir: "
	commonName    = "commondir"
)

// locate finds the parts of the repository at path: a git directory, or a file that names one.
func locate(path string, o Options) (*layout, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(fault.NotFound, "no such repository", err)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "cannot open the repository", err)
	}
	p := &layout{gitDir: path}
	if !info.IsDir() {
		if err := p.follow(path, o); err != nil {
			return nil, err
		}
	}
	p.commonDir = p.gitDir
	commonPath := filepath.Join(p.gitDir, commonName)
	if err := o.checkContained(commonPath, commonName+" file"); err != nil {
		return nil, err
	}
	text, err := p.commonFile.read(commonPath, maxPointer)
	if err != nil {
		return nil, cannotRead(commonName+" file", err)
	}
	if p.commonFile.known.Load().id == (disk.ID{}) {
		return p, nil
	}
	p.commonFileTo = relativeTo(p.gitDir, trimLineEnds(text))
	p.commonDir, err = o.resolve(p.commonFileTo, commonName+" file")
	return p, err
}

// LinkedDirs returns the directories that the ".git" and commondir files of the repository at path name, and its object
// directory last. The path is a git directory or a ".git" file. The returned paths may pass through symbolic links. The
// error is NotFound if one of the directories does not exist.
func LinkedDirs(path string) ([]string, error) {
	p, err := locate(path, Options{})
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, dir := range []string{p.gitFileTo, p.commonFileTo} {
		if dir != "" {
			dirs = append(dirs, dir)
		}
	}
	return append(dirs, filepath.Join(p.commonDir, "objects")), nil
}

// follow reads the ".git" file at path.
func (p *layout) follow(path string, o Options) error {
	p.gitFile = new(watchedFile)
	text, err := p.gitFile.read(path, maxPointer)
	if err != nil {
		return cannotRead(".git file", err)
	}
	target, ok := strings.CutPrefix(trimLineEnds(text), pointerPrefix)
	if !ok || target == "" {
		return fault.Wrap(fault.Corrupt, "the repository's .git file does not name its directory (gitdir: PATH)",
			errors.New(path))
	}
	p.gitFileTo = relativeTo(filepath.Dir(path), target)
	if p.gitDir, err = o.resolve(p.gitFileTo, ".git file"); err != nil {
		return err
	}
	if !IsGitDir(p.gitDir) {
		return fault.Wrap(fault.NotFound, "the repository's .git file names a directory that is not a repository",
			errors.New(p.gitFileTo))
	}
	return nil
}

func trimLineEnds(text []byte) string { return string(bytes.TrimRight(text, "\r\n")) }

// relativeTo returns the path for a path in a file of dir. It is not cleaned, because ".." after a symbolic link is the
// parent of the link's target, as in git.
func relativeTo(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return dir + "/" + path
}

// resolve resolves a path in one of a repository's files, without symbolic links. A path outside the allowed
// directories is refused, whether it exists or not.
func (o Options) resolve(path, file string) (string, error) {
	if strings.IndexByte(path, 0) >= 0 {
		return "", fault.New(fault.Corrupt, "the repository's %s contains a NUL byte", file)
	}
	real, err := filepath.EvalSymlinks(path)
	if real == "" {
		real = filepath.Clean(path)
	}
	switch {
	case !o.Allows(real):
		return "", fault.Wrap(fault.Denied, "the repository's "+file+" names a directory outside the served root",
			fmt.Errorf("%q", path))
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return "", fault.Wrap(fault.NotFound, "the repository's "+file+" names a directory that does not exist", err)
	case err != nil:
		return "", fault.Wrap(fault.Unavailable, "cannot follow the repository's "+file, err)
	}
	return real, nil
}

// Allows reports whether a path may be a repository or a part of one. The path and the root must not contain symbolic
// links.
func (o Options) Allows(real string) bool {
	if o.Root != "" && !disk.Below(o.Root, real) {
		return false
	}
	return !slices.ContainsFunc(o.Hidden, func(hidden string) bool { return disk.Below(hidden, real) })
}

// allowsGraph is Allows for commit-graphs, which may also be in a network of forks.
func (o Options) allowsGraph(real string) bool {
	networks := "/" + PrivateDir + "/" + NetworksDir + "/"
	return o.Allows(real) || strings.Contains(real, networks) && (o.Root == "" || disk.Below(o.Root, real))
}

// checkContained returns an error if a repository's file is a link to outside the allowed directories. Call it before
// the file is read, so that no error reveals whether the target exists. The error contains the name file.
func (o Options) checkContained(path, file string) error {
	if o.Root == "" {
		return nil
	}
	real, err := filepath.EvalSymlinks(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return cannotRead(file, err)
	case !o.Allows(real):
		return fault.Wrap(fault.Denied, "the repository's "+file+" is a link to outside the served root",
			errors.New(path))
	}
	return nil
}

// identity returns an identity that a later repository at the same path does not have.
func (p *layout) identity() (string, error) {
	id, err := identity(p.gitDir)
	if err == nil && p.commonDir != p.gitDir {
		var common string
		common, err = identity(p.commonDir)
		id += "+" + common
	}
	return id, err
}

// isCurrent reports whether the path still leads to the same directories, through unchanged files.
func (p *layout) isCurrent(path, incarnation string) bool {
	if p.gitFile != nil {
		if path != p.gitFile.path || !p.gitFile.isUnchanged() {
			return false
		}
		path = p.gitFileTo
	}
	now, err := identity(path)
	if err != nil || !p.commonFile.isUnchanged() {
		return false
	}
	if p.commonDir != p.gitDir {
		common, err := identity(p.commonFileTo)
		if err != nil {
			return false
		}
		now += "+" + common
	}
	return now == incarnation
}

// IsGitFile reports whether a regular file at path is, or should be, a ".git" file, which names a git directory.
func IsGitFile(path string) bool {
	f, err := disk.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if filepath.Base(path) == ".git" {
		return true
	}
	var head [len(pointerPrefix)]byte
	n, _ := f.Read(head[:])
	return string(head[:n]) == pointerPrefix
}

// IsGitDir reports whether dir is a git directory. It needs a valid HEAD, and objects and refs, which may be in the
// directory that its commondir file names (gitrepository-layout(5)).
func IsGitDir(dir string) bool {
	is, _ := LooksLikeGitDir(dir)
	return is
}

// LooksLikeGitDir is IsGitDir with an error if that cannot be determined: for lack of file descriptors or memory, or
// because the disk failed.
func LooksLikeGitDir(dir string) (bool, error) {
	if is, err := isHead(filepath.Join(dir, "HEAD")); !is {
		return false, err
	}
	text, err := readAll(filepath.Join(dir, commonName), maxPointer)
	if err == nil {
		dir = relativeTo(dir, trimLineEnds(text))
	} else if err := CannotTell(err); err != nil {
		return false, err
	}
	for _, part := range []string{"objects", "refs"} {
		if info, err := os.Stat(dir + "/" + part); err != nil || !info.IsDir() {
			return false, CannotTell(err)
		}
	}
	return true, nil
}

// isHead reports whether the file at path is a valid HEAD.
func isHead(path string) (bool, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return false, CannotTell(err)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(path)
		return err == nil && strings.HasPrefix(target, "refs/"), CannotTell(err)
	}
	text, err := readAll(path, 256)
	return err == nil && refs.IsHead(text), CannotTell(err)
}

// CannotTell returns err if it does not reveal whether a file exists, and nil for all other errors.
func CannotTell(err error) error {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO} {
		if errors.Is(err, e) {
			return err
		}
	}
	return nil
}
