// Package roles turns a command line into running parts: configuration, commands, wiring and lifecycle.
//
// The program is a function of its environment: Main gets the arguments, the streams and the variables, and returns the exit
// code, so that tests start the same thing that users do. A role is a short function in a file of its own (serve.go, storage.go,
// gateway.go) that builds the parts bottom up and hands them to the lifecycle (lifecycle.go), which starts and stops them in order.
//
// Configuration belongs here and nowhere else: the packages below take plain options. See Config.
package roles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/packhorse-git/packhorse/internal/bench"
	"github.com/packhorse-git/packhorse/internal/config"
)

// Env is what the program knows of the world.
type Env struct {
	Args    []string // without the program's name
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Environ []string // "NAME=value"
	Version string   // set by the linker; empty: what the build info knows
	Program string   // this program's file, for processes of its own, which search, or end what a killed server leaves; empty: there are none

	// Hangups begins to deliver the process's SIGHUPs until stop is called; nil: there are none. A server reads its configuration again
	// at each; other commands leave the signal its default effect.
	Hangups func() (signals <-chan os.Signal, stop func())
	// Quits is the same for SIGQUIT, at which a server writes a dump, and for SIGUSR1, by which "packhorse debug dump" asks for one. Once stop is called
	// SIGQUIT has its default effect again, and SIGUSR1 none.
	Quits func() (signals <-chan os.Signal, stop func())

	// Sockets are listening sockets that the service manager opened for this process, by the names of sockets.go. Whoever runs a server closes them.
	Sockets []*os.File

	// Become has the process run as another user from now on, for commands that root runs on files of a server's user; nil: they
	// are run as root.
	Become func(owner) error
}

// OSEnv is the environment of the running process.
func OSEnv(version string) Env {
	program, err := os.Executable()
	if err != nil {
		program = ""
	}
	files := inheritedFiles() // before Environ: commands that this process starts have no part in them
	return Env{os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ(), version, program, hangups, quits, files, owner.become}
}

func hangups() (<-chan os.Signal, func()) { return signals(syscall.SIGHUP) }

func signals(which ...os.Signal) (<-chan os.Signal, func()) {
	signals := make(chan os.Signal, len(which)) // one that waits stands for all that come before it is read
	signal.Notify(signals, which...)
	return signals, func() { signal.Stop(signals) }
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

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // it began and failed
	exitUsage  = 2 // the command line or the configuration is wrong; nothing was begun
)

// usageError marks a mistake of the caller.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// Main runs the command that env.Args name until it ends or ctx does, and returns the exit code.
func Main(ctx context.Context, env Env) int {
	root := rootCommand(env)
	root.SetArgs(env.Args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	text := err.Error()
	if _, ok := errors.AsType[usageError](err); ok && !strings.Contains(text, "did you mean") {
		if meant := meantCommand(cmd); meant != "" {
			text += fmt.Sprintf("\ndid you mean %q?", meant)
		}
	}
	for line := range strings.Lines(text) {
		fmt.Fprintf(env.Stderr, "packhorse: %s\n", strings.TrimSuffix(line, "\n"))
	}
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintf(env.Stderr, "Run \"%s --help\" for examples.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}

func rootCommand(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "packhorse",
		Short: "Serve Git repositories to many clients at once",
		Long: `Packhorse serves fetches from a directory of bare repositories. A pack that was made for one client is kept
and copied to every other client that asks for the same, so a fleet of identical clones costs little more
than copying a file.`,
		Example: `  packhorse serve --root /srv/git        # http://127.0.0.1:8080/<path of the repository>
  packhorse config show --root /srv/git  # every setting, and where its value came from
  packhorse help serve`,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       versionOf(env).Version, // for --version
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(flagError(cmd, err)) })
	root.SetVersionTemplate(versionOf(env).line())
	root.AddCommand(serveCommand(env), storageCommand(env), gatewayCommand(env), searchCommand(env), nodesCommand(env), workersCommand(env), drainCommand(env), undrainCommand(env),
		repoCommand(env), cacheCommand(env), resolveCommand(env), topCommand(env), doctorCommand(env), tokenCommand(env), configCommand(env), compareCommand(env), debugCommand(env), versionCommand(env), searchWorkerCommand(env), reaperCommand(),
		bench.Command(bench.Env{Stdout: env.Stdout, Stderr: env.Stderr}))
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = func(_ *cobra.Command, args []string) error { return knownCommand(root, args) }
	}
	wrongArgumentsAreUsage(root)
	return root
}

// knownCommand finds what in args is the name of no command.
func knownCommand(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil || len(rest) == 0 {
		return err
	}
	return noCommand(cmd, rest[0])
}

// wrongArgumentsAreUsage marks what a command says of its arguments, so that the exit code is the same everywhere, and has it
// suggest subcommands.
func wrongArgumentsAreUsage(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = 2
	if validate := cmd.Args; validate != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error { return usage(validate(cmd, args)) }
	}
	for _, sub := range cmd.Commands() {
		wrongArgumentsAreUsage(sub)
	}
}

// noArgs refuses arguments; on a command with subcommands it names the ones that resemble a mistyped one.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasAvailableSubCommands() {
		return fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
	}
	return noCommand(cmd, args[0])
}

func noCommand(cmd *cobra.Command, name string) error {
	msg := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), name)
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		msg += fmt.Sprintf("; did you mean %q?", near[0])
	}
	return errors.New(msg)
}

// flagError adds to the error of an unknown flag the one of the command that it most resembles.
func flagError(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	name := unknown.GetSpecifiedName()
	if group := unknown.GetSpecifiedShortnames(); group != "" { // "-root"
		name = group
	}
	nearest, best := "", len(name)/2+1
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if d := config.EditDistance(name, f.Name); !f.Hidden && d < best {
			nearest, best = f.Name, d
		}
	})
	if nearest == "" {
		return err
	}
	return fmt.Errorf("%w; did you mean --%s?", err, nearest)
}

// meantCommand is the command line that a wrong one was perhaps meant to be: with a flag in front of an argument that looks like the
// flag's value. It is "" if no argument does.
func meantCommand(cmd *cobra.Command) string {
	parts, found := []string{cmd.CommandPath()}, false
	var behind []string
	for _, arg := range cmd.Flags().Args() {
		if flag := flagOf(cmd, arg); flag != "" && !found {
			found = true
			behind = append(behind, "--"+flag, arg)
			continue
		}
		parts = append(parts, arg)
	}
	if !found {
		return ""
	}
	cmd.Flags().Visit(func(f *pflag.Flag) { behind = append(behind, "--"+f.Name+"="+f.Value.String()) })
	return strings.Join(append(parts, behind...), " ")
}

// flagOf is the flag of a command that an argument looks like the value of, and that is not given.
func flagOf(cmd *cobra.Command, arg string) string {
	info, err := os.Stat(arg)
	isDir := err == nil && info.IsDir()
	_, _, errOfAddress := net.SplitHostPort(arg)
	name, address, isNode := strings.Cut(arg, "=")
	for _, f := range []struct {
		name  string
		looks bool
	}{
		{"config", strings.HasSuffix(arg, ".toml")},
		{"node", isNode && name != "" && strings.Contains(address, ":")},
		{"http", errOfAddress == nil},
		{"ops", errOfAddress == nil},
		{"root", isDir || filepath.IsAbs(arg)},
	} {
		if flag := cmd.Flags().Lookup(f.name); f.looks && flag != nil && !flag.Changed {
			return f.name
		}
	}
	return ""
}

func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return fmt.Errorf("%s takes %s, got %d arguments", cmd.CommandPath(), what, len(args))
		}
		return nil
	}
}
