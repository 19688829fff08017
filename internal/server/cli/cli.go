// Package cli has what the command lines of both programs share: exit codes, printed errors, and suggestions for
// mistyped commands and flags.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1 // the command began and failed
	ExitUsage  = 2 // the command line or the configuration is wrong; nothing was begun
)

// usageError marks a mistake of the caller.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usage marks err as a mistake in the command line or the configuration: the program exits with ExitUsage. A nil err
// stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// Run executes the command of root that args name until it ends or ctx does, prints its error to stderr, and returns
// the exit code.
func Run(ctx context.Context, root *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return Usage(suggestFlag(cmd, err)) })
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = func(_ *cobra.Command, args []string) error { return knownCommand(root, args) }
	}
	markArgumentErrors(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	text := err.Error()
	_, isUsage := errors.AsType[usageError](err)
	_, isUnknownFlag := errors.AsType[*pflag.NotExistError](err) // the flags behind it were not read
	if isUsage && !isUnknownFlag && !strings.Contains(text, "did you mean") {
		if meant := suggestLine(cmd); meant != "" {
			text += fmt.Sprintf("\ndid you mean %q?", meant)
		}
	}
	for line := range strings.Lines(text) {
		fmt.Fprintf(stderr, "%s: %s\n", root.Name(), strings.TrimSuffix(line, "\n"))
	}
	if !isUsage {
		return ExitFailed
	}
	if !cmd.Hidden {
		fmt.Fprintf(stderr, "Run \"%s --help\" for examples.\n", cmd.CommandPath())
	}
	return ExitUsage
}

// knownCommand returns an error if args do not name a command.
func knownCommand(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil || len(rest) == 0 {
		return err
	}
	return unknownCommand(cmd, rest[0])
}

// markArgumentErrors makes the argument errors of cmd and all its subcommands usage errors, and lets them suggest
// subcommands.
func markArgumentErrors(cmd *cobra.Command) {
	cmd.SuggestionsMinimumDistance = 2
	if validate := cmd.Args; validate != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error { return Usage(validate(cmd, args)) }
	}
	for _, sub := range cmd.Commands() {
		markArgumentErrors(sub)
	}
}

// NoArgs accepts no arguments. For a command with subcommands the error names those that resemble a mistyped one.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasAvailableSubCommands() {
		return fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
	}
	return unknownCommand(cmd, args[0])
}

// ExactArgs accepts n arguments, which the error describes as what.
func ExactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return fmt.Errorf("%s takes %s, got %s", cmd.CommandPath(), what, english.Plural(len(args), "argument", ""))
		}
		return nil
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	msg := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), name)
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		msg += fmt.Sprintf("; did you mean %q?", near[0])
	}
	return errors.New(msg)
}

// suggestFlag adds the most similar flag of the command to the error about an unknown flag. The annotations of a
// command are its flags that were removed, with what to do instead.
func suggestFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	name := unknown.GetSpecifiedName()
	if group := unknown.GetSpecifiedShortnames(); group != "" { // "-root"
		name = group
	}
	if remedy, ok := cmd.Annotations[name]; ok {
		return fmt.Errorf("--%s was removed: %s", name, remedy)
	}
	nearest, best := "", len(name)/2+1
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if d := EditDistance(name, f.Name); !f.Hidden && d < best {
			nearest, best = f.Name, d
		}
	})
	if nearest == "" {
		return err
	}
	return fmt.Errorf("%w; did you mean --%s?", err, nearest)
}

// suggestLine returns the command line that was perhaps meant: with a flag in front of an argument that looks like the
// flag's value. It returns "" if no argument does.
func suggestLine(cmd *cobra.Command) string {
	parts, found := []string{cmd.CommandPath()}, false
	var behind []string
	for _, arg := range cmd.Flags().Args() {
		if flag := flagFor(cmd, arg); flag != "" && !found {
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

// flagFor returns the flag of a command that is not set and whose value arg looks like, or "".
func flagFor(cmd *cobra.Command, arg string) string {
	info, err := os.Stat(arg)
	isDir := err == nil && info.IsDir()
	_, _, addressErr := net.SplitHostPort(arg)
	name, address, isNode := strings.Cut(arg, "=")
	for _, f := range []struct {
		name    string
		matches bool
	}{
		{"config", strings.HasSuffix(arg, ".toml")},
		{"node", isNode && name != "" && strings.Contains(address, ":")},
		{"http", addressErr == nil},
		{"ops", addressErr == nil},
		{"root", isDir || filepath.IsAbs(arg)},
	} {
		if flag := cmd.Flags().Lookup(f.name); f.matches && flag != nil && !flag.Changed {
			return f.name
		}
	}
	return ""
}

// EditDistance counts the insertions, deletions and replacements of bytes that turn a into b.
func EditDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j]+1, row[j+1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// Printable replaces control characters in text, which could move the cursor of a terminal, with question marks.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}
