package bench

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// TestHelpIsNotIndented checks that no help text has the indentation of the source.
func TestHelpIsNotIndented(t *testing.T) {
	t.Parallel()
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, line := range strings.Split(cmd.Long+"\n"+cmd.Example, "\n") {
			if strings.HasPrefix(line, "\t") {
				t.Errorf("%s: got the line %q in the help, want one without a tab", cmd.CommandPath(), line)
			}
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(Command(loadgen.Env{}))
}
