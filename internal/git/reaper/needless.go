package reaper

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// inits are programs for process 1 of a container that exit with their child. Then the kernel kills all other processes
// of the container (pid_namespaces(7)).
var inits = []string{"tini", "docker-init", "dumb-init", "catatonit"}

// Needless returns "systemd" or "container" if that ends the git commands when this process is killed, and "" if a
// reaper is needed.
func Needless() string {
	name, _ := os.ReadFile("/proc/1/comm")
	return needless(os.Getenv, os.Getpid(), os.Getppid(), strings.TrimSpace(string(name)))
}

// needless is Needless for a process; first is the name of process 1. INVOCATION_ID alone does not suffice, because all
// children of a service inherit it, even the shells of a terminal. SYSTEMD_EXEC_PID is the process that systemd itself
// started. It exists since systemd 248.
func needless(env func(string) string, pid, parent int, first string) string {
	main := env("SYSTEMD_EXEC_PID")
	switch {
	case pid == 1, parent == 1 && slices.Contains(inits, first):
		return "container"
	case main == strconv.Itoa(pid), main == "" && env("INVOCATION_ID") != "" && parent == 1 && first == "systemd":
		return "systemd"
	}
	return ""
}
