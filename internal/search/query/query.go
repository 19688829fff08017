// Package query parses search queries in the syntax of zoekt and Sourcegraph.
//
// A query has words and filters, combined by and, or, not and parentheses; neighbours all have to match. A word is
// literal, unless it is clearly a regular expression (see Auto). Some filters restrict the search (repo:, file:, lang:,
// branch:), and some define the kind of a word (content:, sym:). The others are settings of the whole query (count:,
// timeout:, select:, case:, type:, patterntype:). docs/reference/search-api.md has the complete syntax.
package query

import (
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Query is a parsed search query.
type Query struct {
	Text    string // parsing it again returns the same query
	Root    *Node  // nil means everything
	Count   int    // requested number of results, or All; zero if the query does not set it
	Timeout time.Duration
	Select  Select
	Unknown []string // words that look like unknown filters, unchanged
}

// All is the Count of count:all.
const All = -1

// Select is the kind of results.
type Select string

const (
	Matches      Select = ""     // files with their matches
	Repositories Select = "repo" // repositories with matches; also for a query that only has filters for repositories
	Files        Select = "file" // files without their matches
)

// Op is the operation of a node.
type Op uint8

const (
	Atom Op = iota
	And
	Or
	Not // of its only child
)

// Field is the text with which an atom's pattern is compared.
type Field uint8

const (
	Any      Field = iota // content or path
	Content               // of a file
	Path                  // of a file
	Symbol                // the name of a symbol in a file
	Repo                  // the repository's path
	Branch                // the short name of a branch that has the file, or HEAD
	Language              // of a file; the pattern is one of its names
)

// Node is a part of a query. It is immutable after parsing.
type Node struct {
	Op   Op
	Kids []*Node // of And, Or and Not; at least one

	// Of an atom.
	Field   Field
	Pattern string
	Regexp  bool     // Pattern is a valid RE2 expression; otherwise it is literal
	Exact   bool     // for Branch: the whole name
	Case    bool     // case matters
	Names   []string // for Repo: a list of paths instead of the pattern
	At      int      // its offset in the text, in bytes
	Of      *Node    // for Branch in repo:RE@BRANCH: the atom of the repository
}

// Error is a syntax error of a query with its position. It is a fault of kind Invalid.
type Error struct {
	Message        string
	Offset, Length int // the invalid part of the text, in bytes
	excerpt        string
}

// Error returns the message with the invalid part.
func (e *Error) Error() string {
	if e.excerpt == "" {
		return e.Message
	}
	return e.Message + " at " + e.excerpt
}

// Unwrap returns the fault.
func (e *Error) Unwrap() error { return fault.New(fault.Invalid, "%s", e.Error()) }

// Atoms calls each for every atom, from left to right.
func (n *Node) Atoms(each func(*Node)) {
	if n == nil {
		return
	}
	if n.Op == Atom {
		each(n)
		return
	}
	for _, kid := range n.Kids {
		kid.Atoms(each)
	}
}
