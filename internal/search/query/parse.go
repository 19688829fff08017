package query

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of queries.
const (
	maxText   = 512 << 10 // bytes: enough for the names of 10,000 repositories
	maxAtoms  = 1000
	maxDepth  = 100 // parentheses and negations
	maxRegexp = 16 << 10
	// maxCompiled is the maximum size of all regular expressions of a query; see compiledSize.
	maxCompiled = 200_000
)

// Parse parses a query. Errors are of type *Error.
func Parse(text string) (*Query, error) { return ParseAs(Auto, text) }

// ParseAs parses a query. Its words have the given kind, unless the query sets another one.
func ParseAs(kind Kind, text string) (q *Query, err error) {
	p := &parser{text: text, q: &Query{Text: text}, settings: settings{given: map[string]string{}}}
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case *Error:
			q, err = nil, cause
		default:
			panic(cause)
		}
	}()
	p.check()
	root := p.or()
	if p.pos < len(p.text) {
		p.fail(token{at: p.pos, length: 1}, "unexpected closing parenthesis")
	}
	p.q.Root = root
	if _, said := p.given["patterntype"]; !said && kind != Auto {
		p.kind = kind
		p.q.Text = "patterntype:" + string(kind) + " " + text
	}
	p.decide()
	if p.q.Root == nil {
		p.fail(token{}, "empty query: it has only settings such as count: or case:")
	}
	return p.q, nil
}

// KindOf parses the name of a kind, as in patterntype:.
func KindOf(name string) (Kind, bool) {
	kind, ok := kinds[strings.ToLower(name)]
	return kind, ok
}

// parser parses one query. It reports errors by a panic of *Error.
type parser struct {
	text  string
	pos   int
	depth int
	open  []byte // enclosing constructs: '(' for parentheses, '-' for negations, '|' for alternatives
	terms int
	// compiled is the size of all regular expressions so far.
	compiled int
	atoms    []*Node
	later    []*Node // words whose kind is not yet known
	q        *Query
	settings
}

// token is a word or a filter's value.
type token struct {
	text            string // without quotes and slashes
	at, length      int    // in the query
	quoted, slashed bool
}

// excerptLength is the maximum length of a query's excerpt in an error, in bytes.
const excerptLength = 40

func (p *parser) fail(v token, format string, args ...any) {
	e := &Error{Message: fmt.Sprintf(format, args...), Offset: v.at, Length: v.length}
	if v.length > 0 && v.at < len(p.text) {
		end := min(len(p.text), v.at+min(v.length, excerptLength))
		e.excerpt = fmt.Sprintf("character %d: %s", utf8.RuneCountInString(p.text[:v.at])+1,
			strconv.Quote(strings.ToValidUTF8(p.text[v.at:end], "\ufffd")))
	}
	panic(e)
}

// check refuses a query that is not text.
func (p *parser) check() {
	if len(p.text) > maxText {
		p.fail(token{}, "query too long: it has %d bytes, the maximum is %d", len(p.text), maxText)
	}
	if strings.TrimSpace(p.text) == "" {
		p.fail(token{}, "empty query")
	}
	for i, r := range p.text {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(p.text[i:]); size == 1 {
				p.fail(token{at: i, length: 1}, "the query is not UTF-8")
			}
		}
		if unicode.IsControl(r) && !unicode.IsSpace(r) {
			p.fail(token{at: i, length: utf8.RuneLen(r)}, "the query contains a control character")
		}
	}
}

// inNot reports whether the current position is negated.
func (p *parser) inNot() bool { return strings.Contains(string(p.open), "-") }

func (p *parser) enter(what byte) {
	p.open = append(p.open, what)
	if p.depth++; p.depth > maxDepth {
		p.fail(token{at: p.pos, length: 1}, "the query is nested too deeply")
	}
}

func (p *parser) leave() {
	p.open = p.open[:len(p.open)-1]
	p.depth--
}

func (p *parser) space() {
	for p.pos < len(p.text) {
		r, size := utf8.DecodeRuneInString(p.text[p.pos:])
		if !unicode.IsSpace(r) {
			return
		}
		p.pos += size
	}
}

// or parses alternatives. It returns nil if there are only settings.
func (p *parser) or() *Node {
	first := p.and()
	var kids []*Node
	if first != nil {
		kids = append(kids, first)
	}
	for {
		at := p.pos
		if !p.keyword("or") {
			break
		}
		if first == nil || p.endsHere() {
			p.fail(token{at: at, length: 2}, "or needs a term on both sides; to search for the word, write \"or\"")
		}
		p.enter('|')
		kid := p.and()
		p.leave()
		if kid == nil {
			p.fail(token{at: at, length: 2}, "or needs a term on both sides; to search for the word, write \"or\"")
		}
		kids = append(kids, kid)
	}
	if len(kids) < 2 {
		return join(Or, kids)
	}
	filters, kids := scope(kids)
	return join(And, append(slices.Clone(filters), join(Or, kids)))
}

// and parses terms that all have to match.
func (p *parser) and() *Node {
	var kids []*Node
	for first := true; ; first = false {
		p.space()
		if p.endsHere() || p.peekKeyword("or") {
			return join(And, kids)
		}
		at := p.pos
		if p.keyword("and") {
			p.space()
			if first || p.endsHere() || p.peekKeyword("or") || p.peekKeyword("and") {
				p.fail(token{at: at, length: 3}, "and needs a term on both sides; to search for the word, write \"and\"")
			}
		}
		if kid := p.not(); kid != nil {
			kids = append(kids, kid)
		}
	}
}

// endsHere reports whether the query or the parentheses end.
func (p *parser) endsHere() bool {
	p.space()
	return p.pos == len(p.text) || p.text[p.pos] == ')' && p.inParentheses()
}

func (p *parser) inParentheses() bool { return strings.Contains(string(p.open), "(") }

// not parses a term or its negation.
func (p *parser) not() *Node {
	at := p.pos
	negated := p.keyword("not")
	if negated {
		if p.endsHere() || p.peekKeyword("or") || p.peekKeyword("and") {
			p.fail(token{at: at, length: 3}, "not needs a term after it; to search for the word, write \"not\"")
		}
	} else if p.text[p.pos] == '-' && p.pos+1 < len(p.text) && negates(p.text[p.pos+1:]) {
		negated = true
		p.pos++
	}
	if !negated {
		return p.one()
	}
	p.enter('-')
	n := (*Node)(nil)
	if p.peekKeyword("not") {
		n = p.not()
	} else {
		n = p.one()
	}
	p.leave()
	if n == nil {
		p.fail(token{at: at, length: 3}, "there is nothing to negate")
	}
	return &Node{Op: Not, Kids: []*Node{n}, At: at}
}

// negates reports whether a minus before this text means not. It does not before -> and --flag.
func negates(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return r == '_' || r == '"' || r == '\'' || r == '/' || r == '(' || unicode.IsLetter(r) || unicode.IsDigit(r)
}

// one parses parentheses, a filter, or a word.
func (p *parser) one() *Node {
	if p.terms++; p.terms > maxAtoms {
		p.fail(token{at: p.pos, length: 1}, "the query has too many terms; the maximum is %d", maxAtoms)
	}
	if p.text[p.pos] == '(' && p.isGroup() {
		at := p.pos
		p.pos++
		p.enter('(')
		n := p.or()
		if p.endsHere(); p.pos == len(p.text) {
			p.fail(token{at: at, length: 1}, "missing closing parenthesis")
		}
		p.leave()
		p.pos++
		return n
	}
	begin := p.pos
	if name, ok := p.fieldName(); ok {
		return p.field(name, p.value(name, begin))
	}
	return p.word(p.term(), Any)
}

// isGroup reports whether the parenthesis at p.pos groups: its closing one ends a word. Otherwise it starts a word, as
// in (a|b)c and (*ptr.
func (p *parser) isGroup() bool {
	depth, quote := 0, byte(0)
	for i := p.pos; i < len(p.text); i++ {
		switch c := p.text[i]; {
		case c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' && (i == 0 || strings.IndexByte(" \t\n(:-", p.text[i-1]) >= 0):
			quote = c
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth == 0 {
				return delimiter(p.text[i+1:]) && strings.TrimSpace(p.text[p.pos+1:i]) != ""
			}
		}
	}
	return strings.ContainsAny(p.text[p.pos:], " \t\n") // "(a b" misses its end; "(*ptr" is a word
}

// delimiter reports whether a word may end before s.
func delimiter(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return s == "" || r == ')' || unicode.IsSpace(r)
}

// peekKeyword reports whether a keyword follows.
func (p *parser) peekKeyword(word string) bool {
	p.space()
	end := p.pos + len(word)
	return end <= len(p.text) && strings.EqualFold(p.text[p.pos:end], word) &&
		(end == len(p.text) || strings.IndexByte("()", p.text[end]) >= 0 || delimiter(p.text[end:]))
}

func (p *parser) keyword(word string) bool {
	if !p.peekKeyword(word) {
		return false
	}
	p.pos += len(word)
	p.space()
	return true
}

// fieldName parses the name of a filter and its colon.
func (p *parser) fieldName() (name string, ok bool) {
	end := p.pos
	for end < len(p.text) && isWord(p.text[end]) {
		end++
	}
	if end == len(p.text) || p.text[end] != ':' {
		return "", false
	}
	if name, ok = fields[strings.ToLower(p.text[p.pos:end])]; ok {
		p.pos = end + 1
	}
	return name, ok
}

// value parses the value of a filter that starts at begin.
func (p *parser) value(name string, begin int) token {
	if p.pos == len(p.text) || delimiter(p.text[p.pos:]) {
		p.fail(token{at: begin, length: p.pos - begin}, "%s: needs a value, without a space before it", name)
	}
	v := p.term()
	if v.slashed && name != "content" && name != "sym" { // /re/ is a path like any other there
		v = token{text: p.text[v.at : v.at+v.length], at: v.at, length: v.length}
	}
	if v.text == "" {
		p.fail(v, "%s: is empty", name)
	}
	return v
}

// term parses a word, a quoted text, or /re/.
func (p *parser) term() token {
	begin := p.pos
	switch c := p.text[p.pos]; c {
	case '"', '\'':
		if text, end, ok := enclosed(p.text[p.pos:], c); ok && delimiter(p.text[p.pos+end:]) {
			p.pos += end
			if text == "" {
				p.fail(token{at: begin, length: end}, "the quotes are empty")
			}
			return token{text: text, at: begin, length: end, quoted: true}
		} else if !ok && c == '"' {
			p.fail(token{at: begin, length: 1}, "missing closing quote; to search for a quote, write '\"'")
		}
	case '/':
		if text, end, ok := enclosed(p.text[p.pos:], c); ok && text != "" && delimiter(p.text[p.pos+end:]) {
			p.pos += end
			return token{text: text, at: begin, length: end, slashed: true}
		}
	}
	depth := 0
	for p.pos < len(p.text) {
		r, size := utf8.DecodeRuneInString(p.text[p.pos:])
		switch {
		case unicode.IsSpace(r):
			return p.since(begin)
		case r == '\\' && p.pos+1 < len(p.text):
			_, next := utf8.DecodeRuneInString(p.text[p.pos+1:])
			size += next
		case r == '(':
			depth++
		case r == ')' && depth == 0 && p.inParentheses():
			return p.since(begin)
		case r == ')':
			depth = max(0, depth-1)
		}
		p.pos += size
	}
	return p.since(begin)
}

func (p *parser) since(begin int) token {
	return token{text: p.text[begin:p.pos], at: begin, length: p.pos - begin}
}

// enclosed parses the text between two equal delimiters. After a backslash a delimiter, and in quotes a backslash,
// stands for itself.
func enclosed(s string, quote byte) (text string, length int, ok bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == quote:
			return b.String(), i + 1, true
		case c == '\\' && i+1 < len(s):
			i++
			if s[i] != quote && (quote == '/' || s[i] != '\\') {
				b.WriteByte(c)
			}
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", 0, false
}

// join returns one node for several.
func join(op Op, kids []*Node) *Node {
	switch len(kids) {
	case 0:
		return nil
	case 1:
		return kids[0]
	}
	return &Node{Op: op, Kids: kids, At: kids[0].At}
}
