package storage

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/repo"
)

// ClassManage is the class of git commands that make repositories: short ones.
const ClassManage process.Class = "manage"

// NewRepository says what is to be made.
type NewRepository struct {
	Format git.ObjectFormat // 0: SHA-1
	Branch string           // that HEAD names, without refs/heads/; "": main
}

const (
	maxDepth     = 64  // components of the path of a new repository
	maxComponent = 250 // bytes of each, with room for what is put behind one
)

// Create makes an empty bare repository at PATH.git, for a path with or without ".git", and the directories above it. It is there whole or
// not at all, and on disk when this returns without an error. Errors: Exists if the path, one above or one below is taken; Invalid for a path or a branch
// that a repository should not have; Denied where no repository may be; those of git.
func (n *Node) Create(ctx context.Context, path git.RepoPath, want NewRepository) (d Description, err error) {
	defer func() { n.changedRepository("create", path, err) }()
	if n.runner == nil {
		return d, fault.New(fault.Unavailable, "this node makes no repositories")
	}
	name, err := newPath(path)
	if err != nil {
		return d, err
	}
	if err := want.check(); err != nil {
		return d, err
	}
	if err := n.vacant(ctx, name); err != nil { // before anything is made; it is looked at again
		return d, err
	}
	made, err := n.make(ctx, name, func(ctx context.Context, dir string) error { return n.initialise(ctx, dir, want) })
	if !made {
		return d, err
	}
	n.RefsChanged(path)
	if err != nil {
		return d, err
	}
	d, err = n.Describe(ctx, name)
	return d, fault.Wrap(fault.KindOf(err), "the repository is made, but cannot be described", err)
}

var escaped = regexp.MustCompile("%[0-9A-Fa-f]{2}")

// newPath is the path on disk of a repository to be made.
func newPath(path git.RepoPath) (git.RepoPath, error) {
	name := strings.TrimSuffix(path.String(), ".git")
	components := strings.Split(name, "/")
	if len(components) > maxDepth {
		return git.RepoPath{}, fault.New(fault.Invalid, "a path of more than %d components", maxDepth)
	}
	for _, c := range components {
		switch {
		case c == "" || c[0] == '.' || c[0] == '-' || strings.HasSuffix(c, ".git") || strings.HasSuffix(c, ".lock"):
			return git.RepoPath{}, fault.New(fault.Invalid, "%.80q cannot be a part of a new repository's path: "+
				"none begins with a dot or a dash, ends in .lock, or in .git but for the last", c)
		case escaped.MatchString(c): // whatever stands in front and decodes paths once too often finds no other one in it
			return git.RepoPath{}, fault.New(fault.Invalid, "%.80q cannot be a part of a new repository's path: it looks percent-encoded", c)
		case len(c) > maxComponent:
			return git.RepoPath{}, fault.New(fault.Invalid, "a part of the path is longer than %d bytes", maxComponent)
		}
	}
	made, err := git.ParseRepoPath(name + ".git")
	return made, fault.Wrap(fault.Invalid, "the path is too long", err)
}

// check completes what is left open, and refuses a branch that git would not make.
func (w *NewRepository) check() error {
	if w.Format == 0 {
		w.Format = git.SHA1
	}
	if w.Branch == "" {
		w.Branch = "main"
	}
	if _, err := git.ParseRefName("refs/heads/" + w.Branch); err != nil || w.Branch[0] == '-' || w.Branch == "HEAD" {
		return fault.New(fault.Invalid, "%.80q cannot be the name of a branch", w.Branch)
	}
	return nil
}

// vacant is an error of kind Exists if a repository has the path, one above it, or one below it, or something else is in its place.
func (n *Node) vacant(ctx context.Context, name git.RepoPath) error {
	short := strings.TrimSuffix(name.String(), ".git")
	for path := short; path != "."; path = filepath.Dir(path) {
		above, err := git.ParseRepoPath(path)
		if err != nil {
			return fault.Wrap(fault.Invalid, "not a path that a repository can have", err)
		}
		_, _, err = n.find(above)
		switch {
		case err == nil && path == short:
			return fault.New(fault.Exists, "there is a repository %s already", short)
		case err == nil:
			return fault.New(fault.Exists, "%s is a repository, and there is none below one", path)
		case !fault.Is(err, fault.NotFound):
			return err
		}
	}
	for _, place := range []string{short, short + ".git"} {
		info, err := os.Lstat(filepath.Join(n.root, filepath.FromSlash(place)))
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		case err != nil:
			return fault.Wrap(fault.Unavailable, "cannot look at the place of the repository", err)
		case !info.IsDir() || place != short:
			return fault.New(fault.Exists, "something else has the path %s", place)
		}
	}
	below, err := n.list(ctx, ListQuery{Prefix: short + "/", Limit: 1})
	switch {
	case err != nil:
		return err
	case len(below.Paths) > 0:
		return fault.New(fault.Exists, "there is a repository below %s already: %s", short, below.Paths[0])
	case below.Next != "":
		return fault.New(fault.Exists, "%s has too many directories below it to tell whether one is a repository", short)
	}
	return nil
}

// make has a repository made beside its place and moves it there. It may be made, and yet there is an error: it is not known to be on disk.
func (n *Node) make(ctx context.Context, name git.RepoPath, fill func(ctx context.Context, dir string) error) (made bool, err error) {
	dir, err := tempDir(filepath.Join(n.root, ownDir))
	if err != nil {
		return false, cannotMake(err)
	}
	defer os.RemoveAll(filepath.Dir(dir))
	if err := fill(ctx, dir); err != nil {
		return false, err
	}
	select {
	case n.making <- struct{}{}:
		defer func() { <-n.making }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if err := n.vacant(ctx, name); err != nil {
		return false, err
	}
	parent, err := n.parent(filepath.Dir(filepath.FromSlash(name.String())))
	if err != nil {
		return false, err
	}
	target := filepath.Join(parent, filepath.Base(name.String()))
	err = renameNew(dir, target)
	if errors.Is(err, syscall.EXDEV) {
		err = n.makeElsewhere(ctx, parent, target, fill)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return false, fault.Wrap(fault.Exists, "something else has the path "+name.String(), err)
	case err != nil:
		return false, cannotMake(err)
	}
	return true, fault.Wrap(fault.Unavailable, "the repository is made, but may be gone if the machine fails now", n.sync(parent))
}

// makeElsewhere makes a repository on another file system than the root's. The caller has Node.making.
func (n *Node) makeElsewhere(ctx context.Context, parent, target string, fill func(ctx context.Context, dir string) error) error {
	own, err := n.own(parent)
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

// cannotMake tells what an operator can mend; an error that has a kind already keeps it.
func cannotMake(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok || err == nil {
		return err
	}
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fault.Wrap(fault.Denied, "the node may not write below its root", err)
	case errors.Is(err, syscall.ENAMETOOLONG):
		return fault.Wrap(fault.Invalid, "the path is longer than the file system allows", err)
	}
	if isFull(err) {
		return fault.Wrap(fault.Unavailable, "the disk below the node's root is full", err)
	}
	return fault.Wrap(fault.Unavailable, "cannot write below the root", err)
}

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// whyFailed is the error of a git that failed to write below dir: that the disk is full, if it is, which git tells in many ways.
func whyFailed(dir string, failed error) error {
	if !fault.Is(failed, fault.Internal) {
		return failed
	}
	text := strings.ToLower(failed.Error())
	for _, full := range []string{syscall.ENOSPC.Error(), syscall.EDQUOT.Error(), "out of diskspace"} { // the last is git's
		if strings.Contains(text, full) {
			return cannotMake(errors.Join(syscall.ENOSPC, errors.New(failed.Error())))
		}
	}
	probe, err := os.CreateTemp(dir, "probe")
	if err == nil {
		_, err = probe.Write(make([]byte, probeBytes))
		err = errors.Join(err, probe.Close(), os.Remove(probe.Name()))
	}
	if isFull(err) {
		return cannotMake(errors.Join(err, errors.New(failed.Error())))
	}
	return failed
}

// probeBytes is more than the largest file of a new repository.
const probeBytes = 64 << 10

// tempDir names a directory that is not there yet, in a new one, for what is made in an own directory.
func tempDir(own string) (string, error) {
	base := filepath.Join(own, newKind)
	if err := os.MkdirAll(base, 0o700); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(base, "")
	return filepath.Join(temp, "repo.git"), err
}

// initialise runs git init for dir, without templates, and sees to it that all that it makes is on disk.
func (n *Node) initialise(ctx context.Context, dir string, want NewRepository) error {
	err := n.git(ctx, process.Command{Class: ClassManage, Subcommand: "init", Repository: dir, Args: []string{
		"init", "--quiet", "--bare", "--template=", "--initial-branch=" + want.Branch, "--object-format=" + want.Format.String(),
		"--end-of-options", dir,
	}})
	if err != nil {
		return whyFailed(filepath.Dir(dir), err)
	}
	return syncTree(dir)
}

// syncTree has all below a directory on disk.
func syncTree(dir string) error {
	return cannotMake(filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncDir(path) // for a file it does the same
	}))
}

// git runs a command that tells nothing.
func (n *Node) git(ctx context.Context, c process.Command) error {
	p, err := n.runner.Start(ctx, c)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, p.Stdout())
	_, err = p.Wait()
	return err
}

// parent makes the directories above a new repository, and gives the real path of the last. None of them may be a link to outside the
// root, hidden, or in a repository.
func (n *Node) parent(below string) (string, error) {
	dir := n.root
	if below == "." {
		return dir, nil
	}
	for component := range strings.SplitSeq(below, "/") {
		next := filepath.Join(dir, component)
		err := os.Mkdir(next, 0o777)
		if err == nil {
			err = n.sync(dir)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", cannotMake(err)
		}
		real, err := filepath.EvalSymlinks(next)
		if err != nil {
			return "", cannotMake(err)
		}
		if info, err := os.Stat(real); err == nil && !info.IsDir() {
			return "", fault.New(fault.Exists, "a file has the place of the directory %s", component)
		}
		if !n.options.Allows(real) || isOwn(real[len(n.root):]) || repo.IsGitDir(real) {
			return "", fault.New(fault.Denied, "no repository may be below %s", component)
		}
		dir = real
	}
	for above := dir; above != n.root; above = filepath.Dir(above) { // links may have led into another repository's directory
		if repo.IsGitDir(filepath.Dir(above)) || isRepository(filepath.Join(above, ".git")) {
			return "", fault.New(fault.Denied, "no repository may be below another")
		}
	}
	return dir, nil
}

// renameUnlessThere is for systems that cannot refuse to replace: another process may put an empty directory there meanwhile, which is
// then replaced.
func renameUnlessThere(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: fs.ErrExist}
	}
	return os.Rename(from, to)
}
