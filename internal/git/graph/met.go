package graph

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
)

// metSeen is Met's mark.
const metSeen uint8 = 1 << 0

// Met returns the grafts that a walk from these commits meets, including these commits. The other grafts do not change
// reachability. It ends when all grafts are met. If it visits more than limit commits, it returns all grafts.
func (g *Graph) Met(ctx context.Context, starts []git.ObjectID, shallow Commits, limit int) (Commits, error) {
	met, exceeded := Commits{}, false
	if len(shallow) == 0 {
		return met, nil
	}
	err := g.run(ctx, shallow, func(w *walk) error {
		clear(met)
		exceeded = false
		nodes, err := w.peelCommits(starts, true)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			w.mark(n, metSeen)
		}
		visited := 0
		// by levels, because the commits of a boundary often have the same depth
		return w.visitLevels(nodes, metSeen, func(n uint32, _ int) bool {
			visited++
			exceeded = visited > limit && len(met) < len(shallow)
			switch {
			case exceeded || len(met) == len(shallow):
				return false // visit the queued commits without their parents
			case w.has(n, grafted):
				met[w.id(n)] = struct{}{}
				return false
			}
			return true
		})
	})
	if exceeded {
		return shallow, err
	}
	return met, err
}
