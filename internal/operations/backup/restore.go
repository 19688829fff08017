package backup

import (
	"cmp"
	"context"
	"errors"
	"io"
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

// RestoreOptions configure a restore.
type RestoreOptions struct {
	Dir        string // the backup's
	Root       string // where the repositories are restored; empty: only verify the backup
	State      string // the state directory
	Repository string // restore only this one, below a root that may be in use; empty: all, below a new root
	Progress   func(done int64, what string)
}

// restorer is a running restore.
type restorer struct {
	RestoreOptions
	*Report
	m       *manifest
	links   map[[2]uint64]string // restored files that have several names in the backup
	isYoung bool                 // restored objects are as new ones, so that no collection removes them
}

// Restore restores a backup, or verifies it. Every file is compared with its checksum. Nothing is replaced. Damaged
// units are left out, and are in the report. All is on disk when it returns.
func Restore(ctx context.Context, o RestoreOptions) (*Report, error) {
	unlock, err := lock(o.Dir, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer unlock()
	m, err := readManifest(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = fault.New(fault.NotFound, "the first backup in %s is not complete: run packhorse backup again", o.Dir)
	}
	if err != nil {
		return nil, err
	}
	x := &restorer{RestoreOptions: o, Report: newReport(m.At), m: m, links: map[[2]uint64]string{}}
	if o.Repository != "" {
		err = x.one(ctx)
	} else if err = x.checkFree(); err == nil {
		err = x.all(ctx)
	}
	if err == nil && o.Root != "" {
		err = disk.SyncFileSystem(o.Root)
		if o.Repository == "" {
			err = cmp.Or(err, disk.SyncFileSystem(o.State))
		}
	}
	return x.Report, err
}

// checkFree refuses to restore over what exists.
func (x *restorer) checkFree() error {
	if x.Root == "" {
		return nil
	}
	left, err := os.ReadDir(x.Root)
	for _, e := range left {
		if e.Name() != "lost+found" {
			return fault.New(fault.Exists, "%s is not empty (it has %s), and nothing is replaced: name a new directory with "+
				"--root, or restore one repository with --repository PATH. If a restore was interrupted here, remove its files",
				x.Root, e.Name())
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for place := range x.m.Units {
		if isState(place) {
			if err := x.checkState(place); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkState refuses to replace a part of the state.
func (x *restorer) checkState(place string) error {
	if path := filepath.Join(x.State, filepath.Base(place)); exists(path) {
		return fault.New(fault.Exists, "%s exists, and nothing is replaced: name a new directory with --state, or move it "+
			"away", path)
	}
	return nil
}

// records returns the records of a unit, and its directory. The unit is in new/ if the backup was interrupted after its
// manifest was written.
func (x *restorer) records(place string) (dir string, records []record, err error) {
	u := x.m.Units[place]
	if dir = filepath.Join(x.Dir, newName, u.ID); !exists(dir) {
		dir = filepath.Join(x.Dir, place)
	}
	records, err = readRecords(dir, u.List)
	return dir, records, err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// all restores or verifies all units.
func (x *restorer) all(ctx context.Context) error {
	if x.Root != "" {
		if err := os.MkdirAll(filepath.Join(x.Root, repo.PrivateDir), 0o700); err != nil { // also if networks are in it
			return err
		}
	}
	for i, place := range slices.Sorted(maps.Keys(x.m.Units)) {
		x.Progress(int64(i), place)
		to := ""
		switch below, isBelow := strings.CutPrefix(place, rootPlace+"/"); {
		case x.Root == "":
		case isBelow:
			to = filepath.Join(x.Root, below)
		case isState(place):
			to = x.State
		default: // files that belong to other directories are left to the administrator
			_, records, _ := x.records(place)
			for _, r := range records {
				if r.Mode.IsRegular() {
					x.LeftOut = append(x.LeftOut, "/"+r.Name)
				}
			}
			continue
		}
		err := x.unit(ctx, place, to)
		if ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			x.add(place, "%v%s", err, membersOf(x.m.Units, place))
			if x.Root == "" {
				x.mark(place)
			}
			continue
		}
		if damage := x.m.Units[place].Damage; damage != "" {
			x.add(place, "it was damaged when it was backed up: %s", damage)
		}
		if isRepository(place) {
			x.Repositories++
		}
	}
	if x.Root == "" {
		return nil
	}
	for path, target := range x.m.Links {
		to := filepath.Join(x.Root, path)
		if err := cmp.Or(os.MkdirAll(filepath.Dir(to), 0o755), os.Symlink(target, to)); err != nil {
			return err
		}
	}
	return nil
}

// mark notes that a unit is damaged, so that the next backup makes it again. That a unit is missing is known without.
func (x *restorer) mark(place string) {
	dir, _, _ := x.records(place)
	if err := os.WriteFile(filepath.Join(dir, badName), nil, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
		x.add(place, "the next backup does not repair it, because the damage cannot be noted: %v", err)
	}
}

// one restores one repository, with the objects that it shares. A network may have other members, and keeps its files.
func (x *restorer) one(ctx context.Context) error {
	place := ""
	for _, end := range []string{"", "/.git", ".git"} {
		at := filepath.Join(rootPlace, strings.Trim(x.Repository, "/")+end)
		if _, ok := x.m.Units[at]; ok && isRepository(at) {
			place = at
		}
	}
	if place == "" {
		return fault.New(fault.NotFound, "the backup of %s has no repository %s", x.m.At.Format(time.RFC3339), x.Repository)
	}
	to := filepath.Join(x.Root, strings.TrimPrefix(place, rootPlace+"/"))
	if exists(to) {
		return fault.New(fault.Exists, "%s exists, and nothing is replaced: rename or remove it first (packhorse repo "+
			"rename, packhorse repo remove)", to)
	}
	private := filepath.Join(x.Root, repo.PrivateDir)
	if err := os.MkdirAll(private, 0o700); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(private, "restore-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	err = x.unit(ctx, place, filepath.Join(temp, "repository"))
	if err == nil {
		x.isYoung = true
		err = x.share(ctx, place)
	}
	if err == nil {
		err = cmp.Or(disk.SyncFileSystem(temp), os.MkdirAll(filepath.Dir(to), 0o755))
	}
	if err == nil {
		err = os.Rename(filepath.Join(temp, "repository"), to)
	}
	if err == nil {
		x.Repositories++
		err = x.share(ctx, place) // what a collection removed that began before
	}
	return err
}

// share restores the network from which a repository borrows.
func (x *restorer) share(ctx context.Context, place string) error {
	network := x.m.Units[place].Network
	if network == "" {
		return nil
	}
	return x.unit(ctx, filepath.Join(rootPlace, network), filepath.Join(x.Root, network))
}

// unit restores a unit into a directory, or verifies it.
func (x *restorer) unit(ctx context.Context, place, to string) error {
	from, records, err := x.records(place)
	isNew := to != "" && !exists(to)
	mode := fs.FileMode(0o755)
	if isState(place) && to != "" {
		mode = 0o700
		err = cmp.Or(err, x.checkState(place))
	}
	if err == nil && to != "" {
		err = os.MkdirAll(to, mode)
	}
	for _, r := range records {
		path, target := filepath.Join(from, r.Name), filepath.Join(to, r.Name)
		switch {
		case err != nil:
		case isState(place) && !disk.Below(filepath.Base(place), r.Name):
			err = fault.New(fault.Corrupt, "%s is damaged: it has the file %q", filepath.Join(from, listName), r.Name)
		case to == "":
			if r.Sum != "" {
				err = x.copy(ctx, path, r, io.Discard)
			}
		case r.Mode.IsDir():
			if r.Name == "objects" {
				mode = r.Mode.Perm()
			}
			err = cmp.Or(os.MkdirAll(target, 0o755), os.Chmod(target, r.Mode.Perm()|0o700))
		case x.isYoung && filepath.Ext(target) == ".mtimes": // without it, objects are as young as their pack
			if err = os.Remove(target); errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			continue
		case exists(target): // in a network that has other members
		case r.Target != "":
			err = os.Symlink(r.Target, target)
		default:
			if err = os.MkdirAll(filepath.Dir(target), mode); err == nil {
				err = x.file(ctx, path, target, r)
			}
		}
		if err == nil && x.isYoung && r.Sum != "" {
			err = os.Chtimes(target, time.Time{}, time.Now())
		}
	}
	if err != nil && isNew {
		err = errors.Join(err, os.RemoveAll(to))
	}
	return err
}

// file restores a file, as a link if it is one in the backup.
func (x *restorer) file(ctx context.Context, path, target string, r record) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	id := [2]uint64{uint64(st.Dev), uint64(st.Ino)}
	if has := x.links[id]; has != "" && os.Link(has, target) == nil {
		return nil
	}
	to, err := os.CreateTemp(filepath.Dir(target), "tmp_restore_*") // it gets its name when it is complete
	if err != nil {
		return err
	}
	defer os.Remove(to.Name())
	defer to.Close()
	err = cmp.Or(x.copy(ctx, path, r, to), to.Chmod(r.Mode.Perm()), to.Close(),
		os.Chtimes(to.Name(), time.Time{}, time.Unix(0, r.Time)))
	if err == nil {
		err = os.Rename(to.Name(), target)
	}
	if err == nil && st.Nlink > 1 {
		x.links[id] = target
	}
	return err
}

// copy copies a file of a backup, and compares it with its checksum.
func (x *restorer) copy(ctx context.Context, path string, of record, w io.Writer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sum, size, _, err := read(ctx, f, w, "")
	x.count(size)
	if err == nil && sum != of.Sum {
		err = fault.New(fault.Corrupt, "%s is damaged: its checksum is wrong", path)
	}
	return err
}
