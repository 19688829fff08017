//go:build !linux

package watchdog

import (
	"errors"
	"io"
)

var errNoProc = errors.New("processes are told of on Linux alone")

// WriteProcesses tells what a process and those below it do. Linux only.
func WriteProcesses(io.Writer, int) error { return errNoProc }

// WriteCommands writes the command lines of a process and those below it. Linux only.
func WriteCommands(io.Writer, int, func(string) string) error { return errNoProc }
