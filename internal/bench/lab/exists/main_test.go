package exists

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

func TestMain(m *testing.M) {
	benchtest.Main(m, func(env loadgen.Env) []*cobra.Command {
		return []*cobra.Command{Command(env), gitload.LoadCommand(env), loadgen.StandstillCommand(env)}
	})
}
