// Package schema has the JSON that search clients read: Sourcegraph's stream and GraphQL, and our own.
//
// The search worker formats results, and the server passes them on as bytes. Events (progress, alerts, filters) are
// formatted by the server.
package schema

import "strings"

// Format is how results are written.
type Format int

const (
	// API is our own, of /-/api/v1/search.
	API Format = iota
	// StreamLines and StreamChunks are those of Sourcegraph's stream, without and with cm=t.
	StreamLines
	StreamChunks
	// GraphQL is that of Sourcegraph's GraphQL API. Its results have the whole content of files.
	GraphQL
	// APIEvents is as API, for results that are wanted while they are found: those that come later may be better than
	// the first.
	APIEvents
)

// Kind is the kind of a result.
type Kind int

const (
	Content    Kind = iota // a file, and where in it
	Path                   // a file whose path matches, or that was requested without its matches
	Symbol                 // a file, and symbols in it
	Repository             // a repository
)

// File is one result. Strings and bytes need not be UTF-8: invalid bytes become U+FFFD. Format.Append keeps no
// reference to it.
type File struct {
	Kind       Kind
	Repository string // path; URLs have it, the rest its Name
	Path       string
	Commit     string   // that was searched, in hexadecimal
	Branches   []string // that have the file; short names
	Language   string   // empty: not known
	Unindexed  bool     // it was found without an index
	PathRanges []Range  // the matches in Path; only Offset and Column are used
	Chunks     []Chunk  // in the file's order
	Whole      []byte   // content, for GraphQL
}

// Name is what a repository is called in results: without the ".git" of its directory, as clients clone it and filters
// find it.
func Name(repository string) string {
	if name, ok := strings.CutSuffix(repository, ".git"); ok && name != "" && !strings.HasSuffix(name, "/") {
		return name
	}
	return repository
}

// Chunk is whole lines in a row that have something that was found.
type Chunk struct {
	Content []byte // with or without the end of its last line
	Start   Position
	Ranges  []Range // in order
}

// Range is a match.
type Range struct {
	Start, End Position // End is behind it
	Symbol     *Sym     // only in results of kind Symbol: the symbol
}

// Matches counts the matches in a result.
func (r *File) Matches() (n int) {
	for i := range r.Chunks {
		n += len(r.Chunks[i].Ranges)
	}
	return max(n, 1)
}

// Position is a place in a file. All count from 0: bytes from the file's begin, lines, code points from the line's
// begin.
type Position struct{ Offset, Line, Column int }

// Sym is a symbol.
type Sym struct {
	Name, Kind string // Kind: as ctags says, as in "function"
	Container  string // the name of the symbol that contains it; may be empty
}

// Progress is the data of Sourcegraph's event "progress".
type Progress struct {
	Done              bool      `json:"done"`
	MatchCount        int       `json:"matchCount"`
	DurationMs        int64     `json:"durationMs"`
	RepositoriesCount int       `json:"repositoriesCount"`
	Skipped           []Skipped `json:"skipped"` // never nil
}

// Skipped describes a part that was not searched, and the reason.
type Skipped struct {
	Reason   string `json:"reason"` // "shard-match-limit", "shard-timeout", "repository-missing", ...
	Title    string `json:"title"`
	Message  string `json:"message"`
	Severity string `json:"severity"` // "info", "warn" or "error"
}

// Filter is one of the array that is the data of Sourcegraph's event "filters".
type Filter struct {
	Value    string `json:"value"`
	Label    string `json:"label"`
	Count    int    `json:"count"`
	LimitHit bool   `json:"limitHit"`
	Kind     string `json:"kind"` // "repo", "lang", "file"
}

// Alert is the data of Sourcegraph's event "alert", and of GraphQL's alert.
type Alert struct {
	Title           string          `json:"title"`
	Description     string          `json:"description"`
	ProposedQueries []ProposedQuery `json:"proposedQueries"` // never nil
}

// ProposedQuery is another query that an alert offers.
type ProposedQuery struct {
	Description string `json:"description"`
	Query       string `json:"query"`
}

// Failure is the data of Sourcegraph's event "error".
type Failure struct {
	Name    string `json:"name"` // "Error"
	Message string `json:"message"`
}
