package backup

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Names in a backup.
const (
	manifestName = "manifest"
	listName     = "packhorse-backup"
	badName      = "packhorse-damaged" // an empty file in a unit: a verification found damage
	rootPlace    = "root"
	statePlace   = "state"
	filesPlace   = "files"
	newName      = "new"
	oldName      = "old"
)

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
	IsBad   bool   `json:"-"`                // its directory was removed, or a verification found damage
}

// isRepository reports whether the unit at a place is a repository.
func isRepository(place string) bool {
	return strings.HasPrefix(place, rootPlace+"/") && !repo.IsPrivate(place)
}

// isState reports whether the unit at a place is a part of the state.
func isState(place string) bool { return filepath.Dir(place) == statePlace }

// isUnit reports whether a backup can have a unit at a place. The author of a backup must not choose where its files
// go: private directories have networks only, and the parts of the state are not below each other.
func isUnit(place string) bool {
	return isInside(place) && (isRepository(place) || isState(place) || place == filesPlace ||
		strings.HasPrefix(place, rootPlace+"/") && repo.IsNetwork(filepath.Join(place, "objects")))
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
	left, err := os.ReadDir(filepath.Join(b.Dir, newName))
	b.isContinued = len(left) > 0
	if errors.Is(err, fs.ErrNotExist) {
		return os.Mkdir(filepath.Join(b.Dir, newName), 0o700)
	}
	return err
}

// finish makes a backup the complete one.
func (b *run) finish() error {
	for place, was := range b.was.Units {
		if b.made.Units[place].ID != was.ID {
			b.made.Removed[place] = was.ID
		}
	}
	isNew := len(b.made.Removed) > 0
	for place, u := range b.made.Units {
		isNew = isNew || u.ID != b.was.Units[place].ID
	}
	text, err := json.Marshal(b.made)
	if err == nil && isNew {
		err = disk.SyncFileSystem(b.Dir)
	}
	if err == nil {
		err = disk.ReplaceFile(filepath.Join(b.Dir, manifestName), text)
	}
	if err == nil && isNew {
		err = swap(b.Dir, b.made)
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
	if err := disk.SyncFileSystem(dir); err != nil {
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
	taken := maps.Clone(m.Units)
	for link := range m.Links {
		taken[filepath.Join(rootPlace, link)] = unit{ID: "link"}
	}
	for place, u := range taken {
		isGood := isUnit(place) && isInside(u.ID) && !strings.Contains(u.ID, "/") &&
			(u.Network == "" || isUnit(filepath.Join(rootPlace, u.Network)) && repo.IsPrivate(u.Network))
		for above := filepath.Dir(place); above != "."; above = filepath.Dir(above) {
			_, is := taken[above]
			isGood = isGood && !is // the one above may have links
		}
		if !isGood {
			return nil, fault.New(fault.Corrupt, "%s is damaged: it names %q", filepath.Join(dir, manifestName), place)
		}
	}
	return m, nil
}

// isInside reports whether a path is clean, and stays in the directory that it is joined with. The author of a backup
// must not choose where its files go.
func isInside(path string) bool { return filepath.IsLocal(path) && filepath.Clean(path) == path }
