// Package backup copies the repositories and the state of a server to a directory, and restores them.
//
// A backup is a directory with plain bare repositories, which Git can read without Packhorse:
//
//	manifest            the last complete backup: its time and its units
//	root/               the repositories, at their paths below the root, and networks of forks
//	state/, files/      files of the state directory; the configuration and the files that it names
//	new/ID/, old/       units that a running or interrupted backup has made; units to be removed
//	lock                locked by a running backup
//
// A unit is one of these directories: a repository, a network, the state or the files. Its file packhorse-backup has a
// header and the SHA-256 of each of its files. The manifest has the SHA-256 of that file. A unit does not change. For a
// source that has changed, another unit is made in new/, with links to the packs of the former one. The manifest is
// replaced when all units are on disk, and only then units take the places of others. So there is a complete backup at
// any time, and the next one continues an interrupted one.
//
// The source is used while a server and Git change it. See copier for what makes a copy a state that existed.
package backup

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Names in a backup.
const (
	manifestName = "manifest"
	listName     = "packhorse-backup"
	rootPlace    = "root"
	statePlace   = "state"
	filesPlace   = "files"
	newName      = "new"
	oldName      = "old"
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
	Removed      []string  `json:"removed"`      // repositories of the backup before that this one does not have
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

// manifest lists the units of a complete backup.
type manifest struct {
	Format  int               `json:"format"`         // 1
	At      time.Time         `json:"at"`             // when the backup began: it has what was acknowledged before
	Root    string            `json:"root,omitempty"` // of the repositories
	Units   map[string]unit   `json:"units"`          // by place, the path in the backup
	Links   map[string]string `json:"links,omitempty"`
	Removed map[string]string `json:"removed,omitempty"` // places of former units, with their IDs
}

// unit is an entry of the manifest.
type unit struct {
	ID     string    `json:"id"`
	At     time.Time `json:"at"`     // of the copy
	Source string    `json:"source"` // state of the source, from stat; empty: unknown
	List   string    `json:"list"`   // SHA-256 of the list
	// Network is the path below the root of the network from which a repository borrows objects.
	Network string `json:"network,omitempty"`
	Damage  string `json:"damage,omitempty"` // of the source
	// IsBad reports that a verification found damage of the unit. The next backup makes it again.
	IsBad bool `json:"bad,omitempty"`
}

// run is a running backup.
type run struct {
	Options
	report *Report
	was    *manifest           // the complete backup before
	begun  map[string][]string // units that an interrupted backup has made, by place: their IDs

	mu     sync.Mutex
	units  map[string]unit
	done   int64
	shared map[string]stored // see sharedFile; nil: not read yet
}

// Run makes a backup. Sources that cannot be copied are in the report: the backup keeps their former copies. An error
// means that the backup is not complete; the one before is unchanged.
func Run(ctx context.Context, o Options) (*Report, error) {
	b := &run{Options: o, report: newReport(time.Now().UTC()), units: map[string]unit{}}
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
	made := &manifest{Format: 1, At: b.report.At, Root: b.Root, Links: map[string]string{}, Removed: map[string]string{}}
	if err := b.copyAll(ctx, made); err != nil {
		return nil, b.explain(err)
	}
	if err := b.checkRemovals(made); err != nil {
		return nil, err
	}
	made.Units = b.units
	for place, u := range b.units {
		if isRepository(place) {
			b.report.Repositories++
			if b.was.Units[place].ID != u.ID {
				b.report.Changed++
			}
		}
	}
	for place, was := range b.was.Units {
		if b.units[place].ID != was.ID {
			made.Removed[place] = was.ID
		}
	}
	return b.report, b.explain(b.finish(made))
}

// maxRemovals is the number of repositories that a backup may drop although they are most of those of the one before.
const maxRemovals = 2

// checkRemovals lists the repositories that were removed since the backup before. It refuses to drop most of them, as
// when the file system of the root is not mounted.
func (b *run) checkRemovals(made *manifest) error {
	had := 0
	for place := range b.was.Units {
		if !isRepository(place) {
			continue
		}
		had++
		path := strings.TrimPrefix(place, rootPlace+"/")
		if _, has := b.units[place]; !has && made.Links[path] == "" {
			b.report.Removed = append(b.report.Removed, path)
		}
	}
	slices.Sort(b.report.Removed)
	gone := len(b.report.Removed)
	if b.AllowRemovals || gone == 0 || gone < had && (gone <= maxRemovals || 2*gone <= had) {
		return nil
	}
	some := strings.Join(b.report.Removed[:min(gone, 3)], ", ")
	if gone > 3 {
		some += ", ..."
	}
	return fault.New(fault.Precondition, "%d of the %d repositories of the backup of %s are not below %s (%s), and that "+
		"backup is unchanged: look whether the root is mounted. If they were removed, use --allow-removals", gone, had,
		b.was.At.Format(time.RFC3339), cmp.Or(b.Root, "a root"), some)
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

// open reads the backup before, and ends it if it was interrupted after its manifest. It lists the units of an
// interrupted one in new/.
func (b *run) open() (err error) {
	b.was, err = readManifest(b.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		b.was = &manifest{}
		if names, _ := os.ReadDir(b.Dir); slices.ContainsFunc(names, func(e fs.DirEntry) bool {
			return e.Name() != "lock" && e.Name() != newName && e.Name() != manifestName
		}) {
			return fault.New(fault.Exists, "%s is neither empty nor a backup: name another directory", b.Dir)
		}
	} else if err != nil {
		return err
	} else if exists(filepath.Join(b.Dir, newName)) || exists(filepath.Join(b.Dir, oldName)) {
		if err := swap(b.Dir, b.was); err != nil {
			return err
		}
	}
	b.begun = map[string][]string{}
	left, err := os.ReadDir(filepath.Join(b.Dir, newName))
	for _, e := range left {
		if l, err := readList(filepath.Join(b.Dir, newName, e.Name())); err == nil {
			b.begun[l.Place] = append(b.begun[l.Place], e.Name())
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return os.Mkdir(filepath.Join(b.Dir, newName), 0o700)
	}
	return err
}

// isRepository reports whether the unit at a place is a repository.
func isRepository(place string) bool {
	return strings.HasPrefix(place, rootPlace+"/") && !repo.IsPrivate(place)
}

// copyAll makes the units.
func (b *run) copyAll(ctx context.Context, made *manifest) error {
	// The state is first, so that it has no pending delivery of a push that the copies of repositories lack.
	state, files := []string{}, []string{} // not nil, which means all
	for _, name := range b.Durable {
		if _, err := os.Lstat(filepath.Join(b.State, name)); err == nil {
			state = append(state, name)
		}
	}
	for _, path := range b.Files {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			b.report.LeftOut = append(b.report.LeftOut, path)
		} else if !slices.Contains(files, path[1:]) {
			files = append(files, path[1:])
		}
	}
	err := b.unit(ctx, source{place: statePlace, dir: b.State, only: state})
	if err == nil {
		err = b.unit(ctx, source{place: filesPlace, dir: "/", only: files})
	}
	if err == nil && b.Root != "" {
		err = b.repositories(ctx, made)
	}
	return err
}

// maxRounds is how often something is copied that changes meanwhile.
const maxRounds = 20

// repositories copies the repositories, and then the networks from which they borrow objects.
func (b *run) repositories(ctx context.Context, made *manifest) error {
	networks := map[string]map[string]bool{} // their files before a member was copied
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(2 * runtime.GOMAXPROCS(0))
	for path, err := range b.Repositories(func(path, why string) {
		b.skipped(path, why, networks)
	}) {
		if err != nil || each.Err() != nil {
			return cmp.Or(group.Wait(), err)
		}
		dir := filepath.Join(b.Root, path)
		info, err := os.Lstat(dir)
		switch {
		case err != nil: // it was removed meanwhile
		case info.Mode()&fs.ModeSymlink != 0:
			if made.Links[path], err = os.Readlink(dir); err != nil {
				b.report.add(path, "%v", err)
			}
		case !info.IsDir():
			b.report.add(path, "it is a file that names its Git directory, and is not in the backup: use bare repositories")
		default:
			network := networkOf(b.Root, dir)
			if network != "" && networks[network] == nil {
				networks[network], _ = fixedNames(filepath.Join(b.Root, network))
			}
			group.Go(func() error {
				return b.unit(each, source{place: filepath.Join(rootPlace, path), dir: dir, network: network, git: true})
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for network, before := range networks {
		place, dir := filepath.Join(rootPlace, network), filepath.Join(b.Root, network)
		if err := b.unit(ctx, source{place: place, dir: dir}); err != nil {
			return err
		}
		if after, err := fixedNames(dir); err != nil || !isSubset(before, after) {
			b.report.add(network, "objects of this network of forks were removed meanwhile: run the command again")
			for place, u := range b.units {
				if u.Network == network {
					u.Source, u.Damage = "", "objects of its network were removed while it was copied"
					b.units[place] = u
				}
			}
		}
	}
	return nil
}

// skipped keeps the former copy of what looks like a repository and is not served, such as one without a HEAD.
func (b *run) skipped(path, why string, networks map[string]map[string]bool) {
	b.mu.Lock()
	was, had := b.was.Units[filepath.Join(rootPlace, path)]
	if had {
		b.units[filepath.Join(rootPlace, path)] = was
	}
	b.mu.Unlock()
	if !had {
		b.report.add(path, "it looks like a repository, and is not in the backup: %s", why)
		return
	}
	if was.Network != "" && networks[was.Network] == nil {
		networks[was.Network], _ = fixedNames(filepath.Join(b.Root, was.Network))
	}
	b.report.add(path, "it looks like a repository, and is not served: %s; the backup keeps its copy of %s", why,
		was.At.Format(time.RFC3339))
}

// networkOf returns the path below the root of the network from which a repository borrows; empty if there is none.
func networkOf(root, dir string) string {
	alternates, err := pack.Alternates(filepath.Join(dir, "objects"))
	if err != nil || len(alternates) == 0 || !repo.IsNetwork(filepath.Clean(alternates[0])) {
		return ""
	}
	network, err := filepath.Rel(root, filepath.Dir(filepath.Clean(alternates[0])))
	if err != nil || !filepath.IsLocal(network) {
		return ""
	}
	return network
}

// source is what a unit is made of.
type source struct {
	place   string
	dir     string
	only    []string // paths below dir; nil: all
	git     bool     // it is a repository
	network string   // of the repository
}

// unit makes the unit of a source, unless the backup has it. The error is fatal, or that of ctx.
func (b *run) unit(ctx context.Context, s source) error {
	b.mu.Lock()
	b.done++
	done := b.done
	b.mu.Unlock()
	b.Progress(done, s.place)
	was, had := b.was.Units[s.place]
	if l, err := readList(filepath.Join(b.Dir, s.place)); had && (err != nil || l.ID != was.ID) {
		was.IsBad = true // its directory was removed
	}
	made, err := b.makeUnit(ctx, s, was)
	if ctx.Err() != nil || disk.IsFull(err) {
		return cmp.Or(ctx.Err(), err)
	}
	subject := strings.TrimPrefix(s.place, rootPlace+"/")
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case s.git && !exists(s.dir): // it was removed meanwhile
	case err == nil:
		b.units[s.place] = made
	case had && was.Damage == "" && !was.IsBad:
		b.units[s.place] = was
		b.report.add(subject, "%v; the backup keeps its copy of %s%s", err, was.At.Format(time.RFC3339),
			membersOf(b.units, s.place))
	case made.ID != "":
		made.Damage, made.Source = err.Error(), ""
		b.units[s.place] = made
		b.report.add(subject, "%v; the backup has it as it is%s", err, membersOf(b.units, s.place))
	case had:
		b.units[s.place] = was
		b.report.add(subject, "%v; the copy in the backup is damaged%s", err, membersOf(b.units, s.place))
	default:
		b.report.add(subject, "it is not in the backup: %v", err)
	}
	return nil
}

// membersOf names the repositories that borrow from the network at a place, for a message; empty if there are none.
func membersOf(units map[string]unit, place string) string {
	var members []string
	for member, u := range units {
		if u.Network != "" && filepath.Join(rootPlace, u.Network) == place {
			members = append(members, strings.TrimPrefix(member, rootPlace+"/"))
		}
	}
	if members == nil {
		return ""
	}
	slices.Sort(members)
	return "; these repositories need its objects: " + strings.Join(members, ", ")
}

// makeUnit makes a unit. If the source is damaged, it returns both the unit, as good as it can be, and the error.
func (b *run) makeUnit(ctx context.Context, s source, was unit) (unit, error) {
	looked := time.Now()
	now, err := scan(s)
	if err != nil {
		return unit{}, err
	}
	if was.ID != "" && was.Source == now.sum && !was.IsBad {
		return was, nil
	}
	c := &copier{run: b, source: s, id: strings.ToLower(rand.Text())}
	c.to = filepath.Join(b.Dir, newName, c.id)
	c.find(was)
	if _, err := c.writeList(); err != nil { // an interrupted backup is continued by the place in it
		return unit{}, err
	}
	if err := c.copy(ctx); err != nil {
		return unit{}, err
	}
	made := unit{ID: c.id, At: c.state.at.UTC(), Network: s.network}
	if c.state.isSettled(looked) {
		made.Source = c.state.sum
	}
	if made.List, err = c.writeList(); err != nil {
		return unit{}, err
	}
	if c.damage == nil && s.git {
		c.damage = checkTips(ctx, s.dir)
	}
	return made, c.damage
}

// checkTips returns an error if Git could not serve a repository: it does not open, or lacks the object of a ref.
func checkTips(ctx context.Context, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "reftable")); err == nil {
		return nil // only Git reads them
	}
	r, err := repo.Open(dir, repo.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	snap, err := r.Refs.Snapshot(ctx)
	if err != nil {
		return err
	}
	return snap.Unhidden().Each("", func(ref refs.Ref) error {
		has, err := r.Objects.Has(ref.ID)
		if err == nil && !has && !ref.ID.IsZero() {
			err = fault.New(fault.Corrupt, "the object %s of %s is missing", ref.ID, ref.Name)
		}
		return err
	})
}

// finish makes a backup the complete one.
func (b *run) finish(m *manifest) error {
	isNew := len(m.Removed) > 0
	for place, u := range m.Units {
		isNew = isNew || u.ID != b.was.Units[place].ID
	}
	text, err := json.Marshal(m)
	if err == nil && isNew {
		err = syncFileSystem(b.Dir)
	}
	if err == nil {
		err = disk.ReplaceFile(filepath.Join(b.Dir, manifestName), text)
	}
	if err == nil && isNew {
		err = swap(b.Dir, m)
	}
	if err == nil {
		err = os.RemoveAll(filepath.Join(b.Dir, newName))
	}
	return err
}

// swap moves the units of a complete backup from new/ to their places, and removes others. It can be repeated.
func swap(dir string, m *manifest) error {
	old, staged := filepath.Join(dir, oldName), filepath.Join(dir, newName)
	if err := os.MkdirAll(old, 0o700); err != nil {
		return err
	}
	for place, id := range m.Removed {
		l, err := readList(filepath.Join(dir, place))
		if !errors.Is(err, fs.ErrNotExist) && (err != nil || l.ID != m.Units[place].ID) { // also if its list is damaged
			if err := os.Rename(filepath.Join(dir, place), filepath.Join(old, id)); err != nil {
				return err
			}
		}
		for above := filepath.Dir(place); above != "." && os.Remove(filepath.Join(dir, above)) == nil; {
			above = filepath.Dir(above)
		}
	}
	for _, place := range slices.Sorted(maps.Keys(m.Units)) {
		from, to := filepath.Join(staged, m.Units[place].ID), filepath.Join(dir, place)
		if _, err := os.Lstat(from); err != nil {
			continue
		}
		if exists(to) { // a unit without a list
			if err := os.Rename(to, filepath.Join(old, m.Units[place].ID)); err != nil {
				return err
			}
		}
		if err := cmp.Or(os.MkdirAll(filepath.Dir(to), 0o700), os.Rename(from, to)); err != nil {
			return err
		}
	}
	if err := syncFileSystem(dir); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

// lock locks a backup.
func lock(dir string, how int) (unlock func(), err error) {
	flags := os.O_RDONLY
	if how == unix.LOCK_EX {
		flags = os.O_RDWR | os.O_CREATE
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "%s is not a backup", dir)
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fault.New(fault.Unavailable, "another command uses the backup %s: try again when it has ended", dir)
	}
	return func() { f.Close() }, nil
}

// readManifest reads the manifest of a complete backup.
func readManifest(dir string) (*manifest, error) {
	text, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, err
	}
	m := &manifest{}
	if err := json.Unmarshal(text, m); err != nil || m.Format != 1 {
		return nil, fault.New(fault.Corrupt, "%s is damaged, or of a newer version of Packhorse (format %d): %v",
			filepath.Join(dir, manifestName), m.Format, err)
	}
	for place, u := range m.Units {
		if !isInside(place) || !isInside(u.ID) || strings.Contains(u.ID, "/") || u.Network != "" && !isInside(u.Network) {
			return nil, fault.New(fault.Corrupt, "%s is damaged: it names %q", filepath.Join(dir, manifestName), place)
		}
	}
	for link := range m.Links {
		if !isInside(link) {
			return nil, fault.New(fault.Corrupt, "%s is damaged: it has a link %q", filepath.Join(dir, manifestName), link)
		}
	}
	return m, nil
}

// isInside reports whether a path is clean, and stays in the directory that it is joined with. The author of a backup
// must not choose where its files go.
func isInside(path string) bool { return filepath.IsLocal(path) && filepath.Clean(path) == path }
