package repo

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// PrivateDir is the name of directories with files of the server. Repositories in them are not served.
const PrivateDir = ".packhorse"

// NetworksDir is the name of the directory, in private directories, with the objects that forks share: NAME/objects.
const NetworksDir = "networks"

// IsNetwork reports whether the path of an object directory, without symbolic links, is one that forks share.
func IsNetwork(objects string) bool {
	networks := filepath.Dir(filepath.Dir(objects))
	return filepath.Base(networks) == NetworksDir && filepath.Base(filepath.Dir(networks)) == PrivateDir
}

// IsPrivate reports whether a path leads through a private directory.
func IsPrivate(path string) bool { return slices.Contains(strings.Split(path, "/"), PrivateDir) }

// OptionsBelow returns options for repositories below a root, except in the hidden directories, which need not exist.
func OptionsBelow(root string, hidden ...string) (o Options, err error) {
	root, err = filepath.EvalSymlinks(root)
	if err == nil {
		o.Root, err = filepath.Abs(root)
	}
	if err != nil {
		return o, fault.Wrap(fault.Invalid, "cannot find the root directory", err)
	}
	for _, dir := range hidden {
		if dir, err = disk.RealPath(dir); err != nil {
			return o, fault.Wrap(fault.Invalid, "cannot find a hidden directory", err)
		}
		o.Hidden = append(o.Hidden, dir)
	}
	return o, nil
}

// IsRepository reports whether a Git directory or a ".git" file is at path. The error is set if that cannot be
// determined. Mostly one system call is enough to exclude it.
func IsRepository(path string) (bool, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return false, nil
	case info.IsDir():
		return LooksLikeGitDir(path)
	}
	return info.Mode().IsRegular() && IsGitFile(path), nil
}

// Served returns the real path of a Git directory or a ".git" file that may be served by its path. The error is
// NotFound outside the root, in a hidden directory, or in the Git directory of another repository. Linked worktrees,
// submodules and pushes in progress there are reached through the files that name them, and not by their paths.
func (o Options) Served(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fault.Wrap(fault.NotFound, "no such repository", err)
	}
	outside := fault.New(fault.NotFound, "no such repository")
	if !o.Allows(real) || IsPrivate(real[len(o.Root):]) {
		return "", outside
	}
	for parent := real; parent != o.Root; {
		parent = filepath.Dir(parent)
		is, err := LooksLikeGitDir(parent)
		if err != nil {
			return "", fault.Wrap(fault.Unavailable, "the repository cannot be read", err)
		}
		if is {
			return "", outside
		}
	}
	return real, nil
}

// Walk finds the repositories below Options.Root that are served under a separate path. It does not search directories
// inside a repository or beside a ".git". It finds links to repositories, but does not follow links to directories with
// repositories. Paths that are not UTF-8 or not valid in requests are omitted.
type Walk struct {
	Options
	Prefix string // of the paths; it may end within a component
	After  string // position after which the walk begins: a path of an earlier walk, or its Last; "": at the first
	// MaxVisits is the maximum number of directories and links to visit. Zero means no limit.
	MaxVisits int
	Last      string // the path that was visited last

	// Skipped is called with paths that look like repositories and are not found, and the reason. Nil: not looked for.
	Skipped func(path, why string)
	// Unreadable is called with each directory below the root that cannot be read. Its error ends the walk. Nil: skipped.
	Unreadable func(dir string, err error) error

	visits int
}

// ErrVisits ends a walk after MaxVisits.
var ErrVisits = errors.New("too many directories")

// All yields the paths of repositories below the root, as they are on disk: "team/app.git", "work/.git". They are
// ordered by their components. An error is the last element. It is ErrVisits, that of ctx, Invalid if After is not a
// path with the prefix, or Unavailable if the root cannot be read.
func (w *Walk) All(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		errEnd := errors.New("no further element is wanted")
		r := walk{Walk: w, ctx: ctx, found: func(path string) error {
			if !yield(path, nil) {
				return errEnd
			}
			return nil
		}}
		if err := r.root(); err != nil && err != errEnd {
			yield("", err)
		}
	}
}

// walk is a running Walk.
type walk struct {
	*Walk
	ctx   context.Context
	found func(path string) error
}

func (w *walk) root() error {
	var after []string
	if w.After != "" {
		if path, err := git.ParseRepoPath(w.After); err != nil || path.String() != w.After || !w.mayHold(w.After) {
			return fault.New(fault.Invalid, "invalid page token: it is not from a list with this prefix")
		}
		after = strings.Split(w.After, "/")
	}
	if strings.HasPrefix(w.Prefix, "/") || strings.Contains(w.Prefix, "//") {
		return nil
	}
	return w.dir("", after)
}

// dir walks the directory below. after has the remaining components of the position at which the walk begins.
func (w *walk) dir(below string, after []string) error {
	names, err := w.names(below)
	if err != nil {
		return err
	}
	for _, name := range names {
		rest := []string(nil)
		if len(after) > 0 {
			if name < after[0] {
				continue
			}
			if name == after[0] {
				if rest = after[1:]; len(rest) == 0 { // the position itself was found before
					continue
				}
			}
		}
		if err := w.entry(join(below, name), rest); err != nil {
			return err
		}
	}
	return nil
}

// names returns the sorted entries of a directory that can lead to the prefix; none if the directory cannot be read.
func (w *walk) names(below string) ([]string, error) {
	if err := w.ctx.Err(); err != nil {
		return nil, err
	}
	if rest, ok := strings.CutPrefix(w.Prefix, below); ok {
		if component, _, more := strings.Cut(strings.TrimPrefix(rest, "/"), "/"); more { // only this one can
			if w.mayHold(join(below, component)) {
				return []string{component}, nil
			}
			return nil, nil
		}
	}
	dir := filepath.Join(w.Root, below)
	f, err := os.Open(dir)
	if err == nil {
		defer f.Close()
		var names []string
		if names, err = f.Readdirnames(-1); err == nil {
			names = slices.DeleteFunc(names, func(name string) bool { return !w.isValid(join(below, name)) })
			slices.Sort(names)
			return names, nil
		}
	}
	switch {
	case below == "":
		return nil, fault.Wrap(fault.Unavailable, "cannot read the root directory", err)
	case w.Unreadable != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, w.Unreadable(dir, err)
	}
	return nil, nil
}

// isValid is mayHold, and reports repositories whose names are the reason.
func (w *walk) isValid(path string) bool {
	if w.mayHold(path) {
		return true
	}
	if w.Skipped != nil && !IsPrivate(path) && w.isRepository(path) {
		w.Skipped(path, "its name cannot be in the path of a request")
	}
	return false
}

// mayHold reports whether the path, or one below it, can have the prefix and is valid.
func (w *walk) mayHold(path string) bool {
	if !strings.HasPrefix(path, w.Prefix) && !strings.HasPrefix(w.Prefix, path+"/") {
		return false
	}
	_, err := git.ParseRepoPath(path)
	return err == nil && utf8.ValidString(path) && !IsPrivate(path)
}

func (w *walk) isRepository(below string) bool {
	is, _ := IsRepository(filepath.Join(w.Root, below))
	return is
}

// entry finds a repository, or walks a directory.
func (w *walk) entry(below string, after []string) (err error) {
	path := filepath.Join(w.Root, below)
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
		return nil
	}
	if w.visits++; w.MaxVisits > 0 && w.visits > w.MaxVisits {
		return ErrVisits
	}
	defer func() {
		if err == nil {
			w.Last = below
		}
	}()
	if info.IsDir() && !w.Allows(path) {
		return nil
	}
	for _, candidate := range []string{join(below, ".git"), below} {
		if !w.isRepository(candidate) {
			continue
		}
		if !strings.HasPrefix(candidate, w.Prefix) || len(after) > 0 {
			return nil
		}
		if _, err := w.Served(filepath.Join(w.Root, candidate)); err != nil {
			w.skip(candidate, "it is a link to outside of the root, or inside another repository")
			return nil
		}
		return w.found(candidate)
	}
	if !info.IsDir() {
		return nil
	}
	if w.Skipped != nil && isDir(path+"/objects") {
		if _, err := os.Lstat(path + "/packed-refs"); err == nil || isDir(path+"/refs") {
			w.skip(below, "HEAD is missing or invalid, or refs is missing")
		}
	}
	return w.dir(below, after)
}

func (w *walk) skip(path, why string) {
	if w.Skipped != nil {
		w.Skipped(path, why)
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func join(below, name string) string {
	if below == "" {
		return name
	}
	return below + "/" + name
}
