package auth

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Reader tells which repositories of many an identity may read; nil: all. Where that cannot be found out, it may not, and whole is false. Of what the
// hook has to be asked about many are asked about together or at the same time (Hook.readable). Neither counts decisions.
func (a *Auth) Reader(ctx context.Context, id Identity) func([]git.RepoPath) (may []bool, whole bool) {
	open := a.o.OpenRead || a.o.OpenUntilKnown && !a.Configured()
	if len(*a.rules.Load()) == 0 && (open || a.o.Hook == nil && !id.Anonymous() && (id.Grant == nil || len(id.Grant.Repositories) == 0)) {
		return nil
	}
	return func(repos []git.RepoPath) ([]bool, bool) { return a.readable(ctx, id, repos) }
}

func (a *Auth) readable(ctx context.Context, id Identity, repos []git.RepoPath) (may []bool, whole bool) {
	may = make([]bool, len(repos))
	stranger := Identity{Address: id.Address}
	var known, anybody []int // whom the hook has to be asked about; of known the anonymous caller's turn comes after them
	for i, repo := range repos {
		path := pathOf(repo)
		mine, all := no, a.anonymous(stranger, path)
		if !id.Anonymous() {
			mine = a.known(id, path, Read)
		}
		switch {
		case mine == yes || all == yes:
			may[i] = true
		case mine == asks:
			known = append(known, i)
		case all == asks:
			anybody = append(anybody, i)
		}
	}
	whole = a.ask(ctx, id, repos, known, may)
	for _, i := range known {
		if !may[i] && a.anonymous(stranger, pathOf(repos[i])) == asks {
			anybody = append(anybody, i)
		}
	}
	return may, a.ask(ctx, stranger, repos, anybody, may) && whole
}

// ask asks the hook about some repositories of a list.
func (a *Auth) ask(ctx context.Context, id Identity, repos []git.RepoPath, which []int, may []bool) (whole bool) {
	if len(which) == 0 {
		return true
	}
	some := make([]git.RepoPath, len(which))
	for n, i := range which {
		some[n] = repos[i]
	}
	allowed, whole := a.o.Hook.readable(ctx, id, some)
	for n, i := range which {
		may[i] = allowed[n]
	}
	return whole
}
