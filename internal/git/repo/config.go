package repo

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// maxConfig is the maximum size of a repository's config file in bytes.
const maxConfig = 1 << 20

// Config is a repository's own configuration file (git-config(1), "Syntax"). Includes are not followed, because a
// repository must not make the server read other files. Keys are "section.key" or "section.subsection.key", with
// section and key in lower case.
type Config struct {
	variables []variable     // in the order of the file
	last      map[string]int // index of each key's last value
}

// variable is one line of a config.
type variable struct {
	key, value string
	bare       bool // a key without "=", whose value is "true"
}

func (c *Config) add(v variable) {
	if c.last == nil {
		c.last = make(map[string]int)
	}
	c.last[v.key] = len(c.variables)
	c.variables = append(c.variables, v)
}

// Get returns the last value of a key.
func (c Config) Get(key string) (string, bool) {
	i, ok := c.last[key]
	if !ok {
		return "", false
	}
	return c.variables[i].value, true
}

// Bool returns the last value of a key as a boolean, or the default if it has none (git-config(1), "Values").
func (c Config) Bool(key string, standard bool) (bool, error) {
	i, ok := c.last[key]
	if !ok {
		return standard, nil
	}
	err := c.variables[i].readBool(&standard)
	return standard, err
}

// All iterates over all keys and values in the order of the file.
func (c Config) All() iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		for _, v := range c.variables {
			if !yield(v.key, v.value) {
				return
			}
		}
	}
}

// damaged returns the error for an invalid value.
func (v variable) damaged(want string) error {
	return fault.New(fault.Corrupt, "the repository's config has a %.80s that is not %s", v.key, want)
}

// readBool reads a boolean. A key without a value is true.
func (v variable) readBool(to *bool) error {
	is, ok := ParseBool(v.value)
	if !ok {
		return v.damaged("true or false")
	}
	*to = is
	return nil
}

// ParseBool parses a boolean of Git's configuration: a word, or a number, of which 0 is false.
func ParseBool(s string) (is, ok bool) {
	switch strings.ToLower(s) {
	case "true", "yes", "on":
		return true, true
	case "false", "no", "off", "":
		return false, true
	}
	n, ok := parseInt(s)
	return n != 0, ok
}

// int reads an integer of 32 bits.
func (v variable) int() (int32, error) {
	n, ok := parseInt(v.value)
	if !ok || v.bare {
		return 0, v.damaged("a whole number")
	}
	return n, nil
}

// unsigned reads an unsigned integer of 64 bits.
func (v variable) unsigned() (uint64, error) {
	n, ok := git.ParseSize(v.value)
	if !ok || v.bare {
		return 0, v.damaged(`a whole number with an optional unit (k, m or g), as in "50g"`)
	}
	return n, nil
}

// parseInt parses an integer of 32 bits with an optional unit (k, m or g).
func parseInt(s string) (int32, bool) {
	digits, unit := git.CutUnit(s)
	n, ok := git.ParseInt(digits, 64)
	return int32(n * unit), ok && n <= math.MaxInt32/unit && n >= -math.MaxInt32/unit
}

// ParseConfig parses the text of a config file.
func ParseConfig(text string) (Config, error) {
	p := &configParser{text: strings.TrimPrefix(text, "\ufeff"), line: 1}
	if err := p.parse(); err != nil {
		return Config{}, fault.Wrap(fault.Corrupt, "the repository's config cannot be read", err)
	}
	return p.config, nil
}

type configParser struct {
	text    string
	at      int
	line    int
	section string // ends with a dot; "" before the first header
	config  Config
}

// eof is the result of peek at the end. A config does not contain it.
const eof = 0

func (p *configParser) peek() byte {
	if p.at >= len(p.text) {
		return eof
	}
	if p.text[p.at] == '\r' && p.at+1 < len(p.text) && p.text[p.at+1] == '\n' {
		return '\n'
	}
	return p.text[p.at]
}

func (p *configParser) next() byte {
	c := p.peek()
	if p.at < len(p.text) {
		if c == '\n' {
			if p.text[p.at] == '\r' {
				p.at++
			}
			p.line++
		}
		p.at++
	}
	return c
}

func (p *configParser) bad(what string) error { return fmt.Errorf("line %d: %s", p.line, what) }

func (p *configParser) parse() error {
	if i := strings.IndexByte(p.text, 0); i >= 0 {
		return errors.New("it contains a NUL byte")
	}
	for {
		switch c := p.next(); {
		case c == eof:
			return nil
		case isSpace(c):
		case c == '#' || c == ';':
			p.skipLine()
		case c == '[':
			if err := p.header(); err != nil {
				return err
			}
		case isLetter(c):
			if err := p.variable(c); err != nil {
				return err
			}
		default:
			return p.bad("invalid line: want a section, a key or a comment")
		}
	}
}

func (p *configParser) skipLine() {
	for c := p.peek(); c != eof && c != '\n'; c = p.peek() {
		p.next()
	}
}

// isSpace reports whether git treats c as a space. A carriage return is a space unless it is part of a line end.
func isSpace(c byte) bool  { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }
func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
func isKeyChar(c byte) bool {
	return isLetter(c) || '0' <= c && c <= '9' || c == '-'
}

// header reads [section], [section "subsection"] or the old [section.subsection].
func (p *configParser) header() error {
	var name strings.Builder
	for {
		switch c := p.next(); {
		case isKeyChar(c) || c == '.':
			name.WriteByte(c)
		case c == ']' && name.Len() > 0:
			p.section = strings.ToLower(name.String()) + "."
			return nil
		case isSpace(c) && c != '\n':
			return p.subsection(strings.ToLower(name.String()))
		default:
			return p.bad("invalid section header")
		}
	}
}

func (p *configParser) subsection(section string) error {
	for c := p.peek(); isSpace(c) && c != '\n'; c = p.peek() {
		p.next()
	}
	if p.next() != '"' {
		return p.bad("invalid section header")
	}
	var name strings.Builder
	for {
		switch c := p.next(); c {
		case eof, '\n':
			return p.bad("unterminated subsection name")
		case '"':
			if p.next() != ']' {
				return p.bad("invalid section header")
			}
			p.section = section + "." + name.String() + "."
			return nil
		case '\\':
			if c = p.next(); c == eof || c == '\n' {
				return p.bad("unterminated subsection name")
			}
			name.WriteByte(c)
		default:
			name.WriteByte(c)
		}
	}
}

// variable reads "key = value" or a key alone, which is true.
func (p *configParser) variable(first byte) error {
	var key strings.Builder
	key.WriteByte(first)
	for isKeyChar(p.peek()) {
		key.WriteByte(p.next())
	}
	for c := p.peek(); c == ' ' || c == '\t'; c = p.peek() {
		p.next()
	}
	name := p.section + strings.ToLower(key.String())
	switch p.next() {
	case eof, '\n':
		p.config.add(variable{key: name, value: "true", bare: true})
		return nil
	case '=':
	default:
		return p.bad("invalid key")
	}
	value, err := p.value()
	if err != nil {
		return err
	}
	p.config.add(variable{key: name, value: value})
	return nil
}

// value reads a value to the end of the line, with quotes, escapes, continuation lines and comments. Outer spaces are
// removed.
func (p *configParser) value() (string, error) {
	var b strings.Builder
	quoted, spaces := false, 0
	for {
		c := p.next()
		switch {
		case (c == eof || c == '\n') && quoted:
			return "", p.bad("unterminated quote")
		case c == eof || c == '\n':
			return b.String(), nil
		case isSpace(c) && !quoted:
			if b.Len() > 0 {
				spaces++
			}
			continue
		case (c == '#' || c == ';') && !quoted:
			p.skipLine()
			continue
		}
		for ; spaces > 0; spaces-- {
			b.WriteByte(' ')
		}
		switch c {
		case '"':
			quoted = !quoted
		case '\\':
			if err := p.escape(&b); err != nil {
				return "", err
			}
		default:
			b.WriteByte(c)
		}
	}
}

// escape reads an escape sequence after its backslash.
func (p *configParser) escape(b *strings.Builder) error {
	switch c := p.next(); c {
	case eof, '\n':
	case 't':
		b.WriteByte('\t')
	case 'b':
		b.WriteByte('\b')
	case 'n':
		b.WriteByte('\n')
	case '\\', '"':
		b.WriteByte(c)
	default:
		return p.bad("invalid escape sequence")
	}
	return nil
}
