// Package command is the command line of packhorse: one file for each command.
//
// The program is a function of its environment: Main gets the arguments, the streams and the variables, and returns the
// exit code, so that tests start the same thing that users do. Commands that start a server hand its configuration to
// package roles. Others ask a running server over the admin socket in its state directory (target, adminClient,
// nodeFinder), or look at files themselves.
package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/cli"
	"github.com/packhorse-git/packhorse/internal/roles"
	"github.com/packhorse-git/packhorse/internal/statedir"
)

// Env is what the program knows of the world.
type Env struct {
	Args     []string // without the program's name
	Stdin    io.Reader
	Stdout   io.Writer
	Stderr   io.Writer
	Environ  []string // "NAME=value"
	Version  string   // of the program; empty means cli.Version
	Revision string   // commit of the source; empty: what the build info knows
	// this program's file, for processes of its own, which search, or end what a killed server leaves; empty: there are
	// none
	Program string

	// Hangups begins to deliver the process's SIGHUPs until stop is called; nil: there are none. A server reads its
	// configuration again at each; other commands leave the signal its default effect.
	Hangups func() (signals <-chan os.Signal, stop func())
	// Quits is the same for SIGQUIT, at which a server writes a dump, and for SIGUSR1, by which "packhorse debug dump"
	// asks for one. Once stop is called SIGQUIT has its default effect again, and SIGUSR1 none.
	Quits func() (signals <-chan os.Signal, stop func())

	// Sockets are listening sockets that the service manager opened for this process, by the names in package roles.
	// Whoever runs a server closes them.
	Sockets []*os.File

	// Become has the process run as another user from now on, for commands that root runs on files of a server's user;
	// nil: they are run as root.
	Become func(statedir.Owner) error
}

// OSEnv is the environment of the running process.
func OSEnv(version, revision string) Env {
	program, err := os.Executable()
	if err != nil {
		program = ""
	}
	files := roles.InheritedSockets() // before Environ: commands that this process starts have no part in them
	return Env{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(),
		Version: version, Revision: revision, Program: program,
		Hangups: hangups, Quits: quits, Sockets: files, Become: statedir.Owner.Become,
	}
}

func hangups() (<-chan os.Signal, func()) { return signals(syscall.SIGHUP) }

func signals(which ...os.Signal) (<-chan os.Signal, func()) {
	signals := make(chan os.Signal, len(which)) // one that waits stands for all that come before it is read
	signal.Notify(signals, which...)
	return signals, func() { signal.Stop(signals) }
}

// quits delivers the process's SIGQUITs, and what asks for a dump.
func quits() (<-chan os.Signal, func()) {
	signals, stop := signals(syscall.SIGQUIT, statedir.DumpSignal)
	return signals, func() {
		signal.Ignore(statedir.DumpSignal) // it would end the process
		stop()
	}
}

// Getenv is the value of a variable; the last one counts, as for exec.Cmd.
func (e Env) Getenv(name string) string {
	for i := len(e.Environ) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(e.Environ[i], name+"="); ok {
			return value
		}
	}
	return ""
}

// process is what a role needs to know of it.
func (e Env) process() roles.Process {
	v := versionOf(e)
	return roles.Process{Stderr: e.Stderr, Getenv: e.Getenv, Version: v.Version, Revision: v.Revision, Program: e.Program,
		Hangups: e.Hangups, Quits: e.Quits, Sockets: e.Sockets}
}

// What package cli has for all commands.
const (
	exitOK     = cli.ExitOK
	exitFailed = cli.ExitFailed
	exitUsage  = cli.ExitUsage
)

var (
	usage     = cli.Usage
	noArgs    = cli.NoArgs
	exactArgs = cli.ExactArgs
)

// Main runs the command that env.Args name until it ends or ctx does, and returns the exit code.
func Main(ctx context.Context, env Env) int {
	return cli.Run(ctx, rootCommand(env), env.Args, env.Stdin, env.Stdout, env.Stderr)
}

func rootCommand(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "packhorse",
		Short: "Serve Git repositories to many clients at once",
		Long: `Packhorse serves a directory of bare Git repositories over HTTP and SSH. A pack that was made for one client is cached
and copied to every other client with the same request. So many identical clones cost little more than copying a file.`,
		Example: `  packhorse serve --root /srv/git        # http://127.0.0.1:8080/<path of the repository>
  packhorse config show --root /srv/git  # every setting, and the origin of its value
  packhorse help serve`,
	}
	group(root, serveCommand(env), storageCommand(env), gatewayCommand(env), searchCommand(env), nodesCommand(env),
		workersCommand(env), drainCommand(env), undrainCommand(env),
		repoCommand(env), cacheCommand(env), resolveCommand(env), topCommand(env), doctorCommand(env), tokenCommand(env),
		configCommand(env), debugCommand(env), versionCommand(env), reaperCommand(),
		movedCommand("bench"), movedCommand("compare"))
	// Not cobra's own flag: its text is a template, and with templates the linker keeps all methods of the program.
	version := root.Flags().BoolP("version", "v", false, "version for packhorse")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *version {
			_, err := io.WriteString(cmd.OutOrStdout(), versionOf(env).line())
			return err
		}
		return cmd.Help()
	}
	return root
}

// group completes a command that only has subcommands: without one it prints its help.
func group(cmd *cobra.Command, sub ...*cobra.Command) *cobra.Command {
	if cmd.Args == nil {
		cmd.Args = noArgs
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(sub...)
	return cmd
}

// movedCommand is the place where packhorse-bench's commands were: it says where they are now.
func movedCommand(name string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              "Moved to packhorse-bench",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			line := []string{"packhorse-bench"}
			switch {
			case name == "compare":
				line = append(line, name)
			case len(args) > 0 && slices.Contains([]string{"sched", "spawn", "exists"}, args[0]):
				line = append(line, "lab")
			}
			return usage(fmt.Errorf("packhorse %s moved to a program of its own: run %q", name,
				strings.Join(append(line, args...), " ")))
		},
	}
}
