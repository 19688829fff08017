package uploadpack

import (
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
)

// A client that names known and unknown commits in turn does not have history walked for each of them without end.
func TestChecksAreBounded(t *testing.T) {
	t.Parallel()
	const budget = 10_000
	g := gittest.Random(t, 3, gittest.Shape{Commits: 1000})
	orphan := g.Commit("reaches nothing")
	r := openRepo(t, g.Dir)
	c := &conversation{
		fetch: &fetch{Server: New(keySource{}, Options{}), repo: r, outcome: &node.Outcome{},
			reserve: newRecorder().ReserveMemory, session: olderSessions[0]},
		needs:   &protocol.Needs{Acks: protocol.MultiAckDetailed},
		lookups: r.Objects.Lookups(),
		reach:   []git.ObjectID{orphan}, known: make(map[git.ObjectID]struct{}), implied: graph.Commits{},
		budget: budget,
	}
	unknown := git.MustParseObjectID(strings.Repeat("1", 40))
	exact := 0 // number of common commits with a check each time
	for text := range strings.FieldsSeq(g.Git("rev-list", "--all")) {
		for _, id := range []git.ObjectID{git.MustParseObjectID(text), unknown, unknown} {
			if err := c.have(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		if c.budget > 0 && c.checked == len(c.common) {
			exact++
		}
	}
	// A check reads a few commits for each of the haves. Past the budget there are as many as the haves double, four
	// or so.
	if n, work := len(c.common), budget-c.budget; n < 900 || exact < 50 || work < budget || work > 2*budget ||
		c.enough {
		t.Errorf("%d common commits, %d of them looked at one by one, %d commits visited, enough %v", n, exact, work,
			c.enough)
	}
	// The next check finds it.
	c.reach = []git.ObjectID{c.common[0]}
	c.checked /= 3
	if enough, err := c.suffices(t.Context()); err != nil || !enough {
		t.Errorf("the wants reach a common commit: %v, %v", enough, err)
	}
}
