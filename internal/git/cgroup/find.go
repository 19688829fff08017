package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// parent is the directory below which the groups are made.
func (o *Options) parent() (string, error) {
	if o.Path != "" {
		if _, err := os.Stat(o.Path); err == nil {
			return o.Path, isCgroup(o.Path)
		}
		if err := isCgroup(filepath.Dir(o.Path)); err != nil {
			return "", err
		}
		return o.Path, o.mkdir(o.Path)
	}
	own, path, err := Own(o.proc, o.pid)
	if err != nil {
		return "", err
	}
	if err := isCgroup(own); err != nil {
		return "", err
	}
	if !delegated(own, path) {
		return "", fmt.Errorf(
			"cgroup %s is not delegated to this process: set Delegate=yes in the systemd unit, or cgroup.path", own)
	}
	return own, nil
}

// Usable reports whether Open could create groups for a process, in the directory path or, if that is empty, in the
// process's own cgroup. It changes nothing. Each error in missing is about limits without effect; err is about groups.
func Usable(pid int, path string) (dir string, missing []error, err error) {
	o := Options{Path: path, proc: procfs.DefaultMountPoint, pid: pid, mkdir: func(string) error { return nil }}
	if dir, err = o.parent(); err != nil {
		return "", nil, err
	}
	made := dir
	if _, err := os.Stat(made); errors.Is(err, fs.ErrNotExist) { // cgroup.path, which Open makes
		made = filepath.Dir(made)
	}
	if err := unix.Access(made, unix.W_OK); err != nil {
		return dir, nil, fmt.Errorf("no cgroup can be made in %s: %w", made, err)
	}
	have, err := os.ReadFile(filepath.Join(made, "cgroup.controllers"))
	if err != nil {
		return dir, nil, err
	}
	for _, c := range wanted {
		if !slices.Contains(strings.Fields(string(have)), c) {
			missing = append(missing, fmt.Errorf("%s does not have the controller %q", made, c))
		}
	}
	return dir, missing, nil
}

func isCgroup(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
		return fmt.Errorf("%s is not a cgroup: %w", dir, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.subtree_control")); err != nil {
		return fmt.Errorf("%s is not a cgroup of version 2: %w", dir, err)
	}
	return nil
}

var errNone = errors.New("there is no cgroup v2 hierarchy here")

// Own returns the directory of the cgroup of a process, and its path in the hierarchy, by the files below proc, which
// is "/proc" except in tests (cgroups(7), "/proc/PID/cgroup").
func Own(proc string, pid int) (dir, path string, err error) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return "", "", errNone
	}
	p, err := fs.Proc(pid)
	if err != nil {
		return "", "", errNone
	}
	cgroups, err := p.Cgroups()
	if err != nil {
		return "", "", errNone
	}
	for _, c := range cgroups {
		if c.HierarchyID == 0 {
			path = c.Path
		}
	}
	if !strings.HasPrefix(path, "/") {
		return "", "", errNone
	}
	mounts, err := fs.GetProcMounts(pid)
	if err != nil {
		return "", "", errNone
	}
	for _, m := range mounts {
		rest, ok := strings.CutPrefix(path, strings.TrimSuffix(m.Root, "/"))
		if m.FSType != "cgroup2" || !ok || rest != "" && rest[0] != '/' {
			continue // another file system, or another part of the hierarchy
		}
		return filepath.Join(m.MountPoint, rest), path, nil
	}
	return "", "", errNone
}
