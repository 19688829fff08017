package backup

import (
	"cmp"
	"context"
	"encoding/json"
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
	m     *manifest
	links map[[2]uint64]string // restored files that have several names in the backup
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
	x := &restorer{o, newReport(m.At), m, map[[2]uint64]string{}}
	switch {
	case o.Repository != "":
		err = x.one(ctx)
	default:
		if err = x.checkFree(); err == nil {
			err = x.all(ctx)
		}
	}
	if err == nil && o.Root != "" {
		err = syncFileSystem(o.Root)
		if o.Repository == "" {
			err = cmp.Or(err, syncFileSystem(o.State))
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
	_, records, err := x.records(statePlace)
	for _, r := range records {
		if _, err := os.Lstat(filepath.Join(x.State, r.Name)); err == nil {
			return fault.New(fault.Exists, "%s exists, and nothing is replaced: name a new directory with --state, or move the "+
				"file away", filepath.Join(x.State, r.Name))
		}
	}
	return err
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
	isMarked := false // units were found to be damaged
	for i, place := range slices.Sorted(maps.Keys(x.m.Units)) {
		x.Progress(int64(i), place)
		to := ""
		switch below, isBelow := strings.CutPrefix(place, rootPlace+"/"); {
		case x.Root == "":
		case isBelow:
			to = filepath.Join(x.Root, below)
		case place == statePlace:
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
		err := x.checkPlain(to)
		if err == nil {
			err = x.unit(ctx, place, to)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			x.add(place, "%v%s", err, membersOf(x.m.Units, place))
			u := x.m.Units[place]
			isMarked, u.IsBad = isMarked || !u.IsBad, true
			x.m.Units[place] = u
			continue
		}
		if damage := x.m.Units[place].Damage; damage != "" {
			x.add(place, "it was damaged when it was backed up: %s", damage)
		}
		if isRepository(place) {
			x.Repositories++
		}
	}
	if x.Root == "" && isMarked {
		if err := x.mark(); err != nil {
			x.add(manifestName, "the next backup does not repair this damage, because it cannot be noted: %v", err)
		}
	}
	for path, target := range x.m.Links {
		if x.Root == "" {
			break
		}
		to := filepath.Join(x.Root, path)
		err := x.checkPlain(filepath.Dir(to))
		if err == nil {
			err = cmp.Or(os.MkdirAll(filepath.Dir(to), 0o755), os.Symlink(target, to))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkPlain returns an error if a restored link is on the way to a path below the root: nothing is written through
// links.
func (x *restorer) checkPlain(path string) error {
	below, err := filepath.Rel(x.Root, path)
	if x.Root == "" || err != nil || !filepath.IsLocal(below) {
		return nil // it is not below the root
	}
	for dir := path; dir != filepath.Clean(x.Root) && dir != "."; dir = filepath.Dir(dir) {
		if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return fault.New(fault.Corrupt, "the backup has files below %s, which is a link", dir)
		}
	}
	return nil
}

// mark writes the manifest, with damaged units, so that the next backup makes them again. The file keeps its owner.
func (x *restorer) mark() error {
	path := filepath.Join(x.Dir, manifestName)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	text, err := json.Marshal(x.m)
	if err != nil {
		return err
	}
	return disk.ReplaceFile(path, text, func(f *os.File) error { return f.Chown(int(st.Uid), int(st.Gid)) })
}

// one restores one repository, with the objects that it shares. A network may have other members, and keeps its files.
func (x *restorer) one(ctx context.Context) error {
	path := strings.Trim(x.Repository, "/")
	for _, end := range []string{".git", "/.git", ""} {
		if _, ok := x.m.Units[filepath.Join(rootPlace, path+end)]; ok && isRepository(rootPlace+"/"+path) {
			path += end
			break
		}
	}
	place, to := filepath.Join(rootPlace, path), filepath.Join(x.Root, path)
	if _, ok := x.m.Units[place]; !ok || !isRepository(place) {
		return fault.New(fault.NotFound, "the backup of %s has no repository %s", x.m.At.Format(time.RFC3339), x.Repository)
	}
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
	if err := x.unit(ctx, place, filepath.Join(temp, "repository")); err != nil {
		return err
	}
	if network := x.m.Units[place].Network; network != "" {
		if err := x.unit(ctx, filepath.Join(rootPlace, network), filepath.Join(x.Root, network)); err != nil {
			return err
		}
	}
	x.Repositories++
	err = cmp.Or(syncFileSystem(temp), os.MkdirAll(filepath.Dir(to), 0o755))
	if err == nil {
		err = os.Rename(filepath.Join(temp, "repository"), to)
	}
	return err
}

// unit restores a unit into a directory, or verifies it.
func (x *restorer) unit(ctx context.Context, place, to string) error {
	from, records, err := x.records(place)
	isNew := to != "" && !exists(to)
	mode := fs.FileMode(0o755)
	if place == statePlace {
		mode = 0o700
	}
	if err == nil && to != "" {
		err = os.MkdirAll(to, mode)
	}
	for _, r := range records {
		path, target := filepath.Join(from, r.Name), filepath.Join(to, r.Name)
		switch {
		case err != nil:
		case to == "":
			if r.Sum != "" {
				err = x.copy(ctx, path, r, io.Discard)
			}
		case r.Mode.IsDir():
			if r.Name == "objects" {
				mode = r.Mode.Perm()
			}
			err = cmp.Or(os.MkdirAll(target, 0o755), os.Chmod(target, r.Mode.Perm()|0o700))
		case exists(target): // in a network that has other members
		case r.Target != "":
			err = os.Symlink(r.Target, target)
		default:
			if err = os.MkdirAll(filepath.Dir(target), mode); err == nil {
				err = x.file(ctx, path, target, r)
			}
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
