package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs/locks"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// directories are the repositories below a root. Any program may change them. It implements Places.
type directories struct {
	options repo.Options // with the root
	root    string       // the same
	epoch   uint64
	runner  *process.Runner // nil: commands of Git are refused
	log     *slog.Logger
	sync    func(dir string) error // disk.SyncDir, except in tests
	claims  *claims
	pushes  *receivepack.Server // may be nil
	dropped func(key string)    // called after the repository with a key was deleted
	trash   *trash
	scan    backgroundTask // for hooks

	placing            contextMutex    // held to move a repository to or from its place
	privateDirectories map[string]bool // private directories on other file systems; guarded by placing

	searching       contextMutex // held to search for borrowers; locked before placing
	borrowerEntries int          // maxBorrowerEntries, except in tests
}

var _ Places = (*directories)(nil)

// newDirectories returns the directories below the root of a node, and starts their background work.
func (n *Node) newDirectories(o Options) *directories {
	if o.Epoch == 0 {
		o.Epoch = uint64(time.Now().UnixNano())
	}
	d := &directories{
		options: n.options, root: n.root, epoch: o.Epoch, runner: o.Runner, log: n.log, sync: disk.SyncDir,
		claims: &n.claims, pushes: n.pushes, dropped: n.dropKey, trash: newTrash(n.log),
		placing: newContextMutex(), privateDirectories: make(map[string]bool),
		searching: newContextMutex(), borrowerEntries: maxBorrowerEntries,
	}
	if !o.ReadOnly {
		d.removeLeftovers()
	}
	d.scan.ctx, d.scan.cancel = context.WithCancel(context.Background())
	if n.pushes != nil {
		d.startHookScan(n.pushes.RepositoryHooks())
	}
	return d
}

// stop ends the background work.
func (d *directories) stop() {
	d.scan.cancel()
	d.scan.Wait()
	d.trash.close()
}

// dirPlace is the place of a repository below the root. It implements Place.
type dirPlace struct {
	*directories
	found  string     // a Git directory or a ".git" file; it may lead to dir by symbolic links
	before []string   // places where a repository of the same name would be found first
	dir    string     // real path of the Git directory, or path of its ".git" file
	repo   *repo.Repo // after Open
}

// Name implements Places. Repositories are found by their paths on each request.
func (d *directories) Name(path git.RepoPath) git.RepoPath { return path }

// Acquire implements Places.
func (d *directories) Acquire(_ context.Context, path git.RepoPath) (Place, error) {
	return d.acquire(path)
}

func (d *directories) acquire(path git.RepoPath) (*dirPlace, error) {
	found, before, err := d.find(path)
	if err != nil {
		return nil, err
	}
	dir, err := d.options.Served(found)
	if err != nil {
		return nil, err
	}
	if repo.IsGitFile(dir) {
		dir = found // its content is relative to the place where it was found, as in Git
	}
	return &dirPlace{directories: d, found: found, before: before, dir: dir}, nil
}

// Rename implements Places.
func (d *directories) Rename(context.Context, git.RepoPath, git.RepoPath) error {
	return fault.New(fault.Unavailable, "this node has no store: rename the repository's directory")
}

// Ready implements Places. The node checks the root itself.
func (d *directories) Ready() error { return nil }

// Epoch implements Places.
func (d *directories) Epoch() uint64 { return d.epoch }

// CheckInterval implements Places.
func (d *directories) CheckInterval() time.Duration { return time.Second }

// KeepsCopies implements Places.
func (d *directories) KeepsCopies() bool { return false }

// Path implements Place.
func (p *dirPlace) Path() git.RepoPath {
	path, _ := git.ParseRepoPath(strings.TrimPrefix(p.found, p.root+"/")) // valid: it begins with the path of a request
	return path
}

// Key implements Place.
func (p *dirPlace) Key() string { return p.dir }

// Open implements Place.
func (p *dirPlace) Open(_ context.Context, o repo.Options) (r *repo.Repo, err error) {
	p.repo, err = repo.Open(p.dir, o)
	return p.repo, err
}

// IsFresh implements Place.
func (p *dirPlace) IsFresh(r *repo.Repo) bool {
	return r.Fresh(p.found) && !slices.ContainsFunc(p.before, func(path string) bool {
		is, _ := repo.IsRepository(path)
		return is
	})
}

// Release implements Place.
func (p *dirPlace) Release() {}

// Check implements Place. IsFresh did so.
func (p *dirPlace) Check(context.Context) error { return nil }

// changeBits is the number of bits of a generation that count the changes since the repository was opened. The higher
// bits have the number of the opening. So generations always increase, although the node forgets closed repositories.
const changeBits = 28

// Version implements Place.
func (p *dirPlace) Version(opening, generation uint64) git.Version {
	return git.Version{Incarnation: p.incarnation(), Epoch: p.epoch,
		Generation: opening<<changeBits | min(generation, 1<<changeBits-1)}
}

// incarnation returns a hash of the repository's incarnation and the path by which it was opened. A ".git" file and the
// directory that it names are opened separately, and their generations cannot be compared.
func (p *dirPlace) incarnation() string {
	sum := sha256.Sum256([]byte(p.repo.Incarnation + "\x00" + p.dir))
	return hex.EncodeToString(sum[:16])
}

// MirrorMarks implements Place.
func (p *dirPlace) MirrorMarks() MirrorMarks { return newMirrorMarks(p.repo.Common, p.repo.Config()) }

// Push implements Place.
func (p *dirPlace) Push(context.Context) (receivepack.Shadow, error) { return nil, nil }

// Counts implements Place.
func (p *dirPlace) Counts(ctx context.Context) (pack.Counts, error) { return p.repo.Objects.Count(ctx) }

// Size implements Place. It does not count alternates.
func (p *dirPlace) Size(ctx context.Context) (int64, error) { return size(ctx, p.repo) }

// LFS implements Place.
func (p *dirPlace) LFS() objects.Remote { return nil }

// Locks implements Place.
func (p *dirPlace) Locks() locks.Files {
	return locks.Dir(filepath.Join(p.repo.Common, "lfs", "locks"))
}
