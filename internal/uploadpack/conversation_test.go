package uploadpack

import (
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/gittest"
)

// A client that names known and unknown commits in turn does not have history walked for each of them.
func TestChecksAreBounded(t *testing.T) {
	t.Parallel()
	g := gittest.Random(t, 3, gittest.Shape{Commits: 1000})
	orphan := g.Commit("reaches nothing")
	r := openRepo(t, g.Dir)
	c := &conversation{
		fetch: &fetch{Server: New(keySource{}, Options{}), repo: r, outcome: &protocol.Outcome{}},
		needs: &protocol.Needs{Acks: protocol.MultiAckDetailed}, session: olderSessions[0], lookups: r.Objects.Lookups(),
		reach: []git.ObjectID{orphan}, known: make(map[git.ObjectID]struct{}), implied: graph.Commits{},
	}
	unknown := git.MustParseObjectID(strings.Repeat("1", 40))
	for text := range strings.FieldsSeq(g.Git("rev-list", "--all")) {
		for _, id := range []git.ObjectID{git.MustParseObjectID(text), unknown, unknown} {
			if err := c.have(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(c.common); n < 900 || c.checks > maxChecks+4 || c.enough {
		t.Errorf("%d common commits, looked at %d times, enough %v", n, c.checks, c.enough)
	}
	// It is told as soon as it is looked at again.
	c.reach = []git.ObjectID{c.common[0]}
	c.checked /= 3
	if enough, err := c.suffices(t.Context()); err != nil || !enough {
		t.Errorf("the wants reach a common commit: %v, %v", enough, err)
	}
}
