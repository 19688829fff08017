package search

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

const (
	// maxBranchChecks is the maximum number of repositories that are checked for a branch that is not indexed.
	maxBranchChecks = 20
	// maxCounted is the maximum number of repositories in a count of files that are not searched.
	maxCounted = 2000
)

// scopeEntry is a repository within the scope of a query.
type scopeEntry struct {
	path      git.RepoPath
	branches  []string // short names of indexed branches
	namesOnly int
}

// notices returns the parts of the query that were not searched: unknown filters, branches, files without content.
func (e *Engine) notices(ctx context.Context, request Request) []Notice {
	q := request.Query
	var list []Notice
	for _, name := range q.Unknown {
		list = append(list, Notice{"filter",
			fmt.Sprintf("%s: is not a filter here; it was searched for as text. To search for text without this notice, put "+
				"it in quotes.", name)})
	}
	var branches []*query.Node
	var content bool
	positive(q.Root, func(n *query.Node) {
		switch {
		case n.Field == query.Branch && n.Pattern != string(git.HEAD):
			branches = append(branches, n)
		case n.Field == query.Any || n.Field == query.Content:
			content = true
		}
	})
	if len(branches) == 0 && !content {
		return list
	}
	repositories := e.scopeOf(repositoryConditions(q), request.May, len(branches) > 0)
	ctx, cancel := context.WithTimeout(ctx, freshnessTimeout)
	defer cancel()
	for _, n := range branches {
		if message := e.branchNotice(ctx, n, repositories); message != "" {
			list = append(list, Notice{"branch", message})
		}
	}
	total := 0
	for _, r := range repositories {
		total += r.namesOnly
	}
	if content && len(branches) == 0 && total > 0 {
		list = append(list, Notice{"files",
			fmt.Sprintf("Of about %d %s the names were searched and not the content: larger than %d KiB (index.max_file), "+
				"binary, or in an encoding such as UTF-16.",
				total, plural(total, "file", "files"), e.o.MaxFile>>10)})
	}
	return list
}

// positive calls each for every atom that is not negated.
func positive(n *query.Node, each func(*query.Node)) {
	switch {
	case n == nil || n.Op == query.Not:
	case n.Op == query.Atom:
		each(n)
	default:
		for _, kid := range n.Kids {
			positive(kid, each)
		}
	}
}

// scopeOf returns the indexed repositories that the caller may read and that match the query's conditions, sorted by
// path. Unless all is set, it returns at most maxCounted repositories that have files without content, and omits their
// branches. This is enough for most searches.
func (e *Engine) scopeOf(conditions []condition, may Readable, all bool) []scopeEntry {
	e.mu.Lock()
	var list []scopeEntry
	for path, r := range e.repos {
		if len(r.indexed) == 0 || !all && r.namesOnly == 0 {
			continue
		}
		s := scopeEntry{path: path, namesOnly: r.namesOnly}
		if all {
			for _, b := range r.indexed {
				s.branches = append(s.branches, b.Name)
			}
		} else if len(list) == maxCounted {
			break
		}
		list = append(list, s)
	}
	e.mu.Unlock()
	list = slices.DeleteFunc(list, func(s scopeEntry) bool {
		return !holdsAll(conditions, schema.Name(s.path.String()))
	})
	if may != nil {
		paths := make([]git.RepoPath, len(list))
		for i := range list {
			paths[i] = list[i].path
		}
		readable, _ := may(paths)
		rest := list[:0]
		for i, s := range list {
			if readable[i] {
				rest = append(rest, s)
			}
		}
		list = rest
	}
	slices.SortFunc(list, func(a, b scopeEntry) int { return strings.Compare(a.path.String(), b.path.String()) })
	return list
}

// branchNotice returns a notice about a branch that is not indexed or does not exist. It is empty if the branch is
// indexed in all examined repositories.
func (e *Engine) branchNotice(ctx context.Context, n *query.Node, repositories []scopeEntry) string {
	var of []condition
	if n.Of != nil {
		var g grepQuery
		g.take(n.Of, false)
		of = g.repos
	}
	var exists []string
	indexed, checks, more := 0, 0, false
	for _, r := range repositories {
		switch {
		case !holdsAll(of, schema.Name(r.path.String())):
		case slices.ContainsFunc(r.branches, func(name string) bool {
			return name == n.Pattern || !n.Exact &&
				strings.Contains(name, n.Pattern)
		}):
			indexed++
		case checks == maxBranchChecks || ctx.Err() != nil:
			more = true
		default:
			checks++
			heads, _, err := e.o.Source.Heads(ctx, r.path, []string{"refs/heads/" + n.Pattern, "refs/tags/" + n.Pattern})
			if err == nil && slices.ContainsFunc(heads, func(h Head) bool { return h.Err == nil }) {
				exists = append(exists, schema.Name(r.path.String()))
			}
		}
	}
	switch {
	case len(exists) > 0:
		return fmt.Sprintf("The branch or tag %q of %s is not indexed, and was not searched. Searches see what HEAD "+
			"names, and what index.branches lists.", n.Pattern, strings.Join(exists, ", "))
	case indexed == 0 && more:
		return fmt.Sprintf("No repository has the branch %q in its index. The first %d repositories that were checked do "+
			"not have such a branch or tag.", n.Pattern, checks)
	case indexed == 0:
		return fmt.Sprintf("No repository that was searched has a branch or tag %q.", n.Pattern)
	}
	return ""
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
