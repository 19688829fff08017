// Package search searches the code in the repositories of a server. It keeps an index of each, runs child processes
// that search them, and reports the freshness of every result.
package search

import (
	"context"
	"log/slog"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

// Request is one search.
type Request struct {
	Query   *query.Query
	Format  schema.Format // of the results
	May     Readable      // nil means that the caller may read all repositories
	Limit   int           // number of results unless the query sets it; zero means the maximum
	Timeout time.Duration // time limit unless the query sets it; zero means the maximum
}

// Readable reports for each of many repositories whether a caller may read it. This may need a request to another
// process. If whole is false, access to some could not be determined in time, and they are reported as unreadable.
type Readable = func(repositories []git.RepoPath) (may []bool, whole bool)

// Each returns a Readable for a function that decides about one repository at a time.
func Each(may func(git.RepoPath) bool) Readable {
	return func(repositories []git.RepoPath) ([]bool, bool) {
		list := make([]bool, len(repositories))
		for i, path := range repositories {
			list[i] = may(path)
		}
		return list, true
	}
}

// Batch has results. Its memory is reused when Sink.Matches returns.
type Batch struct {
	// JSON has the results in the request's format as elements of an array, separated by commas.
	JSON    []byte
	Results int // how many these are
	Matches int // in them
}

// Sink takes what a search finds, one call at a time. An error ends the search.
type Sink interface {
	Matches(Batch) error
	Progress(Summary) error
}

// Summary is what became of a search so far.
type Summary struct {
	Done     bool
	Results  int // files, or repositories
	Matches  int
	Limited  bool // what was searched has, or may have, more results than were given
	TimedOut bool // or it could not be found out in time which repositories the caller may read
	Elapsed  time.Duration
	Index    time.Duration // of it, the time of the process that searches itself
	Link     time.Duration // and of asking that process and having its results, without the time that Sink took
	// that were searched and have results, in the order of their paths; at the end of a search only
	Repositories []Freshness
	Searched     int      // repositories
	Unindexed    []string // repositories that were searched without an index
	// repositories that were not searched: without an index, and more than may be searched without
	Missing []string
	Notices []Notice // what the query asked for that was not searched; at the end of a search only
}

// Notice says what of a query was not searched, and why.
type Notice struct {
	Reason  string `json:"reason"` // "branch", "filter" or "files"
	Message string `json:"message"`
}

// Freshness says what of a repository was searched.
type Freshness struct {
	Repository string `json:"repository"` // its wire.Name
	Indexed    string `json:"indexed"`    // commit; empty: it was searched without an index, at Current
	// commit that the branch is at; empty: it has just changed, and could not be found out in time
	Current string `json:"current"`
	Lag     int    `json:"lag"`             // commits that Current has and Indexed has not; -1: it could not be counted
	Branch  string `json:"branch"`          // short name
	Error   string `json:"error,omitempty"` // why it is not indexed
}

// Status is what an index has, and what is left to do.
type Status struct {
	Searching bool   `json:"searching"`       // the process that searches runs
	Error     string `json:"error,omitempty"` // why there is no index, or no process
	// every repository is known, and has an index if it has anything to index
	Complete     bool           `json:"complete"`
	Repositories int            `json:"repositories"`
	Fresh        int            `json:"fresh"`   // have an index that has all
	Behind       int            `json:"behind"`  // have one, and have changed
	Waiting      int            `json:"waiting"` // have none yet
	Empty        int            `json:"empty"`   // have nothing to index
	Failed       int            `json:"failed"`  // of Behind and Waiting: the last try failed
	Shards       int            `json:"shards"`  // files of the index
	Deaths       int            `json:"deaths"`  // of processes that search
	Jobs         []Job          `json:"jobs"`    // that run
	Failures     []IndexFailure `json:"failures"`
}

// Job is one that indexes.
type Job struct {
	Repository string  `json:"repository"`
	Kind       string  `json:"kind"` // full, delta, or anew, of an index that has become slow
	Seconds    float64 `json:"seconds"`
	Files      int64   `json:"files"` // given to it so far
}

// IndexFailure says why a repository is not indexed.
type IndexFailure struct {
	Repository string `json:"repository"`
	Error      string `json:"error"`
}

// Searcher searches. Safe for concurrent use.
type Searcher interface {
	// Search gives results to sink until there are no more, the limit or the time is reached, or ctx ends; what it was,
	// the summary says. Errors: Invalid for what cannot be searched for, Unavailable while no search process runs,
	// Exhausted.
	Search(ctx context.Context, request Request, sink Sink) (Summary, error)
}

// Visitor is who searches, as pages and APIs see them. Not safe for concurrent use.
type Visitor interface {
	Name() string     // empty: nobody knows who it is
	Reader() Readable // nil: all
	// Note adds to the request's line in the log.
	Note(attrs ...slog.Attr)
	// Failed notes an error that the answer, whole as it is, tells the client. The request counts as failed.
	Failed(err error)
}

// Source is where repositories and their content come from: the node in this process, or nodes elsewhere. Safe for
// concurrent use.
type Source interface {
	// Repositories gives the paths of all repositories; with an error, of those that could be found out.
	Repositories(ctx context.Context, each func(git.RepoPath) error) error
	// Heads tells where branches are, by their full names or HEAD; NotFound in its place for one that does not exist.
	Heads(ctx context.Context, repository git.RepoPath, branches []string) ([]Head, git.Version, error)
	// Watch tells of each change of a repository's refs until ctx ends or send fails. It begins with one call for each
	// repository. gone: there is no such repository (any more).
	Watch(ctx context.Context, repositories []git.RepoPath,
		send func(path git.RepoPath, version git.Version, gone bool) error) error
	// Files gives the files of a commit in the order of their paths: with a base, another commit, only what differs
	// between them. Content is cut off where it is longer than limit bytes: such a file has none.
	Files(ctx context.Context, repository git.RepoPath, commit, base git.ObjectID, limit int64,
		send func(File) error) error
	// Behind counts the commits that new reaches and old does not, up to limit.
	Behind(ctx context.Context, repository git.RepoPath, old, new git.ObjectID, limit int) (int, error)
	// Grep searches a commit's files without an index, in the order of their paths.
	Grep(ctx context.Context, repository git.RepoPath, commit git.ObjectID, g Grep, send func(Hit) error) error
}

// Head is where a branch is.
type Head struct {
	Name   string // full name of the ref
	Commit git.ObjectID
	Err    error // NotFound
}

// File is one file of a commit.
type File struct {
	Path    []byte
	Mode    uint32 // as in the tree
	ID      git.ObjectID
	Size    int64
	Content []byte // nil: the file is too large, no blob, or gone
	Gone    bool   // with a base: the commit does not have it
}

// Grep is what git grep looks for.
type Grep struct {
	Pattern    string
	Regexp     bool // POSIX extended; else a fixed string
	IgnoreCase bool
	Limit      int // lines
}

// Hit is a line that git grep found.
type Hit struct {
	Path   []byte
	Line   int // from 1
	Column int // from 0, in bytes, of the first match
	Text   []byte
}
