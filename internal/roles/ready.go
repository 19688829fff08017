package roles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/observe"
)

const (
	leastRoom  = 16 << 20         // bytes: a file system with less is full, as no push is sure to fit
	leastFiles = 16               // inodes
	probeEvery = 10 * time.Second // between two probes that succeed
	probeBytes = 4 << 10
	probeFile  = "ready.probe" // in the state directory; removed at once
)

// room is what a file system has free for this process. Files is negative where the file system has no such number.
type room struct{ bytes, files int64 }

func roomOf(dir string) (room, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return room{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	r := room{int64(uint64(st.Bavail) * uint64(st.Bsize)), -1}
	if st.Files > 0 {
		r.files = int64(st.Ffree)
	}
	return r, nil
}

// check returns an error if there is too little to go on with.
func (r room) check(dir string) error {
	switch {
	case r.bytes < leastRoom:
		return fmt.Errorf("the file system of %s is full: it has %d KiB free; free some space", dir, r.bytes>>10)
	case r.files >= 0 && r.files < leastFiles:
		return fmt.Errorf("the file system of %s has room for %d more files; remove some, or make it with more inodes", dir,
			r.files)
	}
	return nil
}

// stateCheck checks that the state directory can be written to, which cold fetches and pushes need. How full the cache
// is does not matter: it keeps cache.min_free free.
type stateCheck struct {
	dir    string
	start  os.FileInfo
	room   func(dir string) (room, error)
	probed time.Time // successfully
}

func newStateCheck(dir string) (*stateCheck, error) {
	start, err := os.Stat(dir)
	return &stateCheck{dir: dir, start: start, room: roomOf}, err
}

func (c *stateCheck) look() error {
	now, err := os.Stat(c.dir)
	if err != nil {
		return fmt.Errorf("the state directory cannot be used: %w", err)
	}
	if !os.SameFile(now, c.start) {
		return fmt.Errorf("the state directory %s is another one than at the start; mount its file system again, or "+
			"restart the server", c.dir)
	}
	free, err := c.room(c.dir)
	if err == nil {
		err = free.check(c.dir)
	}
	if err == nil && time.Since(c.probed) >= probeEvery {
		if err = probe(filepath.Join(c.dir, probeFile)); err == nil {
			c.probed = time.Now()
		}
	}
	if err != nil {
		c.probed = time.Time{}
	}
	return err
}

// probe writes a small file: that finds quotas and file systems that turned read-only, of which statfs(2) does not
// tell.
func probe(path string) error {
	err := os.WriteFile(path, make([]byte, probeBytes), 0o600)
	if gone := os.Remove(path); err == nil {
		err = gone
	}
	if err != nil {
		return fmt.Errorf("the state directory cannot be written to: %w", err)
	}
	return nil
}

// pushCheck returns a check that pushes find a root directory that can be written to; nil if this process cannot do so
// in the first place, as for a mirror on a read-only mount.
func pushCheck(dir string) func() error {
	if unix.Access(dir, unix.W_OK) != nil {
		return nil
	}
	return func() error {
		// that it is gone is for another check
		if err := unix.Access(dir, unix.W_OK); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("the root directory %s can no longer be written to: %w", dir, err)
		}
		free, err := roomOf(dir)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err == nil {
			err = free.check(dir)
		}
		return err
	}
}

// addNodeChecks has readiness depend on what a node's fetches and pushes need.
func (s *server) addNodeChecks() error {
	state, err := newStateCheck(s.cfg.State)
	if err != nil {
		return err
	}
	s.checks = append(s.checks, observe.Check{Name: "root", Look: s.node.Ready},
		observe.Check{Name: "state", Look: state.look})
	if look := pushCheck(s.cfg.Root); look != nil && s.cfg.Push.Enabled {
		s.checks = append(s.checks, observe.Check{Name: "push", Look: look})
	}
	return nil
}

// sticky returns a function that is true for ever once is was.
func sticky(is func() bool) func() bool {
	var mu sync.Mutex
	was := false
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		was = was || is()
		return was
	}
}
