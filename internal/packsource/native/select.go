package native

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/packsource"
)

// selection chooses the objects of a pack. It is used once, by one goroutine, while the view's indexes are mapped.
type selection struct {
	ctx    context.Context
	spec   *packsource.Spec
	store  *pack.Store
	graph  *graph.Graph
	view   *view
	tick   func(steps int) error // called about every 1,000 steps; its error ends the selection
	budget int64                 // maximum memory in bytes; 0: no limit
}

// run returns the objects of the pack, and objects that the client surely has. Deltas of a thin pack may refer to them.
// known is nil unless the Spec is thin. The error is a *fallback if git is to make the pack.
func (s *selection) run() (chosen, known *objectSet, err error) {
	return nil, nil, &fallback{reason: "unsupported"}
}
