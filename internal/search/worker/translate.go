package worker

import (
	"regexp/syntax"
	"slices"

	"github.com/go-enry/go-enry/v2"
	"github.com/grafana/regexp"
	zoekt "github.com/sourcegraph/zoekt/query"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/search/query"
)

// plan is a query as zoekt has it.
type plan struct {
	query      zoekt.Q
	repository bool // results are repositories
	file       bool // results are files without their matches
	symbol     bool // matches are symbols
}

// translate makes a plan of a query.
func translate(q *query.Query) (plan, error) {
	p := plan{repository: q.Select == query.Repositories, file: q.Select == query.Files}
	if q.Root == nil {
		p.query = &zoekt.Const{Value: true}
		return p, nil
	}
	var err error
	p.query, err = translateNode(q.Root)
	q.Root.Atoms(func(n *query.Node) { p.symbol = p.symbol || n.Field == query.Symbol })
	return p, err
}

func translateNode(n *query.Node) (zoekt.Q, error) {
	if n.Op == query.Atom {
		return translateAtom(n)
	}
	kids := make([]zoekt.Q, len(n.Kids))
	for i, kid := range n.Kids {
		var err error
		if kids[i], err = translateNode(kid); err != nil {
			return nil, err
		}
	}
	switch n.Op {
	case query.And:
		return zoekt.NewAnd(kids...), nil
	case query.Or:
		return zoekt.NewOr(kids...), nil
	}
	return &zoekt.Not{Child: kids[0]}, nil
}

func translateAtom(n *query.Node) (zoekt.Q, error) {
	switch n.Field {
	case query.Repo:
		return translateRepo(n)
	case query.Branch:
		return &zoekt.Branch{Pattern: n.Pattern, Exact: n.Exact}, nil
	case query.Language:
		language, ok := enry.GetLanguageByAlias(n.Pattern)
		if !ok {
			language = n.Pattern
		}
		return &zoekt.Language{Language: language}, nil
	}
	q, err := translatePattern(n)
	if err == nil && n.Field == query.Symbol {
		q = &zoekt.Symbol{Expr: q}
	}
	return q, err
}

// translatePattern is for what is looked for in files and their paths.
func translatePattern(n *query.Node) (zoekt.Q, error) {
	path, content := n.Field == query.Path, n.Field == query.Content || n.Field == query.Symbol
	if n.Pattern == "" {
		return &zoekt.Const{Value: true}, nil
	}
	if !n.Regexp {
		return &zoekt.Substring{Pattern: n.Pattern, CaseSensitive: n.Case, FileName: path, Content: content}, nil
	}
	re, err := syntax.Parse(n.Pattern, syntax.ClassNL|syntax.PerlX|syntax.UnicodeGroups)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "bad regular expression", err)
	}
	if re.Op == syntax.OpLiteral && re.Flags&syntax.FoldCase == 0 {
		return &zoekt.Substring{Pattern: string(re.Rune), CaseSensitive: n.Case, FileName: path, Content: content}, nil
	}
	return &zoekt.Regexp{Regexp: zoekt.OptimizeRegexp(re, syntax.ClassNL|syntax.PerlX|syntax.UnicodeGroups), CaseSensitive: n.Case, FileName: path, Content: content}, nil
}

func translateRepo(n *query.Node) (zoekt.Q, error) {
	if n.Names != nil {
		return zoekt.NewRepoSet(slices.Clone(n.Names)...), nil
	}
	text := n.Pattern
	if !n.Regexp {
		text = regexp.QuoteMeta(text)
	}
	if !n.Case {
		text = "(?i)" + text
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "bad regular expression for repositories", err)
	}
	return &zoekt.Repo{Regexp: re}, nil
}
