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
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

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

	Cache *WalkCache // nil: everything is read
	// FoundID is the ID of the directory that was found last. It is zero if it may not identify the repository's files.
	FoundID disk.ID

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
		if path, err := git.ParseRepoPath(w.After); err != nil || path.String() != w.After || IsPrivate(w.After) ||
			!w.mayHold(w.After) {
			return fault.New(fault.Invalid, "invalid page token: it is not from a list with this prefix")
		}
		after = strings.Split(w.After, "/")
	}
	if strings.HasPrefix(w.Prefix, "/") || strings.Contains(w.Prefix, "//") {
		return nil
	}
	now := time.Now()
	return w.dir(seenDir{"", lstat(w.Root), now}, after)
}

// seenDir is a directory below the root that had an ID after a time, and that was not a repository after that.
type seenDir struct {
	below string
	id    disk.ID
	at    time.Time
}

// dir walks a directory. after has the remaining components of the position at which the walk begins.
func (w *walk) dir(d seenDir, after []string) error {
	below := d.below
	names, err := w.names(d)
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
func (w *walk) names(d seenDir) ([]string, error) {
	below := d.below
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
	names, ok := w.Cache.names(below, d.id)
	var err error
	if !ok {
		if names, err = readNames(dir); err == nil {
			names = slices.DeleteFunc(names, func(name string) bool { return !w.isValid(join(below, name)) })
			slices.Sort(names)
			// Otherwise a change of that file can make it a repository.
			if !slices.Contains(names, ".git") && !slices.Contains(names, "HEAD") {
				w.Cache.put(below, cachedDir{id: d.id, names: names}, d.at)
			}
		}
	}
	if err == nil && w.Prefix != "" {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !w.mayHold(join(below, name)) }), nil
	}
	if err == nil {
		return names, nil
	}
	switch {
	case below == "":
		return nil, fault.Wrap(fault.Unavailable, "cannot read the root directory", err)
	case w.Unreadable != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, w.Unreadable(dir, err)
	}
	return nil, nil
}

// readNames returns the names of the entries of a directory.
func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// isValid reports whether requests can name a path, and reports repositories for which that is not so.
func (w *walk) isValid(path string) bool {
	if _, err := git.ParseRepoPath(path); err == nil && utf8.ValidString(path) && !IsPrivate(path) {
		return true
	}
	if w.Skipped != nil && !IsPrivate(path) && w.isRepository(path) {
		w.Skipped(path, "its name cannot be in the path of a request")
	}
	return false
}

// mayHold reports whether the path, or one below it, can have the prefix.
func (w *walk) mayHold(path string) bool {
	return strings.HasPrefix(path, w.Prefix) || strings.HasPrefix(w.Prefix, path+"/")
}

func (w *walk) isRepository(below string) bool {
	is, _ := IsRepository(filepath.Join(w.Root, below))
	return is
}

// entry finds a repository, or walks a directory.
func (w *walk) entry(below string, after []string) (err error) {
	path := w.Root + "/" + below
	now := time.Now()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil
	}
	isDirectory, id := st.Mode&unix.S_IFMT == unix.S_IFDIR, disk.Of(&st)
	if !isDirectory && st.Mode&unix.S_IFMT != unix.S_IFLNK {
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
	if isDirectory && !w.Allows(path) {
		return nil
	}
	if isDirectory && w.Cache.isRepository(below, id) {
		if !strings.HasPrefix(below, w.Prefix) || len(after) > 0 {
			return nil
		}
		w.FoundID = id
		return w.found(below)
	}
	if _, isKnown := w.Cache.names(below, id); isDirectory && isKnown {
		return w.dir(seenDir{below, id, now}, after)
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
		w.FoundID = disk.ID{}
		if isDirectory && candidate == below && id.Settled(now) && lstat(path+"/.git") == (disk.ID{}) {
			w.FoundID = id
			w.Cache.put(below, cachedDir{id: id, isRepository: true}, now)
		}
		return w.found(candidate)
	}
	if !isDirectory {
		return nil
	}
	if w.Skipped != nil && isDir(path+"/objects") {
		if _, err := os.Lstat(path + "/packed-refs"); err == nil || isDir(path+"/refs") {
			w.skip(below, "HEAD is missing or invalid, or refs is missing")
		}
	}
	return w.dir(seenDir{below, id, now}, after)
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
