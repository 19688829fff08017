// Package backup copies the repositories and the state of a server to a directory, and restores them.
//
// A backup is a directory with plain bare repositories, which Git can read without Packhorse:
//
//	manifest            the last complete backup: its time and its units
//	root/               the repositories, at their paths below the root, and networks of forks
//	state/NAME/         a file or directory of the state directory
//	files/              the configuration and the files that it names
//	new/ID/, old/       units that a running or interrupted backup has made; units to be removed
//	lock                locked by a running backup
//
// A unit is one of these directories: a repository, a network, a part of the state or the files. Its file
// packhorse-backup has a header and the SHA-256 of each of its files. The manifest has the SHA-256 of that file. A unit
// does not change, except that a verification marks damage. For a source that has changed, another unit is made in
// new/, with links to the packs of the former one. The manifest is replaced when all units are on disk, and only then
// units take the places of others. So there is a complete backup at any time, and the next one continues an interrupted
// one.
//
// The source is used while a server and Git change it. See copier for what makes a copy a state that existed.
package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// Options configure a backup.
type Options struct {
	Dir string // the backup's; it is created
	// Root is the root of the repositories. Repositories yields their paths on disk below it, and calls skipped with paths
	// that look like repositories and are not served. An empty Root means that there are none, as with a store.
	Root         string
	Repositories func(skipped func(path, why string)) iter.Seq2[string, error]
	State        string   // the state directory
	Durable      []string // names of its files and directories to back up; missing ones are left out
	Files        []string // absolute paths of other files and directories
	// AllowRemovals permits a backup that drops many repositories of the one before, or is of another root.
	AllowRemovals bool
	Progress      func(done int64, what string)
}

// Problem is something that is not in a backup, or not restored.
type Problem struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// Report is the result of a backup, of a verification or of a restore.
type Report struct {
	At           time.Time `json:"at"`           // of the backup
	Repositories int       `json:"repositories"` // in the backup, verified or restored
	Changed      int       `json:"changed"`      // repositories that were copied since the backup before
	Removed      []string  `json:"removed"`      // of the backup before: paths of repositories, and state/NAME
	Bytes        int64     `json:"bytes"`        // that were copied or verified
	Problems     []Problem `json:"problems"`
	LeftOut      []string  `json:"left_out"` // files of the configuration that do not exist, or were not restored

	mu sync.Mutex
}

func newReport(at time.Time) *Report {
	return &Report{At: at, Removed: []string{}, Problems: []Problem{}, LeftOut: []string{}}
}

func (r *Report) add(path, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Problems = append(r.Problems, Problem{path, fmt.Sprintf(format, args...)})
}

func (r *Report) count(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Bytes += bytes
}

// run is a running backup.
type run struct {
	Options
	report *Report
	was    *manifest                // the complete backup before
	shared func() map[string]stored // fixed files in any unit, by the last part of their name; mu guards the map
	done   atomic.Int64             // units

	isContinued bool // an interrupted backup has made units

	mu       sync.Mutex
	made     *manifest           // this backup
	networks map[string][]string // their fixed files before a member was copied
}

func newRun(o Options) *run {
	now := time.Now().UTC()
	b := &run{Options: o, report: newReport(now), networks: map[string][]string{}, made: &manifest{Format: 1,
		At: now, Units: map[string]unit{}, Links: map[string]string{}, Removed: map[string]string{}}}
	b.shared = sync.OnceValue(b.sharedFiles)
	return b
}

// Run makes a backup. Sources that cannot be copied are in the report: the backup keeps their former copies. An error
// means that the backup is not complete; the one before is unchanged.
func Run(ctx context.Context, o Options) (*Report, error) {
	b := newRun(o)
	err := b.checkPlaces()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return nil, err
	}
	unlock, err := lock(b.Dir, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := b.open(); err != nil {
		return nil, b.explain(err)
	}
	if b.was.Root != "" && b.was.Root != b.Root && !b.AllowRemovals {
		return nil, fault.New(fault.Precondition, "the backup %s is of the root %s, and this server has %s: name another "+
			"directory, or replace that backup with --allow-removals", b.Dir, b.was.Root, cmp.Or(b.Root, "no root"))
	}
	b.made.Root = b.Root
	if err := b.copyAll(ctx); err != nil {
		return nil, b.explain(err)
	}
	if err := b.checkRemovals(); err != nil {
		return nil, err
	}
	for place, u := range b.made.Units {
		if isRepository(place) {
			b.report.Repositories++
			if b.was.Units[place].ID != u.ID {
				b.report.Changed++
			}
		}
	}
	return b.report, b.explain(b.finish())
}

// checkPlaces refuses a backup in what is backed up.
func (b *run) checkPlaces() (err error) {
	if b.Dir, err = disk.RealPath(b.Dir); err != nil {
		return err
	}
	for _, dir := range []*string{&b.Root, &b.State} {
		if *dir == "" {
			continue
		}
		real, err := disk.RealPath(*dir)
		if err != nil || disk.Below(real, b.Dir) || disk.Below(b.Dir, real) {
			return cmp.Or(err, fault.New(fault.Invalid,
				"the backup %s and the directory %s are one below the other: name another directory", b.Dir, *dir))
		}
		*dir = real
	}
	return nil
}

// explain adds a remedy to an error of the backup's directory.
func (b *run) explain(err error) error {
	if disk.IsFull(err) {
		state := "there is no complete backup yet"
		if len(b.was.Units) > 0 {
			state = "the backup of " + b.was.At.Format(time.RFC3339) + " is complete"
		}
		return fmt.Errorf("the disk of %s is full: make room, and run the command again; it continues (%s): %w", b.Dir, state,
			err)
	}
	return err
}

// copyAll makes the units.
func (b *run) copyAll(ctx context.Context) error {
	// The state is first, so that it has no pending delivery of a push that the copies of repositories lack.
	for _, name := range b.Durable {
		if exists(filepath.Join(b.State, name)) {
			s := source{place: filepath.Join(statePlace, name), dir: b.State, only: []string{name}}
			if err := b.unit(ctx, s); err != nil {
				return err
			}
		}
	}
	files := source{place: filesPlace, dir: "/", only: []string{}} // not nil, which means all
	for _, path := range b.Files {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			b.report.LeftOut = append(b.report.LeftOut, path)
		} else if path == "/"+listName || path == "/"+badName {
			b.report.add(path, "a backup has files with this name: rename it")
		} else if !slices.Contains(files.only, path[1:]) {
			files.only = append(files.only, path[1:])
		}
	}
	err := b.unit(ctx, files)
	if err == nil && b.Root != "" {
		err = b.repositories(ctx)
	}
	return err
}

// repositories copies the repositories, and then the networks from which they borrow objects.
func (b *run) repositories(ctx context.Context) error {
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(2 * runtime.GOMAXPROCS(0))
	for path, err := range b.Repositories(b.skipped) {
		if err != nil || each.Err() != nil {
			return cmp.Or(group.Wait(), err)
		}
		dir := filepath.Join(b.Root, path)
		info, err := os.Lstat(dir)
		switch {
		case err != nil: // it was removed meanwhile
		case info.Mode()&fs.ModeSymlink != 0:
			if b.made.Links[path], err = os.Readlink(dir); err != nil {
				b.report.add(path, "%v", err)
			}
		case !info.IsDir():
			b.report.add(path, "it is a file that names its Git directory, and is not in the backup: use bare repositories")
		default:
			group.Go(func() error {
				return b.unit(each, source{place: filepath.Join(rootPlace, path), dir: dir, git: true})
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	members := map[string][]string{} // places of repositories, by network
	for place, u := range b.made.Units {
		if u.Network != "" {
			members[u.Network] = append(members[u.Network], place)
		}
	}
	for network, places := range members {
		dir := filepath.Join(b.Root, network)
		if err := b.unit(ctx, source{place: filepath.Join(rootPlace, network), dir: dir}); err != nil {
			return err
		}
		if after, err := fixedFiles(dir); err != nil || lacks(after, b.networks[network]) {
			b.report.add(network, "objects of this network of forks were removed meanwhile: run the command again")
			for _, place := range places {
				u := b.made.Units[place]
				u.Source, u.Damage = "", "objects of its network were removed while it was copied"
				b.made.Units[place] = u
			}
		}
	}
	return nil
}

// use notes the files of a network before a member is copied.
func (b *run) use(network string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.networks[network]; network != "" && !ok {
		b.networks[network], _ = fixedFiles(filepath.Join(b.Root, network))
	}
}

// skipped keeps the former copy of what looks like a repository and is not served, such as one without a HEAD.
func (b *run) skipped(path, why string) {
	was, had := b.was.Units[filepath.Join(rootPlace, path)]
	if !had {
		b.report.add(path, "it looks like a repository, and is not in the backup: %s", why)
		return
	}
	b.use(was.Network)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made.Units[filepath.Join(rootPlace, path)] = was
	b.report.add(path, "it looks like a repository, and is not served: %s; the backup keeps its copy of %s", why,
		was.At.Format(time.RFC3339))
}
