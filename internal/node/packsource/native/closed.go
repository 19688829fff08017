package native

import (
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// maxOldWants is the maximum number of wants of an earlier pack that are not wants of the new pack.
const maxOldWants = 10_000

// useClosed chooses all objects of an earlier pack whose wants the new pack's wants reach. It reports whether there is
// one. The walks of history and trees end at its objects.
func (s *selection) useClosed() (bool, error) {
	if len(s.spec.Haves)+len(s.spec.Shallow) > 0 || !s.filter.ignoresDepth() || len(s.view.sources) == 0 {
		return false, nil
	}
	e := s.view.sources[0].earlier // the only one of a whole history
	if e == nil || !e.closed {
		return false, nil
	}
	ok, err := s.reachesAll(e)
	if ok {
		s.chosen.addAll(0)
		s.walked.addAll(0)
	}
	return ok, err
}

// reachesAll reports whether the pack has all that an earlier pack has.
func (s *selection) reachesAll(e *earlier) (bool, error) {
	for _, id := range e.tags { // if the pack has what the wants reach, it has their targets
		_, ok := slices.BinarySearchFunc(s.spec.Tags, id, func(t packsource.Tag, id git.ObjectID) int {
			return t.ID.Compare(id)
		})
		if _, wanted := slices.BinarySearchFunc(s.spec.Wants, id, git.ObjectID.Compare); !ok && !wanted {
			return false, s.step()
		}
	}
	var commits []git.ObjectID
	for _, id := range e.wants {
		if err := s.step(); err != nil {
			return false, err
		}
		if _, ok := slices.BinarySearchFunc(s.spec.Wants, id, git.ObjectID.Compare); ok {
			continue
		}
		if commits = append(commits, id); len(commits) > maxOldWants {
			return false, nil
		}
	}
	for _, id := range commits {
		typ, _, err := s.store.Header(id)
		if err != nil || typ != git.Commit { // after a forced push it may be gone
			return false, ignoreMissing(err)
		}
	}
	if len(commits) == 0 {
		return true, nil
	}
	r, err := s.graph.Between(s.ctx, commits, s.spec.Wants, graph.RangeOptions{Tick: s.graphTick})
	return err == nil && r.Commits.Len() == 0, ignoreMissing(err)
}

func ignoreMissing(err error) error {
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Corrupt) {
		return nil
	}
	return err
}

// ignoresDepth reports whether the filter omits only blobs, wherever they are.
func (f *filter) ignoresDepth() bool { return f.spec == "" || strings.HasPrefix(f.spec, "blob:") }
