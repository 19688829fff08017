// Package places finds and changes repositories: in the directories below a root (Directories), or in an object store.
package places

import (
	"context"
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Places finds and changes the repositories of a node: Directories, or those of an object store, of which the
// directories below the root are copies. It is safe for concurrent use.
type Places interface {
	// Name returns the path by which a repository is known. Paths with the same name lead to the same repository.
	Name(path git.RepoPath) git.RepoPath
	// Acquire returns the Place of a repository, which the caller has to release. In a store it needs no I/O for a known
	// path. Errors: NotFound and Unavailable.
	Acquire(ctx context.Context, path git.RepoPath) (Place, error)
	// List returns a page of paths in a fixed order. ListQuery.Limit is set.
	List(ctx context.Context, q ListQuery) (Page, error)
	// Create creates an empty repository whose HEAD names a branch. Errors: Exists, Denied, Unavailable, those of Git. If
	// it exists and was created with the same requestID, which is not empty, there is no error.
	Create(ctx context.Context, path git.RepoPath, format git.ObjectFormat, head git.RefName, requestID string,
		settings Settings) error
	// Import creates a repository. It has fill create a bare repository in a directory, perhaps twice. Errors are those of
	// Create and of fill.
	Import(ctx context.Context, path git.RepoPath, fill func(ctx context.Context, dir string) error) error
	// Fork creates a repository with refs and objects of another one, but without its settings. They share the space of
	// objects, and neither depends on the other. Errors: NotFound, those of Create, and Denied for a repository that
	// cannot be forked.
	Fork(ctx context.Context, source, target git.RepoPath, o ForkOptions) error
	// Detach gives a repository its own copy of all objects that it borrows from the network of its forks.
	Detach(ctx context.Context, path git.RepoPath, git RunGit) error
	// Delete deletes a repository. The error is NotFound also for another incarnation, Exhausted during maintenance, and
	// Unavailable if the search for borrowers failed. It is Denied if other repositories borrow objects, unless Force is
	// set. It is also Denied for a repository with linked worktrees, a work tree or extensions.preciousObjects, and for a
	// link.
	Delete(ctx context.Context, path git.RepoPath, o DeleteOptions) error
	// Rename gives a repository another path. Errors: NotFound, Exists, Unavailable.
	Rename(ctx context.Context, from, to git.RepoPath) error
	// Ready returns why repositories cannot be served, or nil.
	Ready() error
	// Epoch is that of events of repositories that do not exist.
	Epoch() uint64
	// CheckInterval is the interval of checks of watched repositories for changes by others.
	CheckInterval() time.Duration
}

// DeleteOptions restrict what Delete removes.
type DeleteOptions struct {
	Incarnation string // fail if the repository has another incarnation; "": any
	Force       bool   // remove the repository even if others borrow its objects
}

// ListQuery selects repositories.
type ListQuery struct {
	Prefix string // of the path; it may end within a component
	After  string // Next of the previous page; "": the first page
	Limit  int    // maximum number of paths; zero means MaxPage
	// IsFurther reports whether the page follows one of the same list. In a store it may be a few seconds older.
	IsFurther bool
	All       bool // also mirrors that must not be read

	Labels []string    // only repositories with all of these labels, KEY or KEY=VALUE
	LFS    bool        // only repositories that may have LFS objects or locks
	Accept MirrorCheck // if not All: lists only mirrors for which it returns nil
}

// MaxPage is the maximum number of paths in a page.
const MaxPage = 1000

// Page is a part of a list of repositories.
type Page struct {
	Paths []string // below the root, as they are on disk: "team/app.git", "work/.git"
	Next  string   // position of the next page; "": this is the last one
}

// Place is one repository of Places. It is safe for concurrent use. Open comes before all methods after it.
type Place interface {
	// Path returns the path of the repository in lists.
	Path() git.RepoPath
	// Key identifies the repository: Places with the same key share an open one.
	Key() string
	// Open opens the repository.
	Open(ctx context.Context, o repo.Options) (*repo.Repo, error)
	// IsFresh reports whether the open repository of a Place with the same key is still at the path.
	IsFresh(r *repo.Repo) bool
	Release() // ends the use of the Place

	// Check makes sure that the repository exists, and that its latest known refs are current.
	Check(ctx context.Context) error
	// Version returns the version of refs with a generation. opening is greater for later openings.
	Version(opening, generation uint64) git.Version
	// MirrorMarks returns the marks of a mirror.
	MirrorMarks() MirrorMarks
	// Push returns the shadow for a push. Nil: the push takes place in the repository.
	Push(ctx context.Context) (receivepack.Shadow, error)
	// NotePush notes that a push or a call has changed refs now.
	NotePush()
	// PushedAt returns when that was last; the zero time if it is not known.
	PushedAt() time.Time
	// Expires returns when the repository is removed; the zero time if it has no lifetime.
	Expires() time.Time
	// PackBytes returns the size of the repository's own packs and their indexes in bytes.
	PackBytes() (int64, error)
	// Files returns the paths of files and directories on which descriptions in lists depend. Nil: they change otherwise.
	Files() []string
	// Counts returns the objects and packs of the latest known state, whether they are here or not.
	Counts(ctx context.Context) (pack.Counts, error)
	// Size returns the size of the repository in bytes, or -1 if it has too many files.
	Size(ctx context.Context) (int64, error)
	// Maintain repacks the repository with commands of Git.
	Maintain(ctx context.Context, git RunGit, o MaintainOptions) error
	// Collect removes objects that nothing reaches. No maintenance may run. Errors: Denied, Precondition, Unavailable, and
	// those of Git.
	Collect(ctx context.Context, git RunGit, o CollectOptions) (Collected, error)
	// Purge removes unreachable objects and all copies of them. No maintenance may run. The error is Precondition if refs
	// reach them, here or in a repository that shares objects. Others are those of Collect and Configure.
	Purge(ctx context.Context, git RunGit, o PurgeOptions) (Purged, error)
	// Copies searches for copies of objects, in other files, too.
	Copies(ctx context.Context, git RunGit, o PurgeOptions, others []string) (Search, error)
	// LFS returns the storage of the repository's LFS objects. Nil: its directory has them.
	LFS() objects.Remote
	// Locks returns the locks of files of the repository.
	Locks() lfs.LockFiles
	// SetHead sets HEAD to a branch, which need not exist, if check allows that. A nil check does.
	SetHead(ctx context.Context, branch git.RefName, check func() (bool, error)) (done bool, err error)
	// Configure has change change the settings, all at once. It may call change several times. Errors are those of change,
	// Exhausted while another program changes them, and Unavailable.
	Configure(ctx context.Context, change func(Settings) error) error
}

// MaintainOptions configure the maintenance of a repository.
type MaintainOptions struct {
	PackRefs bool // refs are packed
	TipPack  bool // the repository has a tip pack: see UpdateTip
}

// RunGit runs a Git command of maintenance in a repository.
type RunGit func(ctx context.Context, r *repo.Repo, c GitCommand) error

// GitCommand is a Git command of maintenance.
type GitCommand struct {
	Args  []string // after the options of git itself; the first one names the command
	Env   []string // KEY=VALUE
	Stdin string
	// Input is standard input instead of Stdin; nil: Stdin is.
	Input io.Reader
	// Output reads standard output; nil: it is not needed.
	Output func(io.Reader) error
}
