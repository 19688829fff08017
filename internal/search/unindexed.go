package search

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

const (
	// maxUnindexed is the maximum number of repositories without an index in one search, and grepTime the time limit for
	// all of them.
	maxUnindexed = 20
	grepTime     = 10 * time.Second
	// grepLines is the maximum number of lines found in one of them.
	grepLines = 1000
	// maxMissing is the maximum number of missing repositories in a summary.
	maxMissing = 1000
)

// condition is a pattern that a name has to match, or, if not is set, must not match.
type condition struct {
	re    *regexp.Regexp
	names map[string]bool // names without a final ".git", instead of re
	not   bool
}

func (c *condition) holds(name string) bool {
	if c.names != nil {
		return c.names[name] != c.not
	}
	return c.re.MatchString(name) != c.not
}

// grepQuery is a query for git grep: one pattern, and conditions for repositories and paths.
type grepQuery struct {
	repos, paths []condition // those for repositories: of names without a final ".git"
	grep         Grep
	find         *regexp.Regexp // the pattern of grep
	possible     bool           // git grep can answer the query
}

// newGrepping converts a query. It finds conditions for repositories in any query, so that other repositories are not
// reported as missing.
func newGrepQuery(q *query.Query) (g grepQuery) {
	g.possible = true
	eachTerm(q.Root, g.take)
	g.possible = g.possible && g.grep.Pattern != ""
	return g
}

// repositoryConditions returns the conditions for repositories of newGrepQuery. It does not compile other patterns.
func repositoryConditions(q *query.Query) []condition {
	var g grepQuery
	eachTerm(q.Root, func(n *query.Node, not bool) {
		if n.Op == query.Atom && n.Field == query.Repo {
			g.take(n, not)
		}
	})
	return g.repos
}

// eachTerm calls each for the terms of a query that all have to match. If not is set, the term must not match.
func eachTerm(root *query.Node, each func(n *query.Node, not bool)) {
	if root == nil {
		return
	}
	kids := []*query.Node{root}
	if root.Op == query.And {
		kids = root.Kids
	}
	for _, n := range kids {
		if n.Op == query.Not {
			each(n.Kids[0], true)
		} else {
			each(n, false)
		}
	}
}

func (g *grepQuery) take(n *query.Node, not bool) {
	if n.Op != query.Atom {
		g.possible = false
		return
	}
	text := n.Pattern
	if !n.Regexp {
		text = regexp.QuoteMeta(text)
	}
	if !n.Case {
		text = "(?i)" + text
	}
	re, err := regexp.Compile(text)
	switch {
	case err != nil:
		g.possible = false
	case n.Field == query.Repo:
		var names map[string]bool
		if n.Names != nil {
			names = make(map[string]bool, len(n.Names))
		}
		for _, name := range n.Names {
			names[strings.TrimSuffix(name, ".git")] = true
		}
		g.repos = append(g.repos, condition{re, names, not})
	case n.Field == query.Path:
		g.paths = append(g.paths, condition{re, nil, not})
	case (n.Field == query.Any || n.Field == query.Content) && !not && g.grep.Pattern == "" &&
		(!n.Regexp || isPOSIX(n.Pattern)) &&
		!strings.ContainsAny(n.Pattern, "\n\x00"):
		g.grep, g.find = Grep{Pattern: n.Pattern, Regexp: n.Regexp, IgnoreCase: !n.Case, Limit: grepLines}, re
	default:
		g.possible = false
	}
}

// isPOSIX reports whether an RE2 expression certainly has the same meaning in POSIX.
func isPOSIX(pattern string) bool {
	if strings.Contains(pattern, "(?") || strings.Contains(pattern, "*?") || strings.Contains(pattern, "+?") ||
		strings.Contains(pattern, "??") {
		return false
	}
	for i := 0; i < len(pattern); i++ {
		if pattern[i] == '\\' {
			if i++; i == len(pattern) || !strings.ContainsRune(`.[]()*+?{}|^$\/-`, rune(pattern[i])) {
				return false
			}
		}
	}
	return true
}

func holdsAll(conditions []condition, name string) bool {
	return !slices.ContainsFunc(conditions, func(c condition) bool { return !c.holds(name) })
}

// bare is a repository without an index.
type bare struct {
	path   git.RepoPath
	head   Head   // commit to search
	reason string // of the missing index

	isLarge bool // it is not searched without an index, because that would take long or is not possible
}

// searchBare searches repositories without an index, until the time or the limit of results is reached.
func (e *Engine) searchBare(ctx context.Context, list []bare, g *grepQuery, request Request, limit int, sink Sink,
	s *Summary) error {
	ctx, cancel := context.WithTimeout(ctx, grepTime)
	defer cancel()
	for i, b := range list {
		full := s.Results >= limit
		s.Limited = s.Limited || full
		if full || !g.possible || i >= maxUnindexed || b.isLarge || ctx.Err() != nil {
			s.missing(b.path)
			continue
		}
		r := bareResults{request: request, grepQuery: g, bare: b, room: limit - s.Results}
		err := e.o.Source.Grep(ctx, b.path, b.head.Commit, g.grep, r.hit)
		switch {
		case err != nil && ctx.Err() == nil && fault.Is(err, fault.Invalid):
			g.possible = false // git cannot search for the pattern
			s.missing(b.path)
			continue
		case fault.Is(err, fault.NotFound) && e.isGone(b.path):
		case err != nil:
			s.missing(b.path)
		default:
			s.Unindexed = append(s.Unindexed, schema.Name(b.path.String()))
			s.Searched++
		}
		r.close()
		s.Limited = s.Limited || r.full || r.hits == grepLines &&
			(request.Query.Select != query.Repositories || r.batch.Results == 0)
		if r.batch.Results == 0 {
			continue
		}
		s.Results += r.batch.Results
		s.Matches += r.batch.Matches
		s.Repositories = append(s.Repositories, Freshness{
			Repository: schema.Name(b.path.String()), Current: b.head.Commit.String(), Branch: branchName(b.head.Name),
			Error: b.reason,
		})
		if err := sink.Matches(r.batch); err != nil {
			return err
		}
	}
	return nil
}

// isGone reports whether a repository does not exist any more. If it does, its objects are missing.
func (e *Engine) isGone(path git.RepoPath) bool {
	_, _, err := e.heads(e.ctx, path)
	return fault.Is(err, fault.NotFound)
}

func (s *Summary) missing(path git.RepoPath) {
	if len(s.Missing) < maxMissing {
		s.Missing = append(s.Missing, schema.Name(path.String()))
	}
}

// bareResults renders the hits of git grep in one repository.
type bareResults struct {
	request Request
	*grepQuery
	bare
	room  int
	hits  int
	full  bool // there are more results than room
	file  schema.File
	batch Batch
}

func (r *bareResults) hit(h Hit) error {
	r.hits++
	if string(h.Path) != r.file.Path {
		r.close()
		if !holdsAll(r.paths, string(h.Path)) {
			return nil
		}
		r.file = schema.File{
			Kind: schema.Content, Repository: r.path.String(), Path: string(h.Path), Commit: r.head.Commit.String(),
			Branches:  []string{branchName(r.head.Name)},
			Unindexed: true,
		}
	}
	text := slices.Clone(h.Text)
	chunk := schema.Chunk{Content: text, Start: schema.Position{Line: h.Line - 1}}
	for _, m := range r.find.FindAllIndex(text, 100) {
		at := func(n int) schema.Position {
			return schema.Position{Offset: n, Line: h.Line - 1, Column: utf8.RuneCount(text[:n])}
		}
		chunk.Ranges = append(chunk.Ranges, schema.Range{Start: at(m[0]), End: at(m[1])})
	}
	r.file.Chunks = append(r.file.Chunks, chunk)
	return nil
}

// close adds the current file to the batch.
func (r *bareResults) close() {
	f := &r.file
	if f.Path == "" || r.request.Query.Select == query.Repositories && r.batch.Results > 0 {
		return
	}
	if r.batch.Results >= r.room {
		r.full = true
		return
	}
	switch r.request.Query.Select {
	case query.Repositories:
		f.Kind = schema.Repository
	case query.Files:
		f.Kind = schema.Path
	}
	if r.batch.Results > 0 {
		r.batch.JSON = append(r.batch.JSON, ',')
	}
	r.batch.JSON = r.request.Format.Append(r.batch.JSON, f)
	r.batch.Results++
	r.batch.Matches += f.Matches()
	f.Path, f.Chunks = "", nil
}
