// Command packhorse-bench measures Git servers from outside and compares access logs. See `packhorse-bench --help`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/packhorse-git/packhorse/internal/bench"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/server/cli"
)

// version can be set by the linker.
var version = cli.Version

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal then has its default effect: the process ends at once
	os.Exit(bench.Main(ctx, loadgen.Env{Stdout: os.Stdout, Stderr: os.Stderr, Version: version}, os.Args[1:], os.Stdin))
}
