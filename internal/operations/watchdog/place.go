package watchdog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// place is the directory of dumps. Each dump is a directory named TIME-CAUSE-PID, with the suffix ".part" until it is
// complete. Other names are ignored. Disk operations may hang; see do.
type place struct {
	dir      string
	maxDump  int64
	patience time.Duration
	busy     atomic.Bool // an operation hangs in it
}

const (
	maxDumps = 10
	maxBytes = 256 << 20 // of all dumps
	maxDump  = 64 << 20  // bytes of one dump
	minFree  = 64 << 20  // bytes that stay free on the disk
)

// nameTime is the format of the time in the name of a dump. Names sort by time.
const nameTime = "20060102T150405.000Z"

var dumpName = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}\.[0-9]{3}Z-[a-z]+-[0-9]+(\.part)?$`)

const partSuffix = ".part"

var (
	errHangs = errors.New("it does not answer")
	errFull  = errors.New("there is no room for it within the bounds of dumps")
)

// do performs a disk operation in the directory, in a goroutine that is left behind if it hangs. Until it returns, no
// other operation is attempted.
func (p *place) do(what func(*os.Root) error) error {
	if !p.busy.CompareAndSwap(false, true) {
		return errHangs
	}
	done := make(chan error, 1)
	go func() {
		root, err := p.open()
		if err == nil {
			err = errors.Join(what(root), root.Close())
		}
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

// draft is a dump that is being written.
type draft struct {
	*place
	name string
	size int64 // of its files
}

// draft makes space for a dump and creates its directory.
func (p *place) draft(name string) (*draft, error) {
	return &draft{place: p, name: name}, p.do(func(root *os.Root) error {
		if err := prune(root); err != nil {
			return err
		}
		if _, free, err := disk.Space(p.dir); err != nil || free < minFree {
			return errors.Join(err, fmt.Errorf("%d bytes are free, and %d have to stay so", free, minFree))
		}
		return root.Mkdir(name+partSuffix, 0o700)
	})
}

// put writes a file. It returns errFull if the file is too large, and omits it.
func (d *draft) put(f file) error {
	size := int64(len(f.data))
	if f.name != notesName && d.size+size > d.maxDump-notesLimit {
		return errFull
	}
	d.size += size
	return d.do(func(root *os.Root) error {
		if _, free, err := disk.Space(d.dir); err != nil {
			return err
		} else if free-size < minFree {
			return errFull
		}
		out, err := root.OpenFile(filepath.Join(d.name+partSuffix, f.name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = out.Write(f.data)
		return errors.Join(err, out.Close())
	})
}

// end removes the suffix from the directory's name and returns its path.
func (d *draft) end() (string, error) {
	return filepath.Join(d.dir, d.name), d.do(func(root *os.Root) error {
		return root.Rename(d.name+partSuffix, d.name)
	})
}

// prune removes the oldest dumps until there is room for another one.
func prune(root *os.Root) error {
	entries, err := fs.ReadDir(root.FS(), ".") // sorted by time
	if err != nil {
		return err
	}
	left, sum := 0, int64(0)
	for _, e := range slices.Backward(entries) {
		if !e.IsDir() || !dumpName.MatchString(e.Name()) {
			continue
		}
		size := sizeOf(root, e.Name())
		if left+1 >= maxDumps || sum+size > maxBytes-maxDump {
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
	entries, _ := fs.ReadDir(root.FS(), dir)
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
