package roles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	minRoom       = 16 << 20         // bytes; a file system with less is full
	minFiles      = 16               // inodes
	probeInterval = 10 * time.Second // minimum time between two successful probes
	probeBytes    = 4 << 10
	probeFile     = "ready.probe" // in the state directory; removed at once
)

// room is the free space of a file system for this process. files is negative if the file system has no limit of files.
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

// check returns an error if the file system of dir is full.
func (r room) check(dir string) error {
	switch {
	case r.bytes < minRoom:
		return fmt.Errorf("the file system of %s has only %d KiB free: delete files", dir, r.bytes>>10)
	case r.files >= 0 && r.files < minFiles:
		return fmt.Errorf("the file system of %s has only %d inodes free: delete files, or create it with more inodes",
			dir, r.files)
	}
	return nil
}

// stateCheck checks that the state directory is writable, which cold fetches and pushes need. A full cache does not
// matter, because it keeps a part of it free.
type stateCheck struct {
	dir    string
	start  os.FileInfo
	room   func(dir string) (room, error)
	probed time.Time // latest successful probe; zero after a failure
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
		return fmt.Errorf("the state directory %s was replaced: mount its file system again, or restart the "+
			"server", c.dir)
	}
	free, err := c.room(c.dir)
	if err == nil {
		err = free.check(c.dir)
	}
	if err == nil && time.Since(c.probed) >= probeInterval {
		if err = probe(filepath.Join(c.dir, probeFile)); err == nil {
			c.probed = time.Now()
		}
	}
	if err != nil {
		c.probed = time.Time{}
	}
	return err
}

// probe writes a small file. That detects quotas and file systems that became read-only, which statfs(2) does not
// report.
func probe(path string) error {
	err := os.WriteFile(path, make([]byte, probeBytes), 0o600)
	if removed := os.Remove(path); err == nil {
		err = removed
	}
	if err != nil {
		return fmt.Errorf("the state directory cannot be written to: %w", err)
	}
	return nil
}

// pushCheck returns a check that the root directory is writable for pushes. It returns nil if the directory is not
// writable at the start, for example a mirror on a read-only mount.
func pushCheck(dir string) func() error {
	if unix.Access(dir, unix.W_OK) != nil {
		return nil
	}
	return func() error {
		// another check reports a missing directory
		if err := unix.Access(dir, unix.W_OK); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("the root directory %s is not writable any more: %w", dir, err)
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

// addChecks adds the readiness checks of a node.
func (n *nodeParts) addChecks(d *deps) error {
	state, err := newStateCheck(d.cfg.State)
	if err != nil {
		return err
	}
	if n.store != nil {
		d.life.check("store", n.store.Ready)
	} else {
		d.life.check("root", n.node.Ready)
	}
	d.life.check("state", state.look)
	if look := pushCheck(d.cfg.Root); look != nil && d.cfg.Push.Enabled {
		d.life.check("push", look)
	}
	return nil
}
