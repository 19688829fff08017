//go:build !linux

package watchdog

import (
	"errors"
	"io"
)

var errNoProc = errors.New("processes can be listed only on Linux")

// WriteProcesses writes the state of a process and its descendants. It works only on Linux.
func WriteProcesses(io.Writer, int) error { return errNoProc }

// WriteCommands writes the command lines of a process and those below it. Linux only.
func WriteCommands(io.Writer, int, func(string) string) error { return errNoProc }
