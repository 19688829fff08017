package app

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

func TestMain(m *testing.M) {
	benchtest.Main(m, func(env loadgen.Env) []*cobra.Command {
		return []*cobra.Command{Command(env)}
	})
}
