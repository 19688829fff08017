package graph

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
)

// metSeen is Met's mark.
const metSeen uint8 = 1 << 0

// Met returns the grafts that a walk from these commits meets, the commits themselves included. The other grafts do not
// change reachability. It ends as soon as all are met. If it visits more than limit commits, it returns all grafts.
func (g *Graph) Met(ctx context.Context, starts []git.ObjectID, shallow Commits, limit int) (Commits, error) {
	met, gaveUp := Commits{}, false
	if len(shallow) == 0 {
		return met, nil
	}
	err := g.run(ctx, shallow, func(w *walk) error {
		clear(met)
		level, err := w.peelCommits(starts, true)
		if err != nil {
			return err
		}
		var next []uint32
		// Level by level: a boundary lies as deep everywhere.
		for visited := 0; len(level) > 0; level, next = next, level[:0] {
			for _, n := range level {
				if !w.visit(n, metSeen) {
					continue
				}
				if visited++; visited > limit {
					gaveUp = true
					return nil
				}
				if err := w.step(); err != nil {
					return err
				}
				if w.has(n, grafted) {
					met[w.id(n)] = struct{}{}
					if len(met) == len(shallow) {
						return nil
					}
					continue
				}
				parents, err := w.parents(n)
				if err != nil {
					return err
				}
				next = append(next, parents...)
			}
		}
		return nil
	})
	if gaveUp {
		return shallow, err
	}
	return met, err
}
