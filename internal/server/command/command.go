// Package command is the command line of packhorse, with one file for each command.
//
// The program is a function of its environment. Main gets the arguments, the streams and the variables, and returns the
// exit code, so tests start what users start. Commands that run a server pass its configuration to package roles. Other
// commands send requests to a running server over the admin socket in its state directory (target, adminClient,
// nodeFinder), or read files themselves.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/git/reaper"
	"github.com/packhorse-git/packhorse/internal/server/cli"
	"github.com/packhorse-git/packhorse/internal/server/roles"
	"github.com/packhorse-git/packhorse/internal/server/statedir"
)

// Env is the environment of the program.
type Env struct {
	Args     []string // without the program's name
	Stdin    io.Reader
	Stdout   io.Writer
	Stderr   io.Writer
	Environ  []string // "NAME=value"
	Version  string   // of the program; empty means cli.Version
	Revision string   // commit of the source; empty means that of the build info
	// Program is the file of this program, for its search processes and its reaper. Empty means that there are none.
	Program string

	// Hangups delivers the SIGHUPs of the process until stop is called. A server reads its configuration again at each.
	// Other commands do not call it, so the signal has its default effect. Nil means no signals.
	Hangups func() (signals <-chan os.Signal, stop func())
	// Quits does the same for SIGQUIT, at which a server writes a dump.
	Quits func() (signals <-chan os.Signal, stop func())

	// Sockets are listening sockets that the service manager opened for this process, named as in package roles. The
	// server closes them.
	Sockets []*os.File

	// Become switches the process to another user, for commands that root runs on files of the server's user. Nil means
	// that they run as root.
	Become func(statedir.Owner) error
}

// OSEnv returns the environment of the running process.
func OSEnv(version, revision string) Env {
	program, err := os.Executable()
	if err != nil {
		program = ""
	}
	files := roles.InheritedSockets() // before Environ, so that child processes do not inherit them
	return Env{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(),
		Version: version, Revision: revision, Program: program,
		Hangups: hangups, Quits: quits, Sockets: files, Become: statedir.Owner.Become,
	}
}

func hangups() (<-chan os.Signal, func()) { return signals(syscall.SIGHUP) }

func signals(which os.Signal) (<-chan os.Signal, func()) {
	signals := make(chan os.Signal, 1) // further signals are dropped until one is received
	signal.Notify(signals, which)
	return signals, func() { signal.Stop(signals) }
}

func quits() (<-chan os.Signal, func()) { return signals(syscall.SIGQUIT) }

// Getenv returns the value of a variable. The last one counts, as for exec.Cmd.
func (e Env) Getenv(name string) string {
	for i := len(e.Environ) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(e.Environ[i], name+"="); ok {
			return value
		}
	}
	return ""
}

// process returns the part of the environment that a role needs.
func (e Env) process() roles.Process {
	v := versionOf(e)
	return roles.Process{Stderr: e.Stderr, Getenv: e.Getenv, Version: v.Version, Revision: v.Revision, Program: e.Program,
		Hangups: e.Hangups, Quits: e.Quits, Sockets: e.Sockets}
}

// Exit codes and checks of arguments that both command lines share.
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

// Main runs the command in env.Args until it or ctx ends, and returns the exit code.
func Main(ctx context.Context, env Env) int {
	return cli.Run(ctx, Command(env), env.Args, env.Stdin, env.Stdout, env.Stderr)
}

// firstSteps is the output of the program without arguments.
const firstSteps = `Packhorse serves Git repositories to many clients at once.

  packhorse demo                                  try it: a small repository, its pages, a clone, a push
  packhorse serve --root /srv/git                 serve the bare repositories below a directory
  packhorse mirror --origin https://github.com    serve mirrors of the repositories of another Git host

"packhorse --help" lists all commands.
`

// Command returns `packhorse` with its subcommands.
func Command(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "packhorse",
		Short: "Serve Git repositories to many clients at once",
		Long: `Packhorse serves a directory of bare Git repositories over HTTP and SSH. A pack that was made for one client is cached
and copied to every other client with the same request. Many identical clones therefore cost little more than copying a file.`,
		Example: `  packhorse demo                         # a small repository, for a first look
  packhorse serve --root /srv/git        # http://127.0.0.1:8080/<path of the repository>
  packhorse config init packhorse.toml   # a configuration file to start from
  packhorse doctor /srv/git              # problems of the machine and the repositories
  packhorse help serve                   # flags and examples of a command`,
	}
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Servers:", []*cobra.Command{demoCommand(env), serveCommand(env), mirrorCommand(env), gatewayCommand(env),
			storageCommand(env), searchCommand(env)}},
		{"Setup:", []*cobra.Command{configCommand(env), tokenCommand(env), rulesCommand(env), doctorCommand(env),
			estimateCommand(env), backupCommand(env), restoreCommand(env), importCommand()}},
		{"Repositories:", []*cobra.Command{repoCommand(env), storeCommand(env), lfsCommand(env), resolveCommand(env),
			eventsCommand(env), webhookCommand(env), cacheCommand(env)}},
		{"Running servers:", []*cobra.Command{topCommand(env), healthCommand(env), nodesCommand(env), workersCommand(env),
			drainCommand(env), undrainCommand(env), debugCommand(env)}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	group(root, versionCommand(env), reaperCommand(), movedCommand("bench"), movedCommand("compare"))
	// Not cobra's own flag: its text is a template, and with templates the linker keeps all methods of the program.
	version := root.Flags().BoolP("version", "v", false, "version for packhorse")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		text := firstSteps
		if *version {
			text = versionOf(env).line() + "\n"
		}
		_, err := io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
	return root
}

// group completes a command that only has subcommands. Without a subcommand it prints its help.
func group(cmd *cobra.Command, sub ...*cobra.Command) *cobra.Command {
	if cmd.Args == nil {
		cmd.Args = noArgs
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(sub...)
	return cmd
}

// movedCommand names the command of packhorse-bench that replaces a former command.
func movedCommand(name string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              "Moved to packhorse-bench",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			line := []string{"packhorse-bench"}
			if name == "compare" {
				line = append(line, name)
			}
			return usage(fmt.Errorf("packhorse %s moved to another program: run %q", name,
				strings.Join(append(line, args...), " ")))
		},
	}
}

// reaperCommand explains a command that users do not run. A server starts this program with it and a pipe, and package
// reaper then takes over before the command line is parsed.
func reaperCommand() *cobra.Command {
	return &cobra.Command{
		Use: reaper.Name + " LOG-FORMAT", Hidden: true, DisableFlagParsing: true, Args: exactArgs(1, "the log's format"),
		Short: "End the Git commands of a killed server",
		RunE: func(*cobra.Command, []string) error {
			return usage(errors.New("only a server starts the reaper, with a pipe"))
		},
	}
}
