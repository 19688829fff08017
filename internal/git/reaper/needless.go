package reaper

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// inits are programs for process 1 of a container that exit with their child. The kernel then kills all other processes of the
// container (pid_namespaces(7)).
var inits = []string{"tini", "docker-init", "dumb-init", "catatonit"}

// Needless says who ends the git commands if this process is killed: "systemd", "container", or "" if nobody does and a reaper is
// needed.
func Needless() string {
	name, _ := os.ReadFile("/proc/1/comm")
	return needless(os.Getenv, os.Getpid(), os.Getppid(), strings.TrimSpace(string(name)))
}

// needless is Needless for a process; first is the name of process 1. INVOCATION_ID alone proves nothing: a service's children,
// such as a terminal's shell, inherit it. SYSTEMD_EXEC_PID names the process that systemd itself has started, since version 248.
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
