package matrix

import (
	"fmt"
	"os"
	"testing"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// TestMain is also the server program that the benchmark starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[2] == "--config" {
		if err := fakeRole(os.Args[1], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	benchtest.Main(m, func(env loadgen.Env) []*cobra.Command {
		return append(gitload.Commands(env), Command(env))
	})
}
