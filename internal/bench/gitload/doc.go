// Package gitload measures Git servers that speak smart HTTP, Packhorse or another: bulk fetches, ref look-ups, small
// requests beside clones, and storms of cold clones. It also has the peers to compare with: a static file server, and
// git http-backend.
package gitload

import (
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// Commands returns the commands of this package, with the hidden ones that they start as processes of their own.
func Commands(env loadgen.Env) []*cobra.Command {
	return []*cobra.Command{
		FetchCommand(env), RefsCommand(env), MakeRefsCommand(env), NeighbourCommand(env), StormCommand(env),
		LimitCommand(env),
		BackendCommand(env),
		LoadCommand(env), RelayCommand(env), EchoCommand(env), loadgen.StandstillCommand(env),
	}
}
