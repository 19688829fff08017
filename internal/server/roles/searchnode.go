package roles

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/lookup"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/watch"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/search"
)

// searchNode is a search.Source over the node in this process.
type searchNode struct {
	node *storage.Node
	cold *admit.Lane // for git grep
}

var _ search.Source = searchNode{}

func (s searchNode) Repositories(ctx context.Context, each func(git.RepoPath) error) error {
	for q := (places.ListQuery{}); ; {
		page, err := s.node.List(ctx, q)
		if err != nil {
			return err
		}
		for _, name := range page.Paths {
			path, err := git.ParseRepoPath(name)
			if err != nil {
				return err
			}
			if err := each(path); err != nil {
				return err
			}
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

func (s searchNode) Heads(ctx context.Context, repository git.RepoPath,
	branches []string) ([]search.Head, git.Version, error) {
	questions := make([]storage.Question, len(branches))
	for i, name := range branches {
		questions[i] = storage.Question{Path: repository, Name: name}
	}
	heads, version := make([]search.Head, len(branches)), git.Version{}
	err := s.node.ResolveMany(ctx, questions, func(i int, r storage.Resolved, err error) {
		heads[i] = headOf(branches[i], r.Ref, err)
		if err == nil {
			version = r.Version
			version.Incarnation += r.Purges // shards from before are removed
		}
	})
	if err == nil && version == (git.Version{}) { // no branch exists, or the repository does not
		_, version, err = s.node.Exists(ctx, repository, "refs/heads/main")
	}
	return heads, version, err
}

// headOf returns the head of a branch from the ref that its name resolved to.
func headOf(branch string, ref refs.Ref, err error) search.Head {
	h := search.Head{Name: branch, Commit: ref.ID, Err: err}
	if !ref.Peeled.IsZero() {
		h.Commit = ref.Peeled
	}
	if ref.Name != "" {
		h.Name = string(ref.Name)
	}
	if ref.Target != "" {
		h.Name = string(ref.Target)
	}
	return h
}

func (s searchNode) Watch(ctx context.Context, repositories []git.RepoPath,
	send func(path git.RepoPath, version git.Version, gone bool) error) error {
	from := make([]watch.From, len(repositories))
	for i, path := range repositories {
		from[i].Path, from[i].Patient = path, true
	}
	return s.node.Watch(ctx, from, func(e watch.Event) error { return send(e.Path, e.Version, e.Gone) })
}

func (s searchNode) Files(ctx context.Context, repository git.RepoPath, commit, base git.ObjectID, limit int64,
	send func(search.File) error) error {
	q := lookup.FilesRequest{Commit: commit, Base: base, Limit: min(limit, lookup.MaxContent)}
	return s.node.Files(ctx, repository, q, func(f *lookup.File) error { return send(search.File(*f)) })
}

func (s searchNode) Behind(ctx context.Context, repository git.RepoPath, old, new git.ObjectID,
	limit int) (int, error) {
	return s.node.Behind(ctx, repository, old, new, limit)
}

func (s searchNode) Grep(ctx context.Context, repository git.RepoPath, commit git.ObjectID, g search.Grep,
	send func(search.Hit) error) error {
	seat, err := s.cold.Enter("")
	if err != nil {
		return err
	}
	defer seat.Leave()
	q := storage.GrepQuery{Commit: commit, Pattern: g.Pattern, Regexp: g.Regexp, IgnoreCase: g.IgnoreCase,
		Limit: min(g.Limit, storage.MaxGrep)}
	_, err = s.node.Grep(ctx, repository, q, func(h *storage.GrepHit) error {
		return send(search.Hit{Path: h.Path, Line: h.Line, Column: h.Column, Text: h.Text})
	})
	return err
}
