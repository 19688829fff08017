// Package roles wires the parts of a server. Each role (serve, storage, gateway, search) is one function in a file of
// its own. It builds the parts in order, and pushes what closes them on one stack. Run (run.go) is the life of a
// process: log, state directory, listeners, parts, serve, drain, close.
package roles

import (
	"io"
	"os"
)

// Process is what a role knows of the process that it runs in.
type Process struct {
	Stderr  io.Writer                // of the log, and of where the process listens
	Getenv  func(name string) string // variables of the environment
	Version string                   // of the program
	// Revision is the commit of the program's source. Empty means unknown.
	Revision string
	// Program is the path of the program, which also runs the reaper. Empty means unknown: there is no reaper.
	Program string

	// Hangups begins to deliver the process's SIGHUPs until stop is called; nil: there are none. The configuration is read
	// again at each.
	Hangups func() (signals <-chan os.Signal, stop func())
	// Quits is the same for SIGQUIT, at which a dump is written, and for SIGUSR1, by which "packhorse debug dump" asks for
	// one. Once stop is called SIGQUIT has its default effect again, and SIGUSR1 none.
	Quits func() (signals <-chan os.Signal, stop func())

	// Sockets are listening sockets that the service manager opened for this process, by the names of sockets.go. The role
	// closes them.
	Sockets []*os.File
}
