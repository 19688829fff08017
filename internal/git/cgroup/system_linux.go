package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// delegated tells whether a cgroup is this process's to divide. That it can be written says nothing: root can write
// them all.
func delegated(dir, path string) bool {
	for _, name := range []string{"user.delegate", "trusted.delegate"} { // systemd says so
		value := make([]byte, 8)
		if n, err := unix.Getxattr(dir, name, value); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	if path == "/" { // the root of a container has a type; that of the machine has none, and is nobody's
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
	// systemd before 251 gave a service its cgroup with no sign that other users than root can read. What is a user's
	// own may also be a terminal's, but there a shell is in it too.
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return err == nil && strings.TrimSpace(string(procs)) == strconv.Itoa(os.Getpid())
}

// remove removes a group in which nothing runs, and which has none below it.
func remove(dir string) { unix.Rmdir(dir) }
