package reaper

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
)

// Group is a control group (cgroup v2) for the commands of one run of a server. No process can leave it. The nil Group
// means that commands run in the group of the server.
type Group struct {
	dir     string
	open    *os.File
	log     *slog.Logger
	refused sync.Once
}

// OpenGroup creates a group below a directory of the hierarchy, which it also creates if necessary. Its name is used by
// no other run: each PID namespace has its own numbers, and processes of the last run may remain.
func OpenGroup(parent string, log *slog.Logger) (*Group, error) {
	if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	if _, err := os.Stat(filepath.Join(parent, "cgroup.subtree_control")); err != nil {
		return nil, fmt.Errorf("%s is not a cgroup of version 2: %w", parent, err)
	}
	g := &Group{dir: filepath.Join(parent, fmt.Sprintf("packhorse.%d.%016x", os.Getpid(), rand.Uint64())), log: log}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	var err error
	if g.open, err = os.Open(g.dir); err != nil {
		return nil, errors.Join(err, os.Remove(g.dir))
	}
	return g, nil
}

// Directory is the open directory of the group, for processes to be started in it; nil if there is no group.
func (g *Group) Directory() *os.File {
	if g == nil {
		return nil
	}
	return g.open
}

// Refused notes that a command could not be started in the group, and was elsewhere.
func (g *Group) Refused(err error) {
	g.refused.Do(func() {
		g.log.Warn("cannot start a git command in its cgroup; git commands may run outside", "cgroup", g.dir, "error", err)
	})
}

// Close removes the group, unless processes of a hook still run in it.
func (g *Group) Close() {
	if g != nil {
		g.open.Close()
		os.Remove(g.dir)
	}
}
