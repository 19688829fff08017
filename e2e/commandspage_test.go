package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	servercommand "github.com/packhorse-git/packhorse/internal/server/command"
)

// TestDocsCommands holds docs/reference/commands.md to the help texts of all commands.
func TestDocsCommands(t *testing.T) {
	const page = "../docs/reference/commands.md"
	var want bytes.Buffer
	want.WriteString(commandsIntroduction)
	for _, root := range []*cobra.Command{servercommand.Command(servercommand.Env{}), bench.Command(loadgen.Env{})} {
		root.CompletionOptions.DisableDefaultCmd = true
		root.SetHelpCommand(&cobra.Command{Hidden: true})
		helpOf(&want, root, 2)
	}
	if *update {
		if err := os.WriteFile(page, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(page); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("docs/reference/commands.md does not have the help texts of the commands (%v); run \"make docs\"", err)
	}
}

// helpOf writes the help of a command and its subcommands with a heading of this level.
func helpOf(to *bytes.Buffer, cmd *cobra.Command, level int) {
	if !cmd.IsAvailableCommand() && cmd.HasParent() {
		return
	}
	fmt.Fprintf(to, "\n%s %s\n\n```text\n", strings.Repeat("#", min(level, 4)), cmd.CommandPath())
	cmd.SetOut(to)
	_ = cmd.Help() // writes to memory
	to.WriteString("```\n")
	for _, sub := range cmd.Commands() {
		helpOf(to, sub, level+1)
	}
}

const commandsIntroduction = `# Commands

<!-- Written by "make docs" from the help texts of the commands. -->

These are the texts that ` + "`--help`" + ` prints. A command exits with 0, with 1 if it failed, and with 2 if the command line
or the configuration is wrong. The [configuration](config.md) has the meaning and the bounds of settings.
`
