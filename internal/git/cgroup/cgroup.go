// Package cgroup gives a server and each class of its git commands a cgroup (v2). The groups have limits of memory and
// shares of CPU time. They are below a directory that was delegated to the server:
//
//	DIRECTORY                delegated by systemd (Delegate=yes), the root of a container, or set by the operator
//	  packhorse.PID.RANDOM   one for each run; the next run removes those of ended runs
//	    server               this process and its other children
//	    pack, receive, ...   commands; they start in their group, so all their children are limited too
//
// A cgroup whose controllers are enabled for its children may have no processes (cgroups(7), "no internal processes"),
// so the server has its own group. Without such a directory Open returns an error and changes nothing. Without
// controllers the groups have no limits.
package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/procfs"
)

// Server is the group of this process.
const Server = "server"

// Limits of a group. A limit of 0 is not set.
type Limits struct {
	MemoryHigh int64 // bytes above which its processes are slowed down and their memory is taken back
	MemoryMax  int64 // bytes above which one of them is killed
	CPUWeight  int   // its share of CPU time beside the other groups' while there is too little: 1 to 10000
}

// Options of a Tree.
type Options struct {
	Path    string            // the directory, created if necessary; "": that of this process, if it was delegated
	Groups  map[string]Limits // Server among them
	Metrics *Metrics          // may be nil
	Log     *slog.Logger
	Wanted  bool // missing controllers are worth a warning: the administrator has set limits

	proc  string             // for tests: another /proc
	pid   int                // the process; 0: this one
	mkdir func(string) error // for tests: of a hierarchy that the kernel does not fill
}

// Tree is a run's groups. The nil Tree has none. It is safe for concurrent use.
type Tree struct {
	dir     string // the run's
	names   []string
	log     *slog.Logger
	metrics *Metrics

	mu      sync.Mutex
	open    map[string]*os.File
	refused bool
	closed  bool
}

// wanted are the controllers that Limits are for.
var wanted = []string{"cpu", "memory"}

// Open moves this process to a separate group, and creates the others. If that is not possible, the error names the
// reason.
func Open(o Options) (*Tree, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	if o.proc == "" {
		o.proc = procfs.DefaultMountPoint
	}
	if o.pid == 0 {
		o.pid = os.Getpid()
	}
	if o.mkdir == nil {
		o.mkdir = func(dir string) error { return os.Mkdir(dir, 0o755) }
	}
	parent, err := o.parent()
	if err != nil {
		return nil, err
	}
	sweep(parent)
	t := &Tree{
		dir: filepath.Join(parent, runName()), log: o.Log, metrics: o.Metrics, open: make(map[string]*os.File),
		names: slices.Sorted(maps.Keys(o.Groups)),
	}
	if err := t.make(o, parent); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	o.Metrics.watch(t)
	return t, nil
}

// make makes the groups and moves this process.
func (t *Tree) make(o Options, parent string) error {
	if err := o.mkdir(t.dir); err != nil {
		return fmt.Errorf("make a cgroup: %w", err)
	}
	server := filepath.Join(t.dir, Server)
	if err := o.mkdir(server); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a cgroup: %w", err)
	}
	if err := write(server, "cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
		return fmt.Errorf("move this process to a cgroup: %w", err)
	}
	missing := passOn(parent, t.dir)
	for _, name := range t.names {
		dir := filepath.Join(t.dir, name)
		if err := o.mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make a cgroup: %w", err)
		}
		if err := o.Groups[name].set(dir); err != nil && len(missing) == 0 {
			missing = append(missing, err)
		}
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		t.open[name] = f
	}
	if len(missing) > 0 {
		level := slog.LevelDebug
		if o.Wanted {
			level = slog.LevelWarn
		}
		o.Log.Log(context.Background(), level, "cgroups have no limits: using rlimits and niceness instead", "cgroup",
			t.dir, "error", errors.Join(missing...))
	}
	return nil
}

// passOn enables the controllers from parent down to the children of dir, and returns an error for each missing one.
func passOn(parent, dir string) (missing []error) {
	have, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	if err != nil {
		return []error{err}
	}
	for _, c := range wanted {
		if !slices.Contains(strings.Fields(string(have)), c) {
			missing = append(missing, fmt.Errorf("%s does not have the controller %q", parent, c))
			continue
		}
		err := write(parent, "cgroup.subtree_control", "+"+c)
		if err == nil {
			err = write(dir, "cgroup.subtree_control", "+"+c)
		}
		if err != nil {
			missing = append(missing, fmt.Errorf("pass on the controller %q: %w", c, err))
		}
	}
	return missing
}

// set writes the limits of a group, those that are not 0.
func (l Limits) set(dir string) error {
	var errs []error
	for _, v := range []struct {
		file  string
		value int64
	}{{"memory.high", l.MemoryHigh}, {"memory.max", l.MemoryMax}, {"cpu.weight", int64(l.CPUWeight)}} {
		if v.value > 0 {
			errs = append(errs, write(dir, v.file, strconv.FormatInt(v.value, 10)))
		}
	}
	return errors.Join(errs...)
}

// write writes to a file that the kernel has made.
func write(dir, name, text string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text + "\n")
	return errors.Join(err, f.Close())
}

// Directory is an open group, for processes to be started in it until Close; nil if there is no such group.
func (t *Tree) Directory(group string) *os.File {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[group]
}

// Refused notes that a command could not be started in its group, and was elsewhere.
func (t *Tree) Refused(group string, err error) {
	t.metrics.refused.WithLabelValues(group).Inc()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.refused {
		t.refused = true
		t.log.Warn("cannot start a git command in its cgroup; git commands may run outside", "cgroup",
			filepath.Join(t.dir, group), "error", err)
	}
}

// Directories are those of the groups that commands run in.
func (t *Tree) Directories() (list []string) {
	if t == nil {
		return nil
	}
	for _, name := range t.names {
		if name != Server {
			list = append(list, filepath.Join(t.dir, name))
		}
	}
	return list
}

// Close removes the groups in which nothing runs. That of this process is left, with it, where controllers have been
// passed on; the next run removes it.
func (t *Tree) Close() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	t.metrics.watch(nil)
	for _, f := range t.open {
		f.Close()
	}
	clear(t.open)
	t.mu.Unlock()
	for _, dir := range t.Directories() {
		remove(dir)
	}
	parent := filepath.Dir(t.dir)
	if passed, err := os.ReadFile(filepath.Join(parent, "cgroup.subtree_control")); err == nil &&
		len(bytes.TrimSpace(passed)) == 0 {
		write(parent, "cgroup.procs", strconv.Itoa(os.Getpid()))
	}
	remove(filepath.Join(t.dir, Server))
	remove(t.dir)
	return nil
}

// prefix begins the names of the runs' directories.
const prefix = "packhorse."

// runName returns a name that no other run has. The process number alone does not suffice: each PID namespace has its
// own, and processes of the last run may remain.
func runName() string {
	return fmt.Sprintf("%s%d.%016x", prefix, os.Getpid(), rand.Uint64())
}

// isRun reports whether a directory has the name of a run. Runs of early versions have only the number.
func isRun(name string) bool {
	number, random, more := strings.Cut(strings.TrimPrefix(name, prefix), ".")
	_, bad := strconv.Atoi(number)
	if more && bad == nil {
		_, bad = strconv.ParseUint(random, 16, 64)
	}
	return bad == nil
}

// sweep removes the directories of ended runs.
func sweep(parent string) {
	runs, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, run := range runs {
		if !isRun(filepath.Base(run)) || populated(run) {
			continue
		}
		groups, _ := filepath.Glob(filepath.Join(run, "*"))
		for _, group := range groups {
			remove(group)
		}
		remove(run)
	}
}

// populated reports whether a group or its descendants have processes. If that is not known, it returns true.
func populated(dir string) bool {
	events, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	return err != nil || !slices.Contains(strings.Split(string(events), "\n"), "populated 0")
}
