// Package gitload measures Git servers with smart HTTP: bulk fetches, ref look-ups, and small requests beside
// clones. It also has peers to compare with: a static file server, and git http-backend.
package gitload

import (
	"github.com/spf13/cobra"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// Commands returns the commands of this package, including the hidden ones that run as child processes.
func Commands(env loadgen.Env) []*cobra.Command {
	return []*cobra.Command{
		FetchCommand(env), RefsCommand(env), MakeRefsCommand(env), NeighbourCommand(env), LimitCommand(env),
		BackendCommand(env), loadCommand(env),
	}
}
