// Package search searches the code in the repositories of a server. It indexes each repository, runs the worker
// processes (packhorse-search) that index and search, and reports the freshness of every result.
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
	Results int
	Matches int
}

// Sink receives the results of a search, one call at a time. An error ends the search.
type Sink interface {
	Matches(Batch) error
	Progress(Summary) error
}

// Summary describes the progress of a search, or its end.
type Summary struct {
	Done     bool
	Results  int // files, or repositories
	Matches  int
	Limited  bool // there are, or may be, more results
	TimedOut bool // the time ended, or access to some repositories could not be determined in time
	Elapsed  time.Duration
	Index    time.Duration // part of Elapsed: the time of the search worker
	Link     time.Duration // part of Elapsed: the protocol with the worker, without the time of Sink
	// repositories with results, in the order of their paths; set at the end of a search
	Repositories []Freshness
	Searched     int      // number of searched repositories
	Unindexed    []string // repositories that were searched without an index
	Missing      []string // repositories that were not searched, because too many have no index
	Notices      []Notice // parts of the query that were not searched; set at the end of a search
}

// Notice names a part of a query that was not searched, with the reason.
type Notice struct {
	Reason  string `json:"reason"` // "branch", "filter" or "files"
	Message string `json:"message"`
}

// Freshness describes the searched commit of a repository.
type Freshness struct {
	Repository string `json:"repository"`      // its schema.Name
	Indexed    string `json:"indexed"`         // searched commit; empty: Current was searched without an index
	Current    string `json:"current"`         // tip of the branch; empty: it has just changed, and is unknown
	Lag        int    `json:"lag"`             // number of commits in Current that Indexed does not have; -1: unknown
	Branch     string `json:"branch"`          // short name
	Error      string `json:"error,omitempty"` // reason for a missing or old index
}

// Status is the progress of an index. Counts are numbers of repositories, unless stated otherwise.
type Status struct {
	Searching bool   `json:"searching"`       // the search worker runs
	Error     string `json:"error,omitempty"` // reason for a missing index or worker
	// all repositories are known, and all that are neither empty nor too large are indexed
	Complete     bool           `json:"complete"`
	Repositories int            `json:"repositories"`
	Fresh        int            `json:"fresh"`     // with a current index
	Behind       int            `json:"behind"`    // changed since they were indexed
	Waiting      int            `json:"waiting"`   // not indexed yet
	TooLarge     int            `json:"too_large"` // without an index, because they are too large for it
	Empty        int            `json:"empty"`     // without content
	Failed       int            `json:"failed"`    // of Behind, Waiting and TooLarge: the last job failed
	Shards       int            `json:"shards"`    // number of index files
	Deaths       int            `json:"deaths"`    // number of search workers that ended unexpectedly
	Jobs         []Job          `json:"jobs"`      // running jobs
	Failures     []IndexFailure `json:"failures"`
}

// Job is a running indexing job.
type Job struct {
	Repository string  `json:"repository"`
	Kind       string  `json:"kind"` // full, delta, or compact (the rebuild of an index that has become slow)
	Seconds    float64 `json:"seconds"`
	Files      int64   `json:"files"` // number of files sent to it so far
}

// IndexFailure is the error of the last job of a repository.
type IndexFailure struct {
	Repository string `json:"repository"`
	Error      string `json:"error"`
}

// Searcher searches. Safe for concurrent use.
type Searcher interface {
	// Search sends results to sink until all are found, the limit or the timeout is reached, or ctx ends. The summary
	// has the reason. Errors: Invalid for a query that cannot be searched for, Unavailable while no search worker runs,
	// Exhausted.
	Search(ctx context.Context, request Request, sink Sink) (Summary, error)
}

// Visitor is the caller of a search, as pages and APIs see it. Not safe for concurrent use.
type Visitor interface {
	Name() string     // empty: anonymous
	Reader() Readable // nil: all repositories
	// Note adds fields to the request's line in the log.
	Note(attrs ...slog.Attr)
	// Failed records an error that a complete response reports to the client. The request counts as failed.
	Failed(err error)
}

// Source provides repositories and their content: the node in this process, or nodes in others. Safe for concurrent
// use.
type Source interface {
	// Repositories yields the paths of all repositories. After an error, some may be missing.
	Repositories(ctx context.Context, each func(git.RepoPath) error) error
	// Heads returns the tips of branches, which are full names or HEAD. A missing branch has the error NotFound.
	Heads(ctx context.Context, repository git.RepoPath, branches []string) ([]Head, git.Version, error)
	// Watch reports each change of a repository's refs until ctx ends or send fails. It begins with one call for each
	// repository. gone means that the repository does not exist.
	Watch(ctx context.Context, repositories []git.RepoPath,
		send func(path git.RepoPath, version git.Version, gone bool) error) error
	// Files yields the files of a commit in the order of their paths. With a base, another commit, it yields only the
	// differences. Files of more than limit bytes have no content.
	Files(ctx context.Context, repository git.RepoPath, commit, base git.ObjectID, limit int64,
		send func(File) error) error
	// Behind counts the commits that new reaches and old does not, up to limit.
	Behind(ctx context.Context, repository git.RepoPath, old, new git.ObjectID, limit int) (int, error)
	// Grep searches a commit's files without an index, in the order of their paths.
	Grep(ctx context.Context, repository git.RepoPath, commit git.ObjectID, g Grep, send func(Hit) error) error
}

// Head is the tip of a branch.
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
	Content []byte // nil for a file that is too large, not a blob, or gone
	Gone    bool   // the base has it, and the commit does not
}

// Grep is a search by git grep.
type Grep struct {
	Pattern    string
	Regexp     bool // POSIX extended; else a fixed string
	IgnoreCase bool
	Limit      int // maximum number of lines
}

// Hit is a line that git grep found.
type Hit struct {
	Path   []byte
	Line   int // from 1
	Column int // from 0, in bytes, of the first match
	Text   []byte
}
