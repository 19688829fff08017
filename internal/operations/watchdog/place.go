package watchdog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// place is the directory of dumps. Each dump is a directory named TIME-CAUSE-PID, with the suffix ".part" until it is
// complete. Other names are ignored. Disk operations may hang; see do.
type place struct {
	dir      string
	maxBytes int64
	patience time.Duration
	busy     atomic.Bool // an operation hangs in it
}

const (
	maxDumps = 10
	minFree  = 64 << 20 // bytes that stay free on the disk
)

// nameTime is the format of the time in the name of a dump. Names sort by time.
const nameTime = "20060102T150405.000Z"

var dumpName = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}\.[0-9]{3}Z-[a-z]+-[0-9]+(\.part)?$`)

const partSuffix = ".part"

var (
	errHangs = errors.New("it does not answer")
	errFull  = errors.New("there is no room for it within the bounds of dumps")
)

// do performs a disk operation in a goroutine, which is left behind if it hangs. Until it returns, no other operation
// is attempted.
func (p *place) do(what func() error) error {
	if !p.busy.CompareAndSwap(false, true) {
		return errHangs
	}
	done := make(chan error, 1)
	go func() {
		err := what()
		p.busy.Store(false)
		done <- err
	}()
	patience := time.NewTimer(p.patience)
	defer patience.Stop()
	select {
	case err := <-done:
		return err
	case <-patience.C:
		return errHangs
	}
}

// draft is a dump that is being written.
type draft struct {
	*place
	name string
	root *os.Root // of the place
}

// draft creates the directory of a dump.
func (p *place) draft(name string) (*draft, error) {
	made := make(chan *os.Root, 1)
	var given atomic.Bool // whether the caller has taken the result or has given up
	err := p.do(func() error {
		root, err := p.open()
		if err != nil {
			return err
		}
		if err = p.ready(root, name); err == nil && given.CompareAndSwap(false, true) {
			made <- root
			return nil
		}
		return errors.Join(err, root.Close())
	})
	if err != nil {
		if !given.CompareAndSwap(false, true) { // the result arrived just now
			(<-made).Close()
		}
		return nil, err
	}
	return &draft{place: p, name: name, root: <-made}, nil
}

// ready makes space for a dump and creates its directory.
func (p *place) ready(root *os.Root, name string) error {
	if err := p.prune(root, maxDumps-1, p.maxBytes, ""); err != nil {
		return err
	}
	if _, free, err := disk.Space(p.dir); err != nil || free < minFree {
		return errors.Join(err, fmt.Errorf("%d bytes are free, and %d have to stay so", free, minFree))
	}
	return root.Mkdir(name+partSuffix, 0o700)
}

// drop abandons a draft.
func (d *draft) drop() { go d.root.Close() }

// open opens the directory with mode 0700, because dumps contain names of repositories and users.
func (p *place) open() (*os.Root, error) {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	// A link could lead anywhere, and its owner may not be that of its target.
	if info, err := os.Lstat(p.dir); err != nil || !info.IsDir() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a directory", p.dir))
	}
	root, err := os.OpenRoot(p.dir)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err == nil && !owned(info) {
		err = errors.New("it belongs to another user")
	}
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = root.Chmod(".", 0o700)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// put writes a file. It returns errFull if the file is too large, and omits it.
func (d *draft) put(f file) error {
	return d.do(func() error {
		size := int64(len(f.data))
		room := d.maxBytes - size
		if f.name != notesName {
			room -= notesLimit
		}
		if err := d.prune(d.root, maxDumps, room, d.name+partSuffix); err != nil {
			return err
		}
		if _, free, err := disk.Space(d.dir); err != nil {
			return err
		} else if free-size < minFree {
			return errFull
		}
		out, err := d.root.OpenFile(filepath.Join(d.name+partSuffix, f.name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = out.Write(f.data)
		return errors.Join(err, out.Close())
	})
}

// end removes the suffix from the directory's name and returns its path.
func (d *draft) end() (string, error) {
	err := d.do(func() error {
		defer d.root.Close()
		return d.root.Rename(d.name+partSuffix, d.name)
	})
	return filepath.Join(d.dir, d.name), err
}

// prune removes the oldest dumps until there are at most count dumps of at most bytes bytes. It keeps the dump named
// keep. It returns errFull if keep alone is too large.
func (p *place) prune(root *os.Root, count int, bytes int64, keep string) error {
	f, err := root.Open(".")
	if err != nil {
		return err
	}
	entries, err := f.ReadDir(-1)
	f.Close()
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		return !e.IsDir() || !dumpName.MatchString(e.Name())
	})
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(b.Name(), a.Name()) }) // the newest first
	var sum, kept int64
	left := 0
	for _, e := range entries {
		if e.Name() == keep {
			kept = sizeOf(root, e.Name())
			sum += kept
			left++
		}
	}
	if kept > bytes {
		return errFull
	}
	for _, e := range entries {
		if e.Name() == keep {
			continue
		}
		size := sizeOf(root, e.Name())
		if left >= count || sum+size > bytes {
			if err := root.RemoveAll(e.Name()); err != nil {
				return err
			}
			continue
		}
		left++
		sum += size
	}
	return nil
}

// sizeOf returns the sum of the sizes of a directory's files.
func sizeOf(root *os.Root, dir string) (sum int64) {
	f, err := root.Open(dir)
	if err != nil {
		return 0
	}
	defer f.Close()
	entries, _ := f.ReadDir(-1)
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// owned reports whether a file belongs to this user.
func owned(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid()
}
