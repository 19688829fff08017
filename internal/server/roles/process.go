// Package roles wires the parts of a server. Each role (serve, storage, gateway, search) is one function in server.go.
// It combines the parts of a node (node.go) and of a gateway (gateway.go). A part adds its checks, reloads and closers
// to the lifecycle of the process (deps.go). Run (run.go) is the life of a process: log, state directory, listeners,
// parts, serve, drain, close.
package roles

import (
	"io"
	"os"

	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// Process has the properties of the process that a role runs in.
type Process struct {
	Stderr  io.Writer                // for the log and the addresses of the process
	Getenv  func(name string) string // variables of the environment
	Version string                   // of the program
	// Revision is the commit of the program's source. Empty means unknown.
	Revision string
	// Program is the path of the program, which also runs the reaper. Empty means unknown: there is no reaper.
	Program string

	// Started is called with the addresses of the started process. Nil means that they are written to Stderr.
	Started func(statedir.Server) error

	// Hangups delivers SIGHUPs until stop is called. Each reloads the configuration. Nil means no reloads.
	Hangups func() (signals <-chan os.Signal, stop func())
	// Quits does the same for SIGQUIT, which writes a dump. After stop it has its default effect again.
	Quits func() (signals <-chan os.Signal, stop func())

	// Sockets are listening sockets that the service manager opened for this process. Their names are those of sockets.go.
	// The role closes them.
	Sockets []*os.File
}
