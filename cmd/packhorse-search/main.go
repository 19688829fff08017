// Command packhorse-search indexes repositories and searches the index. The servers start it; see package worker.
package main

import (
	"fmt"
	"os"

	"github.com/packhorse-git/packhorse/internal/search/ipc"
	"github.com/packhorse-git/packhorse/internal/search/worker"
	"github.com/packhorse-git/packhorse/internal/server/cli"
)

// The linker can set these; see the Makefile.
var (
	version  = cli.Version
	revision string // commit of the source
)

func main() {
	build := ipc.Build{Version: version, Revision: cli.Revision(revision)}
	if len(os.Args) == 2 && (os.Args[1] == "version" || os.Args[1] == "--version") {
		fmt.Println(ipc.Program, build)
		return
	}
	if err := worker.Main(build, os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", ipc.Program, err)
		os.Exit(cli.ExitFailed)
	}
}
