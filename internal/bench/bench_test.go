package bench

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/server/cli"
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

// TestRemoved runs former commands and flags.
func TestRemoved(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"lab sched --load 0.4":      "make bench-sched",
		"storm http://127.0.0.1:1/": "neighbour URL --cold",
		"cold --html x.html demo":   "--html was removed: ",
		"limit FILE --relay":        "--relay was removed: ",
		"fetch --nothing":           "unknown flag: --nothing",
	} {
		var out, errs bytes.Buffer
		code := Main(t.Context(), loadgen.Env{Stdout: &out, Stderr: &errs}, strings.Fields(line), strings.NewReader(""))
		if code != cli.ExitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("packhorse-bench %s: got exit %d, %q, want exit %d and %q", line, code, errs.String(), cli.ExitUsage, want)
		}
	}
}
