package places

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
)

// Options configure Directories.
type Options struct {
	Repo     repo.Options    // with the root, see repo.OptionsBelow
	Epoch    uint64          // of versions; zero means the time in nanoseconds since 1970
	ReadOnly bool            // the trash of earlier nodes is not emptied
	Runner   *process.Runner // nil: commands of Git are refused
	Log      *slog.Logger
	Claims   *Claims             // shared with everything else that maintains or cleans up repositories
	Pushes   *receivepack.Server // may be nil
	Deleted  func(key string)    // called after the repository of a Place with this key was deleted
}

// Directories are the repositories below a root. Any program may change them. It implements Places.
type Directories struct {
	Options
	root string                 // that of Repo
	Sync func(dir string) error // disk.SyncDir, except in tests
	// failPoint is called before each step of a renaming. In tests its error is a crash there.
	failPoint func(step string) error

	ctx     context.Context // ends the background work
	cancel  context.CancelFunc
	running sync.WaitGroup
	trash   *semaphore.Weighted // held to empty the trash

	placing            *semaphore.Weighted // held to move a repository to or from its place
	privateDirectories map[string]bool     // private directories on other file systems; guarded by placing

	walked          repo.WalkCache
	listed          listedConfigs
	networks        networks
	expiries        expiries
	sharing         *semaphore.Weighted // held to add objects to the network of a fork
	searching       *semaphore.Weighted // held to search for borrowers; locked before placing
	borrowerEntries int                 // maxBorrowerEntries, except in tests
}

var _ Places = (*Directories)(nil)

// NewDirectories returns the directories below the root, and starts their background work.
func NewDirectories(o Options) *Directories {
	if o.Epoch == 0 {
		o.Epoch = uint64(time.Now().UnixNano())
	}
	d := &Directories{
		Options: o, root: o.Repo.Root, Sync: disk.SyncDir,
		failPoint: func(string) error { return nil }, trash: semaphore.NewWeighted(1),
		placing: semaphore.NewWeighted(1), privateDirectories: make(map[string]bool),
		sharing: semaphore.NewWeighted(1), searching: semaphore.NewWeighted(1), borrowerEntries: maxBorrowerEntries,
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	if !o.ReadOnly {
		d.finishMoves()
		d.removeLeftovers()
	}
	if o.Pushes != nil {
		d.startHookScan(o.Pushes.RepositoryHooks())
	}
	return d
}

// Close ends the background work. No other method may be running.
func (d *Directories) Close() {
	d.cancel()
	d.running.Wait()
}

// dirPlace is the place of a repository below the root. It implements Place.
type dirPlace struct {
	*Directories
	found  string     // a Git directory or a ".git" file; it may lead to dir by symbolic links
	before []string   // places where a repository of the same name would be found first
	dir    string     // real path of the Git directory, or path of its ".git" file
	repo   *repo.Repo // after Open
}

// Name implements Places. Repositories are found by their paths on each request.
func (d *Directories) Name(path git.RepoPath) git.RepoPath { return path }

// Acquire implements Places.
func (d *Directories) Acquire(_ context.Context, path git.RepoPath) (Place, error) {
	return d.acquire(path)
}

func (d *Directories) acquire(path git.RepoPath) (*dirPlace, error) {
	found, before, err := d.find(path)
	if err != nil {
		return nil, err
	}
	dir, err := d.Repo.Served(found)
	if err != nil {
		return nil, err
	}
	if repo.IsGitFile(dir) {
		dir = found // its content is relative to the place where it was found, as in Git
	}
	return &dirPlace{Directories: d, found: found, before: before, dir: dir}, nil
}

// Ready implements Places. The node checks the root itself.
func (d *Directories) Ready() error { return nil }

// Epoch implements Places.
func (d *Directories) Epoch() uint64 { return d.Options.Epoch }

// CheckInterval implements Places.
func (d *Directories) CheckInterval() time.Duration { return time.Second }

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
	return git.Version{Incarnation: p.incarnation(), Epoch: p.Options.Epoch,
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

// PackBytes implements Place.
func (p *dirPlace) PackBytes() (int64, error) {
	packs, indexes, err := p.repo.PackBytes()
	return packs + indexes, err
}

// pushedFile is an empty file in the directory of a repository. Its time is that of the last push or call that changed
// refs.
const pushedFile = "packhorse-pushed"

// NotePush implements Place. The time can be lost in a power failure.
func (p *dirPlace) NotePush() {
	file, now := filepath.Join(p.repo.Common, pushedFile), time.Now()
	err := os.Chtimes(file, now, now)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.WriteFile(file, nil, 0o666)
	}
	if err != nil {
		p.Log.Debug("cannot note the time of a push", "dir", p.dir, "error", err)
	}
}

// PushedAt implements Place.
func (p *dirPlace) PushedAt() (at time.Time) {
	if info, err := os.Stat(filepath.Join(p.repo.Common, pushedFile)); err == nil {
		at = info.ModTime()
	}
	return at
}

// maxRefDirs is the maximum number of directories with refs in Files.
const maxRefDirs = 64

// Files implements Place. Refs change by replacing files, and packs by adding and removing them.
func (p *dirPlace) Files() (files []string) {
	if p.found != p.dir || p.repo.Common != p.dir || p.repo.Dir != p.dir {
		return nil // a link, or several directories
	}
	for _, name := range []string{"", "config", "description", pushedFile, "HEAD", "packed-refs", "objects/pack",
		"reftable"} {
		files = append(files, filepath.Join(p.dir, name))
	}
	for _, name := range []string{settingFiles[CategoryKey], cgitFile} {
		if _, err := os.Lstat(filepath.Join(p.dir, name)); err == nil { // others change the directory when they appear
			files = append(files, filepath.Join(p.dir, name))
		}
	}
	dirs := 0
	err := filepath.WalkDir(filepath.Join(p.dir, "refs"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			files = append(files, path)
			if dirs++; dirs > maxRefDirs {
				return errTooMany
			}
		}
		return err
	})
	if err != nil {
		return nil
	}
	return files
}

// Counts implements Place.
func (p *dirPlace) Counts(ctx context.Context) (pack.Counts, error) { return p.repo.Objects.Count(ctx) }

// Size implements Place. It does not count alternates.
func (p *dirPlace) Size(ctx context.Context) (int64, error) { return size(ctx, p.repo) }

// LFS implements Place.
func (p *dirPlace) LFS() objects.Remote { return nil }

// Locks implements Place.
func (p *dirPlace) Locks() lfs.LockFiles {
	return lfs.LockDir(filepath.Join(p.repo.Common, "lfs", "locks"))
}
