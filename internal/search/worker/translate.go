package worker

import (
	"regexp/syntax"
	"strings"

	"github.com/go-enry/go-enry/v2"
	"github.com/grafana/regexp"
	zoekt "github.com/sourcegraph/zoekt/query"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/search/query"
)

// plan is a query in zoekt's form.
type plan struct {
	query      zoekt.Q
	repository bool // results are repositories
	file       bool // results are files without their matches
	symbol     bool // matches are symbols
}

// translate returns the plan of a query. Errors: Invalid.
func translate(q *query.Query) (plan, error) {
	z, err := translateNode(q.Root)
	if err != nil {
		return plan{}, err
	}
	p := plan{query: zoekt.Simplify(z), repository: q.Select == query.Repositories, file: q.Select == query.Files}
	q.Root.Atoms(func(n *query.Node) { p.symbol = p.symbol || n.Field == query.Symbol })
	return p, nil
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

// aliases are names of languages that go-enry does not know as such, and extensions of more than one language.
var aliases = map[string]string{
	"c": "C", "h": "C", "hpp": "C++", "cs": "C#", "d": "D", "docker": "Dockerfile", "fs": "F#", "kt": "Kotlin",
	"kts": "Kotlin", "m": "Objective-C", "md": "Markdown", "pl": "Perl", "php": "PHP",
	"ps1": "PowerShell", "py": "Python", "r": "R", "rs": "Rust", "sql": "SQL", "tf": "HCL", "ts": "TypeScript",
	"v": "V", "vb": "Visual Basic .NET", "yml": "YAML",
	"javascript react": "JavaScript", "jsx": "JavaScript", "typescript react": "TSX", "protobuf": "Protocol Buffer",
	"objectivec": "Objective-C", "objc": "Objective-C",
}

// language returns the language with a name, an alias, or an extension that only one language has. Case does not
// matter.
func language(name string) (string, bool) {
	name = strings.ToLower(strings.TrimPrefix(name, "."))
	if found, ok := aliases[name]; ok {
		return found, true
	}
	if found, ok := enry.GetLanguageByAlias(name); ok {
		return found, true
	}
	if all := enry.GetLanguagesByExtension("x."+name, nil, nil); len(all) == 1 {
		return all[0], true
	}
	return "", false
}

func translateAtom(n *query.Node) (zoekt.Q, error) {
	switch n.Field {
	case query.Content:
		return translatePattern(n, true, false)
	case query.Path:
		return translatePattern(n, false, true)
	case query.Symbol:
		in, err := translatePattern(n, true, false)
		if err != nil {
			return nil, err
		}
		return &zoekt.Symbol{Expr: in}, nil
	case query.Repo:
		return translateRepository(n)
	case query.Branch:
		return &zoekt.Branch{Pattern: n.Pattern, Exact: n.Exact}, nil
	case query.Language:
		name, ok := language(n.Pattern)
		if !ok {
			return nil, fault.New(fault.Invalid,
				"lang:%.40s: unknown language; to find files by their extension use file:, as in file:\\\\.xyz$", n.Pattern)
		}
		return &zoekt.Language{Language: name}, nil
	}
	return translatePattern(n, false, false)
}

// translatePattern searches content, paths, or both if neither is set.
func translatePattern(n *query.Node, content, path bool) (zoekt.Q, error) {
	if !n.Regexp {
		return &zoekt.Substring{Pattern: n.Pattern, CaseSensitive: n.Case, Content: content, FileName: path}, nil
	}
	re, err := syntax.Parse(n.Pattern, query.Flags)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "invalid regular expression", err)
	}
	if re = zoekt.OptimizeRegexp(re, query.Flags); re.Op == syntax.OpLiteral {
		return &zoekt.Substring{Pattern: string(re.Rune), CaseSensitive: n.Case && re.Flags&syntax.FoldCase == 0,
			Content: content, FileName: path}, nil
	}
	return &zoekt.Regexp{Regexp: re, CaseSensitive: n.Case, Content: content, FileName: path}, nil
}

// translateRepository matches paths with or without ".git" at their end, as fetches find repositories by either.
func translateRepository(n *query.Node) (zoekt.Q, error) {
	const suffix = ".git"
	if n.Names != nil {
		set := make(map[string]bool, 2*len(n.Names))
		for _, name := range n.Names {
			name = strings.TrimSuffix(name, suffix)
			set[name], set[name+suffix] = true, true
		}
		return &zoekt.RepoSet{Set: set}, nil
	}
	pattern := n.Pattern
	if !n.Regexp {
		pattern = regexp.QuoteMeta(pattern)
	} else if front, ok := strings.CutSuffix(pattern, "$"); ok && !strings.HasSuffix(front, `\`) {
		pattern = front + `(?:\.git)?$`
	}
	if !n.Case {
		pattern = "(?i)" + pattern
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, "repo: invalid regular expression", err)
	}
	return &zoekt.RepoRegexp{Regexp: re}, nil
}
