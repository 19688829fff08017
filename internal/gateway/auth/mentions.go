package auth

import (
	"slices"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Names reports whether patterns name a repository by its path before it was renamed, and not by the new one.
func Names(patterns []Pattern, from, to git.RepoPath) bool {
	covers := func(path git.RepoPath) bool {
		return slices.ContainsFunc(patterns, func(p Pattern) bool { return p.Covers(path) })
	}
	return covers(from) && !covers(to)
}

// Mentions lists the rules and tokens that name a repository by its path before it was renamed, and not by the new one.
func (a *Auth) Mentions(from, to git.RepoPath) (list []string) {
	for _, r := range *a.rules.Load() {
		if Names(r.repositories, from, to) {
			list = append(list, r.name)
		}
	}
	for _, x := range a.o.Authenticators {
		if t, ok := x.(interface {
			mentions(from, to git.RepoPath) []string
		}); ok {
			list = append(list, t.mentions(from, to)...)
		}
	}
	return list
}

// mentions implements Auth.Mentions.
func (t *Tokens) mentions(from, to git.RepoPath) (list []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reload()
	for _, one := range t.byHash {
		if one.id.Grant != nil && Names(one.id.Grant.Repositories, from, to) {
			list = append(list, "token "+one.id.Name+" ("+one.id.Credential+")")
		}
	}
	slices.Sort(list)
	return list
}
