package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// delegated reports whether this process may divide a cgroup. Write permission does not suffice: root can write all of
// them.
func delegated(dir, path string) bool {
	for _, name := range []string{"user.delegate", "trusted.delegate"} { // set by systemd
		value := make([]byte, 8)
		if n, err := unix.Getxattr(dir, name, value); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	if path == "/" { // the root cgroup of a container has a type; that of the machine has none, and is not delegated
		_, err := os.Stat(filepath.Join(dir, "cgroup.type"))
		return err == nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid == 0 || int(st.Uid) != os.Geteuid() {
		return false
	}
	// systemd before 251 marks the cgroup of a service so that only root can read it. A user's own cgroup may also be
	// that of a terminal, but that has a shell in it too.
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return err == nil && strings.TrimSpace(string(procs)) == strconv.Itoa(os.Getpid())
}

// remove removes a group in which nothing runs, and which has none below it.
func remove(dir string) { unix.Rmdir(dir) }
