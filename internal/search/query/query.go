// Package query reads search queries as users of zoekt and Sourcegraph write them.
//
// A query is words and filters, and, or, not and parentheses between them; what stands side by side has to hold
// together. A word is literal, unless it is plainly a regular expression: see Auto. Filters narrow down what is
// searched (repo:, file:, lang:, branch:), say what a word is (content:, sym:), or say how the whole query is answered
// (count:, timeout:, select:, case:, type:, patterntype:). docs/how-to/search.md tells it all.
package query

import (
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Query is a search query that could be read.
type Query struct {
	Text    string // reading it again gives the same query
	Root    *Node  // nil: everything
	Count   int    // results that are asked for; 0: the query does not say; All
	Timeout time.Duration
	Select  Select
	Unknown []string // words that look like a filter which there is not, as they stand in the text
}

// All is the Count of count:all.
const All = -1

// Select is what results are.
type Select string

const (
	Matches      Select = ""     // files, and where in them
	Repositories Select = "repo" // repositories that have some; also of a query that has filters for repositories alone
	Files        Select = "file" // files, but not where in them
)

// Op is how a node is put together.
type Op uint8

const (
	Atom Op = iota
	And
	Or
	Not // of its only kid
)

// Field is where an atom's pattern is looked for.
type Field uint8

const (
	Any      Field = iota // content or path
	Content               // of a file
	Path                  // of a file
	Symbol                // the name of one in a file
	Repo                  // the repository's path
	Branch                // the short name of a branch that has the file, or HEAD
	Language              // of a file; the pattern is its name or another that it has
)

// Node is a part of a query. All is in exported fields; nobody changes it once it is read.
type Node struct {
	Op   Op
	Kids []*Node // of And, Or and Not; at least one

	// Of an atom.
	Field   Field
	Pattern string
	Regexp  bool     // of RE2, that could be read; else Pattern is literal
	Exact   bool     // Branch: the whole name
	Case    bool     // upper and lower case differ
	Names   []string // Repo: in place of the pattern, the paths of which it has to be one
	At      int      // the byte of the text that it begins with
	Of      *Node    // Branch, in repo:RE@BRANCH: the atom of the repository
}

// Error says what is wrong with a query, and where. It is a fault of kind Invalid.
type Error struct {
	Message        string
	Offset, Length int // the bytes of the text that are wrong
	excerpt        string
}

// Error quotes the place.
func (e *Error) Error() string {
	if e.excerpt == "" {
		return e.Message
	}
	return e.Message + " at " + e.excerpt
}

// Unwrap makes it a fault.
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
