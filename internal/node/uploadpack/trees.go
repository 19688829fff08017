package uploadpack

import (
	"cmp"
	"context"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/graph"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

// Limits of the search for a tree or blob below the refs. A partial clone mostly needs objects of its checkout, which
// are found in the first trees.
const (
	searchCommits = 20_000
	searchTrees   = 200_000
)

// maxTagDepth is the maximum length of a chain of tags.
const maxTagDepth = 32

// checkInsideTrees returns an error if a wanted tree, blob or tag is not part of the history of the tips. It searches
// the trees of HEAD and of the tips first and then those of the history, the newest first, up to the limits above. A
// search can use a CPU for seconds, so the number of concurrent searches is limited and others wait.
func (f *fetch) checkInsideTrees(ctx context.Context, tips, wants []git.ObjectID) error {
	select {
	case f.searches <- struct{}{}:
		defer func() { <-f.searches }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s := &treeSearch{fetch: f, left: graph.NewCommits(wants...), seen: make(map[git.ObjectID]struct{})}
	if head := f.snapshot.Head(); !head.ID.IsZero() {
		tips = slices.Insert(slices.Clone(tips), 0, head.ID)
	}
	for _, tip := range tips {
		if len(s.left) == 0 {
			return nil
		}
		if err := s.tip(ctx, tip); err != nil {
			return err
		}
	}
	if len(s.left) > 0 {
		if err := s.history(ctx, tips); err != nil {
			return err
		}
	}
	for _, id := range wants {
		if _, left := s.left[id]; left {
			return errForbiddenWant(id)
		}
	}
	return nil
}

// treeSearch is a search for objects in trees.
type treeSearch struct {
	*fetch
	left map[git.ObjectID]struct{} // wanted and not found yet
	seen map[git.ObjectID]struct{} // visited trees
}

// tip searches the object that a ref points to, following tags, and its tree.
func (s *treeSearch) tip(ctx context.Context, id git.ObjectID) error {
	for range maxTagDepth {
		delete(s.left, id)
		typ, data, err := s.repo.Objects.Read(id, 0)
		if err != nil {
			return nil // a broken ref, or a blob too large to read: nothing is below it
		}
		switch typ {
		case git.Commit:
			return s.commit(ctx, id)
		case git.Tree:
			return s.tree(ctx, id)
		case git.Tag:
			if id, _, err = pack.ParseTag(data, s.repo.Format); err != nil {
				return nil
			}
		default:
			return nil
		}
	}
	return nil
}

// history searches the trees of the commits behind the tips.
func (s *treeSearch) history(ctx context.Context, tips []git.ObjectID) error {
	commits, more, err := s.repo.Graph.Missing(ctx, tips, nil, s.serverShallow, searchCommits)
	if err != nil {
		return err
	}
	type dated struct {
		id   git.ObjectID
		date int64
	}
	list := make([]dated, 0, len(commits))
	for id := range commits {
		commit, err := s.repo.Graph.Commit(id)
		if err != nil {
			return err
		}
		list = append(list, dated{id, commit.Date})
	}
	slices.SortFunc(list, func(a, b dated) int { return cmp.Or(cmp.Compare(b.date, a.date), a.id.Compare(b.id)) })
	for _, c := range list {
		if err := s.commit(ctx, c.id); err != nil || len(s.left) == 0 {
			return err
		}
	}
	if more {
		return notFoundWithin(searchCommits, "commits")
	}
	return nil
}

func notFoundWithin(n int, what string) error {
	return fault.New(fault.Denied,
		"the wanted objects were not found within %d %s below the refs; only wants = \"any\" allows deeper ones",
		n, what)
}

func (s *treeSearch) commit(ctx context.Context, id git.ObjectID) error {
	root, err := s.rootTree(id)
	if err != nil {
		return err
	}
	return s.tree(ctx, root)
}

func (s *treeSearch) tree(ctx context.Context, root git.ObjectID) error {
	for todo := []git.ObjectID{root}; len(todo) > 0 && len(s.left) > 0; {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if _, seen := s.seen[id]; seen {
			continue
		}
		if len(s.seen) >= searchTrees {
			return notFoundWithin(searchTrees, "trees")
		}
		s.seen[id] = struct{}{}
		if err := ctx.Err(); err != nil {
			return err
		}
		delete(s.left, id)
		typ, data, err := s.repo.Objects.Read(id, 0)
		if fault.Is(err, fault.NotFound) {
			continue // the repository is a partial clone
		}
		if err != nil || typ != git.Tree {
			return err
		}
		err = pack.Entries(data, s.repo.Format, func(mode uint32, _ []byte, id git.ObjectID) error {
			switch mode {
			case pack.ModeTree:
				todo = append(todo, id)
			case pack.ModeGitlink: // a commit of another repository
			default:
				delete(s.left, id)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// rootTree returns the tree of a commit.
func (f *fetch) rootTree(id git.ObjectID) (git.ObjectID, error) {
	_, data, err := f.repo.Objects.Read(id, 0)
	if err != nil {
		return git.ObjectID{}, err
	}
	commit, err := pack.ParseCommit(data, f.repo.Format)
	return commit.Tree, err
}
