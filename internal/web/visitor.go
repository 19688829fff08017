package web

import (
	"context"
	"log/slog"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Visitor is who asks. Not safe for concurrent use.
type Visitor interface {
	Name() string // empty: nobody knows who it is
	// Reader tells which repositories the visitor may read; nil: all.
	Reader() func(git.RepoPath) bool
	// May fails as a fetch of the repository would: Unauthenticated, NotFound, Unavailable.
	May(ctx context.Context, repository git.RepoPath) error
	// Note adds to the request's line in the log.
	Note(attrs ...slog.Attr)
}
