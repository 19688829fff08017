package store

import (
	"context"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/places"
)

// Fork implements places.Places.
func (s *Store) Fork(context.Context, git.RepoPath, git.RepoPath, places.ForkOptions) error {
	return errNoForks
}

// Detach implements places.Places.
func (s *Store) Detach(context.Context, git.RepoPath, places.RunGit) error { return errNoForks }

var errNoForks = fault.New(fault.Precondition, "repositories of a store cannot be forked yet: clone and push instead")
