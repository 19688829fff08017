package query

import (
	"slices"
	"strings"
)

// maxUnknown is the maximum number of reported words that look like filters.
const maxUnknown = 10

// foreign are filters of Sourcegraph and of Git hosts that are not supported.
var foreign = []string{
	"author", "before", "after", "since", "until", "committer", "message", "msg", "diff", "org", "user", "owner",
	"filename", "extension", "ext", "size", "path_regex",
	"repohasfile", "repohascommitafter", "repogroup", "index", "stable", "rule", "license", "topic", "is", "in", "project",
	"tag", "commit", "symbols",
}

// likeFilter reports whether a word looks like an unsupported filter NAME:VALUE, where NAME is a filter elsewhere or
// differs by one letter from a supported one.
func likeFilter(word string) (name string, ok bool) {
	name, value, ok := strings.Cut(word, ":")
	if name = strings.ToLower(name); !ok || len(name) < 2 || value == "" || strings.HasPrefix(value, ":") ||
		strings.HasPrefix(value, "//") {
		return "", false
	}
	for _, other := range foreign {
		if name == other {
			return name, true
		}
	}
	for known := range fields {
		if len(known) >= 4 && nearly(name, known) {
			return name, true
		}
	}
	return "", false
}

// nearly reports whether one letter was added, omitted, changed, or swapped with the next.
func nearly(a, b string) bool {
	if a == b || len(a)-len(b) > 1 || len(b)-len(a) > 1 {
		return false
	}
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	x, y := a[i:], b[i:]
	switch {
	case len(x) > len(y):
		return x[1:] == y
	case len(x) < len(y):
		return x == y[1:]
	}
	return x[1:] == y[1:] || len(x) > 1 && x[0] == y[1] && x[1] == y[0] && x[2:] == y[2:]
}

// scope applies filters before the first or after the last alternative to all alternatives, as in `repo:x a or b` and
// `a or b file:y`. It does so only if no other alternative has filters. Sourcegraph interprets such queries in the same
// way. It takes the alternatives and returns the filters, which apply to each of the remaining alternatives.
func scope(kids []*Node) (filters, alternatives []*Node) {
	last := len(kids) - 1
	leading, first := cutFilters(kids[0], false)
	trailing, end := cutFilters(kids[last], true)
	if first == nil || end == nil || len(leading)+len(trailing) == 0 {
		return nil, kids
	}
	alternatives = slices.Concat([]*Node{first}, kids[1:last], []*Node{end})
	for _, n := range alternatives {
		if hasFilter(n) {
			return nil, kids
		}
	}
	return slices.Concat(leading, trailing), alternatives
}

// cutFilters removes the filters from the start or the end of the terms. The rest is nil if there are no other terms.
func cutFilters(n *Node, fromEnd bool) (filters []*Node, rest *Node) {
	if n.Op != And {
		if isFilter(n) {
			return nil, nil
		}
		return nil, n
	}
	begin, end := 0, len(n.Kids)
	for begin < end && (fromEnd && isFilter(n.Kids[end-1]) || !fromEnd && isFilter(n.Kids[begin])) {
		if fromEnd {
			end--
		} else {
			begin++
		}
	}
	if fromEnd {
		filters = n.Kids[end:]
	} else {
		filters = n.Kids[:begin]
	}
	return filters, join(And, n.Kids[begin:end])
}

// isFilter reports whether a node only restricts the search.
func isFilter(n *Node) bool {
	filter := true
	n.Atoms(func(n *Node) { filter = filter && n.narrows() })
	return filter
}

// hasFilter reports whether a node has a filter anywhere.
func hasFilter(n *Node) bool {
	found := false
	n.Atoms(func(n *Node) { found = found || n.narrows() })
	return found
}

func (n *Node) narrows() bool {
	return n.Field == Repo || n.Field == Path || n.Field == Branch || n.Field == Language
}
