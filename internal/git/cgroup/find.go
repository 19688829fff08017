package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

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
	own, path, err := o.own()
	if err != nil {
		return "", err
	}
	if err := isCgroup(own); err != nil {
		return "", err
	}
	if !delegated(own, path) {
		return "", fmt.Errorf("the cgroup %s was not delegated to this process (in a systemd unit: Delegate=yes); cgroup.path can name one", own)
	}
	return own, nil
}

// Usable says whether Open could make groups for a process, whose directory in /proc is proc, below a path or, without one, below the process's
// own cgroup. It makes and changes nothing. Missing is why limits of some kind would not hold; err why there can be no groups.
func Usable(proc, path string) (dir string, missing []error, err error) {
	o := Options{Path: path, proc: proc, mkdir: func(string) error { return nil }}
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
		return fmt.Errorf("%s is no cgroup: %w", dir, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.subtree_control")); err != nil {
		return fmt.Errorf("%s is no cgroup of version 2: %w", dir, err)
	}
	return nil
}

var errNone = errors.New("there is no cgroup v2 hierarchy here")

// own finds the cgroup that this process is in: its directory, and its path as the kernel tells it (cgroups(7), "/proc/PID/cgroup").
func (o *Options) own() (dir, path string, err error) {
	cgroups, err := os.ReadFile(filepath.Join(o.proc, "cgroup"))
	if err != nil {
		return "", "", errNone
	}
	for line := range strings.Lines(string(cgroups)) {
		if rest, ok := strings.CutPrefix(line, "0::"); ok {
			path = strings.TrimSuffix(rest, "\n")
		}
	}
	if !strings.HasPrefix(path, "/") {
		return "", "", errNone
	}
	mounts, err := os.ReadFile(filepath.Join(o.proc, "mountinfo"))
	if err != nil {
		return "", "", errNone
	}
	for line := range bytes.Lines(mounts) {
		before, after, ok := strings.Cut(string(line), " - ")
		fields := strings.Fields(before)
		if !ok || !strings.HasPrefix(after, "cgroup2 ") || len(fields) < 5 {
			continue
		}
		root, at := unescape(fields[3]), unescape(fields[4])
		rest, ok := strings.CutPrefix(path, strings.TrimSuffix(root, "/"))
		if !ok || rest != "" && rest[0] != '/' {
			continue // mounted is another part of the hierarchy
		}
		return filepath.Join(at, rest), path, nil
	}
	return "", "", errNone
}

// unescape undoes what the kernel does to names in mountinfo: a space is \040.
func unescape(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] == '\\' && i+3 < len(name) {
			if n, err := strconv.ParseUint(name[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(name[i])
	}
	return b.String()
}
