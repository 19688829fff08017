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
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// ClassManage is the class of Git commands that create repositories. They are short.
const ClassManage process.Class = "manage"

// CreateOptions configure a new repository.
type CreateOptions struct {
	Format git.ObjectFormat // zero: SHA-1
	Branch string           // that HEAD names, without refs/heads/; "": main
	// AnyName allows components of the path that begin with a dot or a dash, as on other Git hosts: "team/.github".
	AnyName bool
	Mirror  []byte // content of MirrorFile; nil: it is not a mirror
	// RequestID makes a repeated Create succeed: if the repository exists and was created with this ID, it is described.
	// Empty means that a repeated Create fails.
	RequestID string
}

// requestFile is the file in the directory of a repository with the RequestID that created it.
const requestFile = "packhorse-request"

var requestID = regexp.MustCompile(`^[A-Za-z0-9._-]{0,64}$`)

const (
	maxDepth     = 64  // components of the path of a new repository
	maxComponent = 250 // bytes of each, so that suffixes fit
)

// Create creates an empty bare repository at PATH.git, for a path with or without ".git", and the directories above it.
// It is atomic, and durable if there is no error. The error is Exists if the path, one above it or one below it is
// taken. It is Invalid for an invalid path or branch, and Denied for a place where repositories are not allowed. Other
// errors are those of Git.
func (n *Node) Create(ctx context.Context, path git.RepoPath, o CreateOptions) (d Description, err error) {
	defer func() { n.changedRepository("create", path, err) }()
	if err := o.check(); err != nil {
		return d, err
	}
	name, err := newPath(path, o.AnyName)
	if err != nil {
		return d, err
	}
	head := git.RefName(branchPrefix + o.Branch)
	if o.Mirror == nil {
		err = n.places.Create(ctx, n.places.Name(name), o.Format, head, o.RequestID)
	} else {
		err = n.places.Import(ctx, n.places.Name(name), func(ctx context.Context, dir string) error {
			return n.initializeMirror(ctx, dir, o.Format, head, o.Mirror)
		})
	}
	return n.describeNew(ctx, path, name, err)
}

// describeNew describes a repository that was created; err is the result. name is its path on disk.
func (n *Node) describeNew(ctx context.Context, path, name git.RepoPath, err error) (Description, error) {
	_, exists := errors.AsType[*unsyncedError](err)
	if err == nil || exists {
		n.RefsChanged(path)
	}
	if err != nil {
		return Description{}, err
	}
	d, err := n.Describe(ctx, name)
	return d, fault.Wrap(fault.KindOf(err), "the repository was created, but cannot be described", err)
}

// unsyncedError is the error of a repository that was created or deleted, which a power failure can take back.
type unsyncedError struct{ error }

func (e *unsyncedError) Unwrap() error { return e.error }

// Create implements Places.
func (d *directories) Create(ctx context.Context, path git.RepoPath, format git.ObjectFormat, head git.RefName,
	request string) error {
	err := d.Import(ctx, path, func(ctx context.Context, dir string) error {
		if err := initialize(ctx, d.runner, dir, format, head); err != nil {
			return err
		}
		if request != "" {
			if err := os.WriteFile(filepath.Join(dir, requestFile), []byte(request), 0o600); err != nil {
				return writeError(err)
			}
		}
		return syncTree(dir)
	})
	if fault.Is(err, fault.Exists) && request != "" {
		id, readErr := os.ReadFile(filepath.Join(d.root, filepath.FromSlash(path.String()), requestFile))
		if readErr == nil && string(id) == request {
			return nil
		}
	}
	return err
}

// Import implements Places.
func (d *directories) Import(ctx context.Context, path git.RepoPath,
	fill func(ctx context.Context, dir string) error) error {
	if d.runner == nil {
		return fault.New(fault.Unavailable, "this node does not create repositories")
	}
	if err := d.checkVacant(ctx, path); err != nil { // checked again before the repository is moved to its place
		return err
	}
	return d.place(ctx, path, fill)
}

var escaped = regexp.MustCompile("%[0-9A-Fa-f]{2}")

// newPath returns the path on disk of a new repository. anyName is CreateOptions.AnyName.
func newPath(path git.RepoPath, anyName bool) (git.RepoPath, error) {
	name := strings.TrimSuffix(path.String(), ".git")
	components := strings.Split(name, "/")
	if len(components) > maxDepth {
		return git.RepoPath{}, fault.New(fault.Invalid, "path with more than %d components", maxDepth)
	}
	for _, c := range components {
		switch {
		case c == "" || !anyName && (c[0] == '.' || c[0] == '-') || c == repo.PrivateDir || strings.HasSuffix(c, ".git") ||
			strings.HasSuffix(c, ".lock"):
			return git.RepoPath{}, fault.New(fault.Invalid, "path component %.80q: it must not begin with a dot or a dash, "+
				"or end in .lock; only the last one can end in .git", c)
		case escaped.MatchString(c): // a proxy that decodes paths twice must not find another repository
			return git.RepoPath{}, fault.New(fault.Invalid, "path component %.80q: it looks percent-encoded", c)
		case len(c) > maxComponent:
			return git.RepoPath{}, fault.New(fault.Invalid, "path component longer than %d bytes", maxComponent)
		}
	}
	path, err := git.ParseRepoPath(name + ".git")
	return path, fault.Wrap(fault.Invalid, "the path is too long", err)
}

// check sets the defaults, and refuses a branch that Git does not create.
func (o *CreateOptions) check() error {
	if o.Format == 0 {
		o.Format = git.SHA1
	}
	if o.Branch == "" {
		o.Branch = "main"
	}
	if _, err := git.ParseRefName("refs/heads/" + o.Branch); err != nil || o.Branch[0] == '-' || o.Branch == "HEAD" {
		return fault.New(fault.Invalid, "invalid branch name %q", fault.Short(o.Branch))
	}
	if !requestID.MatchString(o.RequestID) {
		return fault.New(fault.Invalid, `invalid request ID %q: use at most 64 letters, digits, ".", "_" and "-"`,
			fault.Short(o.RequestID))
	}
	return nil
}

// checkVacant returns an error of kind Exists if a repository or another file has the path, or if a repository is above
// or below it.
func (d *directories) checkVacant(ctx context.Context, name git.RepoPath) error {
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

// place has fill create a repository in a temporary directory, and moves it to its place.
func (d *directories) place(ctx context.Context, name git.RepoPath,
	fill func(ctx context.Context, dir string) error) error {
	dir, err := tempDir(filepath.Join(d.root, repo.PrivateDir))
	if err != nil {
		return writeError(err)
	}
	defer os.RemoveAll(filepath.Dir(dir))
	if err := fill(ctx, dir); err != nil {
		return err
	}
	if err := d.placing.lock(ctx); err != nil {
		return err
	}
	defer d.placing.unlock()
	if err := d.checkVacant(ctx, name); err != nil {
		return err
	}
	parent, err := d.makeParents(filepath.Dir(filepath.FromSlash(name.String())))
	if err != nil {
		return err
	}
	target := filepath.Join(parent, filepath.Base(name.String()))
	err = renameNew(dir, target)
	if errors.Is(err, syscall.EXDEV) {
		err = d.placeElsewhere(ctx, parent, target, fill)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return fault.Wrap(fault.Exists, "another file has the path "+name.String(), err)
	case err != nil:
		return writeError(err)
	}
	if err := d.sync(parent); err != nil {
		return &unsyncedError{fault.Wrap(fault.Unavailable, "the repository was created, but can be lost in a power failure",
			err)}
	}
	return nil
}

// placeElsewhere is place for a file system other than the root's. The caller holds directories.placing.
func (d *directories) placeElsewhere(ctx context.Context, parent, target string,
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

// writeError returns the error of a write below the root with its cause for the operator. An error with a kind keeps
// it.
func writeError(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok || err == nil {
		return err
	}
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fault.Wrap(fault.Denied, "the node has no permission to write below its root", err)
	case errors.Is(err, syscall.ENAMETOOLONG):
		return fault.Wrap(fault.Invalid, "path too long for the file system", err)
	}
	if isFull(err) {
		return fault.Wrap(fault.Unavailable, "the disk below the node's root is full", err)
	}
	return fault.Wrap(fault.Unavailable, "cannot write below the root", err)
}

func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// gitError returns the error of a Git command that failed to write below dir. Git reports a full disk in many ways;
// the returned error names it as the cause.
func gitError(dir string, failed error) error {
	if !fault.Is(failed, fault.Internal) {
		return failed
	}
	text := strings.ToLower(failed.Error())
	for _, full := range []string{syscall.ENOSPC.Error(), syscall.EDQUOT.Error(), "out of diskspace" /* Git's own */} {
		if strings.Contains(text, full) {
			return writeError(errors.Join(syscall.ENOSPC, errors.New(failed.Error())))
		}
	}
	probe, err := os.CreateTemp(dir, "probe")
	if err == nil {
		_, err = probe.Write(make([]byte, probeBytes))
		err = errors.Join(err, probe.Close(), os.Remove(probe.Name()))
	}
	if isFull(err) {
		return writeError(errors.Join(err, errors.New(failed.Error())))
	}
	return failed
}

// probeBytes is the size of a test file: more than the largest file of a new repository.
const probeBytes = 64 << 10

// tempDir returns the path of a new directory to be created in a private directory. Its parent is temporary.
func tempDir(own string) (string, error) {
	base := filepath.Join(own, newKind)
	if err := os.MkdirAll(base, 0o700); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(base, "")
	return filepath.Join(temp, "repo.git"), err
}

// initialize runs git init for dir, without templates.
func initialize(ctx context.Context, runner *process.Runner, dir string, format git.ObjectFormat,
	head git.RefName) error {
	branch := strings.TrimPrefix(string(head), branchPrefix)
	err := runGit(ctx, runner, process.Command{Class: ClassManage, Subcommand: "init", Repository: dir, Args: []string{
		"init", "--quiet", "--bare", "--template=", "--initial-branch=" + branch, "--object-format=" + format.String(),
		"--end-of-options", dir,
	}})
	return gitError(filepath.Dir(dir), err)
}

// initializeMirror is initialize for a mirror, whose MirrorFile has the content. It syncs the result.
func (n *Node) initializeMirror(ctx context.Context, dir string, format git.ObjectFormat, head git.RefName,
	content []byte) error {
	if err := initialize(ctx, n.runner, dir, format, head); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, MirrorFile), content, 0o600); err != nil {
		return writeError(err)
	}
	if err := n.SetMirrorKey(ctx, dir, true); err != nil {
		return err
	}
	return syncTree(dir)
}

// syncTree syncs a directory with all files below it.
func syncTree(dir string) error {
	return writeError(filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return disk.SyncDir(path) // works for files too
	}))
}

// runGit runs a Git command without output.
func runGit(ctx context.Context, runner *process.Runner, c process.Command) error {
	p, err := runner.Start(ctx, c)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, p.Stdout())
	_, err = p.Wait()
	return err
}

// makeParents creates the directories above a new repository, and returns the real path of the last one. They must not
// be links to outside the root, hidden, or in a repository.
func (d *directories) makeParents(below string) (string, error) {
	dir := d.root
	if below == "." {
		return dir, nil
	}
	for component := range strings.SplitSeq(below, "/") {
		next := filepath.Join(dir, component)
		err := os.Mkdir(next, 0o777)
		if err == nil {
			err = d.sync(dir)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", writeError(err)
		}
		real, err := filepath.EvalSymlinks(next)
		if err != nil {
			return "", writeError(err)
		}
		if info, err := os.Stat(real); err == nil && !info.IsDir() {
			return "", fault.New(fault.Exists, "%s is a file, not a directory", component)
		}
		if !d.options.Allows(real) || repo.IsPrivate(real[len(d.root):]) || repo.IsGitDir(real) {
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
