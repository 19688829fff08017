package auth

import (
	"context"
	"crypto/sha256"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
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
// Those that cannot be read are named instead.
func (a *Auth) Mentions(from, to git.RepoPath) (list []string) {
	if a.o.Access != nil {
		_, err := a.o.Access.content.table(context.Background(), true)
		if err == nil {
			err = a.refresh(context.Background())
		}
		if err != nil {
			list = append(list, "perhaps stored rules and tokens, which cannot be read: "+fault.Message(err))
		}
	}
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
func (t *Tokens) mentions(from, to git.RepoPath) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reload()
	return tokensNaming(t.byHash, from, to)
}

// mentions implements Auth.Mentions, which has read the log.
func (t *sharedTokens) mentions(from, to git.RepoPath) []string {
	content, head, err := t.get(context.Background(), false)
	if err != nil {
		return nil
	}
	byHash, _ := t.index(content, head)
	return tokensNaming(byHash, from, to)
}

func tokensNaming(byHash map[[sha256.Size]byte]*token, from, to git.RepoPath) (list []string) {
	for _, one := range byHash {
		if one.id.Grant != nil && Names(one.id.Grant.Repositories, from, to) {
			list = append(list, "token "+one.id.Name+" ("+one.id.Credential+")")
		}
	}
	slices.Sort(list)
	return list
}
