// Command packhorse serves Git repositories to many clients at once. See `packhorse --help`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/packhorse-git/packhorse/internal/server/cli"
	"github.com/packhorse-git/packhorse/internal/server/command"
)

// The linker can set these; see the Makefile.
var (
	version  = cli.Version
	revision string // commit of the source
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal then has its default effect: the process ends at once
	os.Exit(command.Main(ctx, command.OSEnv(version, revision)))
}
