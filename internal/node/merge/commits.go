package merge

import (
	"bufio"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/process"
)

// commitsToReplay returns the commits of the source in the order in which they are replayed.
func (c *change) commitsToReplay() (ids []git.ObjectID, err error) {
	switch {
	case c.Method == Rebase:
		ids, err = c.commitsToRebase()
	case c.Source.After.IsZero():
		return []git.ObjectID{c.Source.Commit}, nil
	default:
		if ids, err = c.log(MaxCommits + 1); c.Method == CherryPick {
			slices.Reverse(ids)
		}
	}
	if err == nil && len(ids) > MaxCommits {
		err = fault.InField("source", fault.New(fault.Invalid, "it has more than %d commits to replay", MaxCommits))
	}
	return ids, err
}

// commitsToRebase runs git rev-list, which compares patches. As in git rebase, merges are left out, and commits whose
// patch is the same as that of a commit of the target, unless they have no changes. It returns at most one commit more
// than MaxCommits.
func (c *change) commitsToRebase() (ids []git.ObjectID, err error) {
	if found, _, err := c.view.relation(c.ctx, c.pair()); err != nil || found.UpToDate {
		return nil, err
	}
	p, err := c.runner.Start(c.ctx, process.Command{
		Class: Class, Subcommand: "rev-list", Repository: c.view.repo.Common, Env: c.space.Env(c.view.repo),
		Args: []string{"rev-list", "--topo-order", "--reverse", "--no-merges", "--cherry-mark", "--right-only",
			c.Head.String() + "..." + c.Source.Commit.String(), "--"},
	})
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(p.Stdout())
	for err == nil && len(ids) <= MaxCommits && lines.Scan() {
		var id git.ObjectID
		if text := lines.Text(); text != "" {
			id, err = git.ParseObjectID(text[1:])
			if isSame := text[0] == '='; err == nil && isSame {
				if isSame, err = c.hasChanges(id); isSame {
					continue
				}
			}
			ids = append(ids, id)
		}
	}
	if len(ids) > MaxCommits || err != nil {
		p.Kill()
	}
	if _, ended := p.Wait(); err == nil && len(ids) <= MaxCommits {
		err = ended
	}
	return ids, err
}

// hasChanges reports whether the tree of a commit differs from that of its parent.
func (c *change) hasChanges(id git.ObjectID) (bool, error) {
	commit, _, err := c.view.commit(c.ctx, id)
	if err != nil || len(commit.Parents) == 0 {
		return commit.Tree != emptyTree(c.view.repo.Format), err
	}
	parent, _, err := c.view.commit(c.ctx, commit.Parents[0])
	return parent.Tree != commit.Tree, err
}
