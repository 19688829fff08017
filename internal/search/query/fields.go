package query

import (
	"cmp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Kind is the interpretation of words.
type Kind string

const (
	// Auto takes a word as a regular expression if it is a valid one and contains something that is rare in source code.
	// That is .* or .+, a backslash, | between alternatives, ^ at the start, $ at the end, or a repeated class or group.
	// Otherwise the word is literal.
	Auto Kind = "auto"
	// Literal takes words literally, except for /re/, which is a regular expression.
	Literal Kind = "literal"
	// Regexp takes words as regular expressions, except for those in quotes.
	Regexp Kind = "regexp"
)

// kinds are the names of Kinds, including Sourcegraph's.
var kinds = map[string]Kind{"auto": Auto, "literal": Literal, "standard": Literal, "keyword": Literal, "regexp": Regexp,
	"regex": Regexp}

// fields are the names of filters with their names in messages.
var fields = map[string]string{
	"r": "repo", "repo": "repo", "f": "file", "file": "file", "path": "file", "l": "lang", "lang": "lang",
	"language": "lang",
	"c":        "content", "content": "content", "regex": "regex", "sym": "sym", "symbol": "sym", "b": "branch",
	"branch": "branch",
	"rev":    "rev", "revision": "rev", "case": "case", "count": "count", "timeout": "timeout", "select": "select",
	"t": "type", "type": "type",
	"patterntype": "patterntype", "context": "context", "fork": "fork", "archived": "archived", "public": "public",
	"visibility": "visibility",
}

// settings are the settings of the query found so far.
type settings struct {
	kind   Kind
	casing string // "yes", "no" or "auto"
	types  []string
	given  map[string]string // settings that already have a value
}

// field parses the value of a filter. It returns nil for settings.
func (p *parser) field(name string, v token) *Node {
	switch name {
	case "repo":
		return p.repo(v)
	case "file":
		return p.pattern(v, Path, true)
	case "lang":
		return &Node{Field: Language, Pattern: v.text, At: v.at}
	case "content":
		return p.word(v, Content)
	case "regex":
		return p.pattern(v, Any, true)
	case "sym":
		return p.word(v, Symbol)
	case "branch", "rev":
		text := strings.TrimPrefix(v.text, "refs/heads/")
		return &Node{Field: Branch, Pattern: text, Exact: name == "rev" || text != v.text || text == "HEAD", At: v.at}
	}
	if p.inNot() {
		p.fail(v, "%s: applies to the whole query and cannot be negated", name)
	}
	if old, ok := p.given[name]; ok && old != v.text && name != "type" {
		p.fail(v, "%s: is given twice, with different values", name)
	}
	p.given[name] = v.text
	p.setting(name, v)
	return nil
}

// setting stores a setting.
func (p *parser) setting(name string, v token) {
	text := strings.ToLower(v.text)
	switch name {
	case "case":
		if !slices.Contains([]string{"yes", "no", "auto"}, text) {
			p.fail(v, "case: has to be yes, no or auto")
		}
		p.casing = text
	case "count":
		p.count(text, v)
	case "timeout":
		p.timeout(text, v)
	case "select":
		chosen, ok := map[string]Select{
			"repo": Repositories, "repository": Repositories, "file": Files, "file.path": Files, "path": Files,
			"content": Matches, "symbol": Matches,
		}[text]
		if !ok {
			p.fail(v, "select: has to be repo, file or content")
		}
		p.q.Select = chosen
		if text == "symbol" {
			p.types = append(p.types, "symbol")
		}
	case "type":
		kind, ok := map[string]string{
			"file": "file", "content": "file", "filematch": "any", "path": "path", "filename": "path", "repo": "repo",
			"symbol": "symbol",
		}[text]
		if !ok {
			p.fail(v, "type: has to be file, path, repo or symbol")
		}
		p.types = append(p.types, kind)
	case "patterntype":
		kind, ok := kinds[text]
		if !ok {
			p.fail(v, "patterntype: has to be literal, regexp or auto")
		}
		p.kind = kind
	}
}

func (p *parser) count(text string, v token) {
	if text == "all" {
		p.q.Count = All
		return
	}
	n, err := strconv.Atoi(text)
	switch {
	case err != nil && len(text) > 9 && strings.Trim(text, "0123456789") == "":
		p.q.Count = All
	case err != nil || n < 1:
		p.fail(v, "count: has to be a positive number, or all")
	default:
		p.q.Count = n
	}
}

func (p *parser) timeout(text string, v token) {
	if strings.Trim(text, "0123456789") == "" {
		text += "s"
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		p.fail(v, "timeout: has to be a duration like 10s or 1m30s")
	}
	p.q.Timeout = max(d, time.Millisecond)
}

// repo parses repo:, with Sourcegraph's syntax for a branch after an @. Names of repositories may contain an @
// themselves; then both meanings apply.
func (p *parser) repo(v token) *Node {
	if i := strings.IndexByte(v.text, '('); i > 0 && (strings.HasPrefix(v.text, "has") ||
		strings.HasPrefix(v.text, "contains")) {
		p.fail(v, "repo:%s(...) is not supported", v.text[:i])
	}
	at := -1
	for i := 0; i < len(v.text); i++ {
		if v.text[i] == '\\' {
			i++
		} else if v.text[i] == '@' {
			at = i
		}
	}
	whole := p.repoPattern(v)
	if at <= 0 || at == len(v.text)-1 || v.quoted {
		return whole
	}
	left, right := v, v
	left.text, right.text, right.at = v.text[:at], v.text[at+1:], v.at+at+1
	if strings.ContainsAny(right.text, `$|()[]*+?\`) { // the name is a regular expression
		return whole
	}
	named := p.repoPattern(left)
	branch := &Node{Field: Branch, Pattern: strings.TrimPrefix(right.text, "refs/heads/"), Exact: true, At: right.at,
		Of: named}
	return &Node{Op: Or, Kids: []*Node{whole, {Op: And, Kids: []*Node{named, branch}}}}
}

func (p *parser) repoPattern(v token) *Node {
	if names := listOfNames(v.text); names != nil {
		return &Node{Field: Repo, Names: names, At: v.at}
	}
	return p.pattern(v, Repo, true)
}

// listOfNames parses ^(a|b|c)$ or ^a$ without any special characters except escapes. It may be longer than other
// expressions.
func listOfNames(text string) []string {
	text, begins := strings.CutPrefix(text, "^")
	text, ends := strings.CutSuffix(text, "$")
	if !begins || !ends {
		return nil
	}
	if inner, ok := strings.CutPrefix(text, "("); ok && strings.HasSuffix(inner, ")") {
		text = strings.TrimPrefix(inner[:len(inner)-1], "?:")
	} else if strings.Contains(text, "|") {
		return nil
	}
	var names []string
	var name strings.Builder
	for i := 0; i <= len(text); i++ {
		switch {
		case i == len(text) || text[i] == '|':
			if name.Len() == 0 {
				return nil
			}
			names = append(names, name.String())
			name.Reset()
		case text[i] == '\\':
			if i++; i == len(text) || text[i] >= 0x80 || isWord(text[i]) {
				return nil
			}
			name.WriteByte(text[i])
		case strings.IndexByte(".+*?()[]{}^$", text[i]) >= 0:
			return nil
		default:
			name.WriteByte(text[i])
		}
	}
	return names
}

func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
}

// word parses a search word.
func (p *parser) word(v token, field Field) *Node {
	switch {
	case v.slashed:
		return p.pattern(v, field, true)
	case v.quoted:
		return p.pattern(v, field, false)
	}
	if name, ok := likeFilter(v.text); ok && field == Any && len(p.q.Unknown) < maxUnknown {
		p.q.Unknown = append(p.q.Unknown, name)
	}
	// a later setting may define their kind
	p.later = append(p.later, &Node{Field: field, Pattern: v.text, At: v.at})
	return p.later[len(p.later)-1]
}

// pattern returns an atom.
func (p *parser) pattern(v token, field Field, isRegexp bool) *Node {
	n := &Node{Field: field, Pattern: v.text, Regexp: isRegexp, At: v.at}
	if isRegexp {
		p.checkRegexp(n)
	}
	p.atoms = append(p.atoms, n)
	return n
}

// Flags are the flags with which regular expressions of queries are parsed.
const Flags = syntax.ClassNL | syntax.PerlX | syntax.UnicodeGroups

func (p *parser) checkRegexp(n *Node) {
	v := token{text: n.Pattern, at: n.At, length: len(n.Pattern)}
	if len(n.Pattern) > maxRegexp {
		p.fail(v, "regular expression too long: it has %d bytes, the maximum is %d", len(n.Pattern), maxRegexp)
	}
	re, err := syntax.Parse(n.Pattern, Flags)
	if err == nil {
		if p.compiled += compiledSize(re); p.compiled > maxCompiled {
			p.fail(v, "the regular expressions of the query are too large: use fewer repetitions or a smaller query")
		}
		return
	}
	message := err.Error()
	if bad, ok := err.(*syntax.Error); ok {
		message = bad.Code.String()
		if i := strings.Index(n.Pattern, bad.Expr); i >= 0 && bad.Expr != "" {
			v.at, v.length = v.at+i, len(bad.Expr)
		}
	}
	p.fail(v, "invalid regular expression (%s)", message)
}

// compiledSize estimates the size of a compiled expression, which is compiled for each part of an index. It counts
// runes and ranges of runes, with repetitions expanded. The result exceeds maxCompiled only slightly.
func compiledSize(re *syntax.Regexp) int {
	n := 1
	switch re.Op {
	case syntax.OpLiteral:
		n = len(re.Rune)
	case syntax.OpCharClass:
		n += len(re.Rune) / 2
	}
	for _, sub := range re.Sub {
		if n <= maxCompiled {
			n += compiledSize(sub)
		}
	}
	if re.Op == syntax.OpRepeat {
		n = min(n, maxCompiled+1) * max(re.Min+1, re.Max)
	}
	return min(n, maxCompiled+1)
}

// decide resolves properties that are known only at the end of the query: kinds of words, case, and the kind of
// results.
func (p *parser) decide() {
	for _, n := range p.later {
		switch kind := cmp.Or(p.kind, Auto); {
		case kind == Regexp || kind == Auto && looksLikeRegexp(n.Pattern):
			n.Regexp = true
			p.checkRegexp(n)
		case strings.Contains(n.Pattern, `\ `): // an escaped space
			n.Pattern = strings.ReplaceAll(n.Pattern, `\ `, " ")
		}
	}
	p.atoms = append(p.atoms, p.later...)
	for _, n := range p.atoms {
		if field, ok := p.anyIs(); ok && n.Field == Any {
			n.Field = field
		}
		switch p.casing {
		case "yes":
			n.Case = true
		case "", "auto":
			n.Case = n.Field != Repo && n.Field != Path && hasUpper(n)
		}
	}
	only := p.q.Root != nil
	p.q.Root.Atoms(func(n *Node) { only = only && (n.Field == Repo || n.Field == Branch) })
	if _, said := p.given["select"]; only && !said && len(p.types) == 0 || slices.Contains(p.types, "repo") {
		p.q.Select = Repositories
	}
}

// anyIs returns the field of words if the query sets it.
func (p *parser) anyIs() (field Field, ok bool) {
	if len(p.types) != 1 {
		return 0, false
	}
	field, ok = map[string]Field{"file": Content, "path": Path, "symbol": Symbol, "repo": Repo}[p.types[0]]
	return field, ok
}

// hasUpper reports whether a word has upper-case letters, so that case matters.
func hasUpper(n *Node) bool {
	escaped := false
	for _, r := range n.Pattern {
		if !escaped && unicode.IsUpper(r) {
			return true
		}
		escaped = n.Regexp && !escaped && r == '\\'
	}
	return false
}

// looksLikeRegexp is the rule of Auto.
func looksLikeRegexp(s string) bool {
	signs := strings.HasPrefix(s, "^") || len(s) > 1 && strings.HasSuffix(s, "$") && !strings.HasSuffix(s, "$$") ||
		strings.Contains(s, `\`)
	for _, sign := range []string{".*", ".+", "]+", "]*", "]?", "]{", ")+", ")*", ")?", "(?"} {
		signs = signs || strings.Contains(s, sign)
	}
	signs = signs || strings.Contains(s, "|") && !strings.Contains(s, "||") && !strings.HasPrefix(s, "|") &&
		!strings.HasSuffix(s, "|")
	if !signs {
		return false
	}
	re, err := syntax.Parse(s, Flags)
	return err == nil && re.Op != syntax.OpEmptyMatch
}
