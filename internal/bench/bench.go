// Package bench is packhorse-bench: load generators that measure servers from outside, and the comparison of access
// logs.
//
// Package gitload measures Git servers, ci a fleet of CI machines, and cold packs that are in no cache. Package matrix
// measures a gateway and a storage node, mirror a mirror of a Git host, lfs Git LFS, and store servers whose
// repositories are in object storage. Package writes measures calls that write, merge and archive, pages pages for
// browsers, search code search, and app application servers. They send their requests with package loadgen.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/internal/bench/app"
	"github.com/packhorse-git/packhorse/internal/bench/ci"
	"github.com/packhorse-git/packhorse/internal/bench/cold"
	"github.com/packhorse-git/packhorse/internal/bench/compare"
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/lfs"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/manage"
	"github.com/packhorse-git/packhorse/internal/bench/matrix"
	"github.com/packhorse-git/packhorse/internal/bench/mirror"
	"github.com/packhorse-git/packhorse/internal/bench/pages"
	"github.com/packhorse-git/packhorse/internal/bench/search"
	"github.com/packhorse-git/packhorse/internal/bench/store"
	"github.com/packhorse-git/packhorse/internal/bench/writes"
	"github.com/packhorse-git/packhorse/internal/server/cli"
)

// Main runs the command in args until the command or ctx ends, and returns the exit code.
func Main(ctx context.Context, env loadgen.Env, args []string, stdin io.Reader) int {
	return cli.Run(ctx, Command(env), args, stdin, env.Stdout, env.Stderr)
}

// Command returns `packhorse-bench` with its subcommands. All of them end cleanly when their context ends.
func Command(env loadgen.Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "packhorse-bench",
		Short: "Measure Git servers, code search and application servers, and compare access logs",
		Long: `Measure any server that speaks Git's protocol v2 over smart HTTP, Packhorse or another.

A first tour, with a server at 127.0.0.1:8080 whose process ID is 4711:

  packhorse-bench fetch http://127.0.0.1:8080/demo.git --clients 30 --server-pid 4711
  packhorse-bench mkrefs /srv/git/refs.git --count 200000
  packhorse-bench refs http://127.0.0.1:8080/refs.git --prefix refs/heads/main
  packhorse-bench neighbour http://127.0.0.1:8080/demo.git --clients 30 --mbps 400
  packhorse-bench ci --repo /srv/git/demo.git

Packs that are in no cache, of a server that the command starts, against git upload-pack:

  packhorse-bench cold /srv/git/demo.git

A gateway and a storage node that the command starts:

  packhorse-bench matrix --repo /srv/git/demo.git

A mirror of an origin behind a slow link, against the origin:

  packhorse-bench mirror

Servers whose repositories are in object storage, against plain repositories:

  packhorse-bench store --versitygw bin/store/versitygw

Commits, merges, history and archives by calls, against git and pushes:

  packhorse-bench writes --repo /srv/git/demo.git

Forks, collections and lists of repositories, against git:

  packhorse-bench manage --repo /srv/git/demo.git

Pages for browsers, against cgit:

  packhorse-bench pages --repo /srv/git/demo.git

Git LFS, against Go's file server:

  packhorse-bench lfs

An application server, with requests at random times:

  packhorse-bench app http://127.0.0.1:3000/work --rate 27

The limit of this machine:

  packhorse-bench limit BIGFILE &
  packhorse-bench fetch --raw http://127.0.0.1:8081/ --clients 30

Git's own server:

  packhorse-bench backend /srv/git --http 127.0.0.1:8082 &
  packhorse-bench ci http://127.0.0.1:8082/demo.git --repo /srv/git/demo.git --server-pid PID

Two access logs:

  packhorse-bench compare old.log new.log

Megabytes and gigabytes are 10^6 and 10^9 bytes.`,
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version: env.Version,
	}
	root.AddCommand(gitload.Commands(env)...)
	root.AddCommand(ci.Command(env), cold.Command(env), matrix.Command(env), mirror.Command(env), lfs.Command(env),
		store.Command(env), writes.Command(env), manage.Command(env), pages.Command(env), search.Command(env),
		app.Command(env), compare.Command())
	for _, cmd := range root.Commands() {
		cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
			if removed := removedFlag(err); removed != nil {
				return cli.Usage(removed)
			}
			return root.FlagErrorFunc()(cmd, err)
		})
	}
	for name, instead := range removedCommands {
		root.AddCommand(removedCommand(name, instead))
	}
	return root
}

// removedCommands are former commands, with what to do instead.
var removedCommands = map[string]string{
	"lab":   "the simulation of workers is \"make bench-sched\", the cost of starting git is \"make bench-spawn\"",
	"storm": "\"packhorse-bench neighbour URL --cold\" measures small requests beside clones that are in no cache",
}

const noTLS = "the control API is measured without TLS"

// removedFlags are former flags of all commands, with what to do instead.
var removedFlags = map[string]string{
	"files":       "files are passed where that is possible",
	"format":      "the format is detected in each line",
	"html":        "there are no pages with charts; use the text, or --json",
	"profiles":    "take profiles from the private listeners, as /debug/pprof/profile",
	"protocol":    "only version 2 is measured",
	"relay":       "compare with \"packhorse-bench limit FILE\", or with one process in \"packhorse-bench matrix\"",
	"server-name": noTLS,
	"tls-ca":      noTLS,
	"tls-cert":    noTLS,
	"tls-key":     noTLS,
	"api":         "the JSON API is measured, and zoekt-webserver with --peer",
	"resolve":     "\"go test -bench Resolve ./internal/gateway/resolve\" measures look-ups",
	"source":      "the server decides what makes a pack",
	"verify":      "dropping the cache would repeat a verification that is due once",
	"confidence":  "each interval holds in 95 % of cases",
	"pools":       "the two values of the field of --split are compared, in order",
	"only":        "give the parts as arguments",
	"again":       "standstills of the machine are not detected; compare servers in more --turns",
}

func removedCommand(name, instead string) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: "Removed", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return cli.Usage(fmt.Errorf("%s was removed: %s", name, instead))
		},
	}
}

// removedFlag returns the error of a removed flag, or nil if err is another one.
func removedFlag(err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return nil
	}
	name := unknown.GetSpecifiedName()
	if removedFlags[name] == "" {
		return nil
	}
	return fmt.Errorf("--%s was removed: %s", name, removedFlags[name])
}
