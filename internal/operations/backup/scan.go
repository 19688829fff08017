package backup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// state is the state of a source, from stat alone.
//
// Files below objects and lfs/objects are fixed: their content belongs to their names. They are listed only for a copy.
// Otherwise the times of their directories are enough.
type state struct {
	at      time.Time // when the scan began
	entries []entry   // without fixed files
	changes string    // a hash of the entries
	sum     string    // a hash of everything
	newest  disk.ID   // with the latest times
}

// entry is a directory, a file or a symbolic link.
type entry struct {
	name string // below the source
	mode fs.FileMode
	id   disk.ID
}

// continues reports whether all files of an earlier state are there, and have at most grown.
func (s *state) continues(before *state) bool {
	now := map[string]disk.ID{}
	for _, e := range s.entries {
		now[e.name] = e.id
	}
	return !slices.ContainsFunc(before.entries, func(e entry) bool {
		id := now[e.name]
		return id != e.id && (id.Ino != e.id.Ino || id.Size <= e.id.Size)
	})
}

// scan returns the state of a source.
func scan(s source) (*state, error) {
	w := &scanner{dir: s.dir, all: s.only == nil, state: &state{at: time.Now()}, fixed: sha256.New()}
	if w.all {
		s.only = []string{"."}
	}
	for _, name := range s.only {
		if err := w.visit(name, unix.Stat); err != nil { // files of the state and configuration may be behind links
			return nil, err
		}
	}
	changes := sha256.New()
	for _, e := range w.state.entries {
		w.write(changes, e.name, e.mode, e.id)
	}
	w.state.changes = hex.EncodeToString(changes.Sum(nil)[:16])
	w.fixed.Write(changes.Sum(nil))
	w.state.sum = hex.EncodeToString(w.fixed.Sum(nil)[:16])
	return w.state, nil
}

type scanner struct {
	dir   string
	all   bool // the source is a directory with objects
	state *state
	fixed hash.Hash // of directories with fixed files
}

func (w *scanner) write(to hash.Hash, name string, mode fs.FileMode, id disk.ID) {
	fmt.Fprintln(to, name, uint32(mode), id.Ino, id.Size, id.Mtime, id.Ctime)
	w.state.newest.Ino = 1
	w.state.newest.Mtime = max(w.state.newest.Mtime, id.Mtime)
	w.state.newest.Ctime = max(w.state.newest.Ctime, id.Ctime)
}

// visit visits a path below the source. A file that vanishes is left out.
func (w *scanner) visit(name string, stat func(string, *unix.Stat_t) error) error {
	var st unix.Stat_t
	path := filepath.Join(w.dir, name)
	err := stat(path, &st)
	if err == unix.ENOENT && name != "." {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	id, mode := disk.Of(&st), fs.FileMode(st.Mode&0o777)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= fs.ModeDir
		if w.all && isFixedDir(name) {
			w.write(w.fixed, name, mode, id)
			return nil
		}
		// Names that are listed below stand for the times of the directory.
		w.state.entries = append(w.state.entries, entry{name, mode, disk.ID{Ino: id.Ino}})
		return w.visitDir(name, path)
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
		if name == "objects" || name == "refs" || name == "objects/pack" || name == "lfs/objects" {
			return fmt.Errorf("%s is a symbolic link: move the directory here", path)
		}
	case unix.S_IFREG:
	default: // a socket or a pipe
		return nil
	}
	w.state.entries = append(w.state.entries, entry{name, mode, id})
	return nil
}

// visitDir visits the entries of a directory.
func (w *scanner) visitDir(name, path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if n := filepath.Join(name, e.Name()); err == nil && (!w.all || !isLeftOut(n)) {
			err = w.visit(n, unix.Lstat)
		}
	}
	return err
}

// isFixedDir reports whether a directory has fixed files: objects/pack, objects/ab and lfs/objects/ab/cd.
func isFixedDir(name string) bool {
	if below, ok := strings.CutPrefix(name, "objects/"); ok {
		return below == "pack" || isHex(below, 2)
	}
	below, ok := strings.CutPrefix(name, "lfs/objects/")
	return ok && len(below) == 5 && below[2] == '/'
}

func isHex(s string, length int) bool {
	return len(s) == length && strings.Trim(s, "0123456789abcdef") == ""
}

// isLeftOut reports whether a path of a source is not backed up: locks, files that are being written, and what is made
// again.
func isLeftOut(name string) bool {
	top, below, _ := strings.Cut(name, "/")
	switch {
	case name == listName || name == badName || name == "gc.pid":
		return true
	case top == "objects" && below != "":
		return !isFixedDir(name) && below != "info" && below != "info/alternates" && below != "info/http-alternates"
	case top == "lfs" && below != "":
		return below != "objects" && below != "locks" && !strings.HasPrefix(below, "objects/") &&
			!strings.HasPrefix(below, "locks/")
	}
	return strings.HasSuffix(name, ".lock") || top == "hooks" && strings.HasSuffix(name, ".sample")
}

// fixedOrder has the extensions of files of packs in the order in which a copy gets them: Git looks for indexes.
var fixedOrder = []string{".keep", ".promisor", ".pack", ".rev", ".mtimes", ".idx"}

// fixedFiles lists the fixed files of a source: loose objects before packs, because they are moved there.
func fixedFiles(dir string) (names []string, err error) {
	read := func(name string) (entries []fs.DirEntry) {
		entries, failed := os.ReadDir(filepath.Join(dir, name))
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			err = failed
		}
		return entries
	}
	add := func(in string, extensions ...string) {
		entries := read(in)
		for _, extension := range extensions {
			for _, e := range entries {
				if e.Type().IsRegular() && filepath.Ext(e.Name()) == extension && !strings.HasPrefix(e.Name(), "tmp_") &&
					!strings.HasPrefix(e.Name(), ".") {
					names = append(names, filepath.Join(in, e.Name()))
				}
			}
		}
	}
	for _, e := range read("lfs/objects") {
		for _, f := range read("lfs/objects/" + e.Name()) {
			add("lfs/objects/"+e.Name()+"/"+f.Name(), "")
		}
	}
	for _, e := range read("objects") {
		if isHex(e.Name(), 2) {
			add("objects/"+e.Name(), "")
		}
	}
	add("objects/pack", fixedOrder...)
	return names, err
}

// lacks reports whether a list lacks a name of another one.
func lacks(list, other []string) bool {
	has := make(map[string]bool, len(list))
	for _, name := range list {
		has[name] = true
	}
	return slices.ContainsFunc(other, func(name string) bool { return !has[name] })
}
