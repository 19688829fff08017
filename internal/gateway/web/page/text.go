package page

import (
	"fmt"
	"html"
	"strings"
	"unicode"
	"unicode/utf8"

	g "maragu.dev/gomponents"
)

// Piece is a part of a line.
type Piece struct {
	Text    string
	Hit     bool // a match
	Control bool // the name of an invisible character
}

// deceiving are characters that are invisible or change the order in which browsers show their neighbours.
var deceiving = []*unicode.RangeTable{unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Variation_Selector,
	unicode.Other_Default_Ignorable_Code_Point}

// Deceives reports whether a character is invisible or changes the order in which browsers show its neighbours, so that
// code reads differently from what it does (CVE-2021-42574).
func Deceives(r rune) bool {
	if r < 0x7f {
		return r < ' ' && r != '\t'
	}
	const blank = 0x2800 // of Braille
	return unicode.In(r, deceiving...) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r) || r == blank
}

const (
	joiner    = 0x200d // of emoji, and of letters
	emojiForm = 0xfe0f // makes a symbol an emoji
)

// indexDeceiving returns the index of the first character that deceives; -1 without one. Those within emoji do not.
func indexDeceiving(text string) int {
	isSymbol := func(r rune) bool {
		return r > 0xff && r != utf8.RuneError && unicode.In(r, unicode.So, unicode.Sk, unicode.Sm)
	}
	var last rune
	for i, r := range text {
		if Deceives(r) && !(r == emojiForm && isSymbol(last)) {
			next, _ := utf8.DecodeRuneInString(text[i+utf8.RuneLen(r):])
			if r != joiner || last != emojiForm && !isSymbol(last) || !isSymbol(next) {
				return i
			}
		}
		last = r
	}
	return -1
}

// named returns the text that is shown for such a character.
func named(r rune) string { return fmt.Sprintf("U+%04X", r) }

const maxPieces = 10_000 // of one text

// AppendPieces appends the pieces of text. Invalid UTF-8 becomes U+FFFD.
func AppendPieces(to []Piece, text string, hit bool) []Piece {
	for len(text) > 0 {
		if len(to) > maxPieces {
			return append(to, Piece{Text: "the rest is not shown", Control: true})
		}
		i := indexDeceiving(text)
		if i < 0 {
			i = len(text)
		}
		if i > 0 {
			to = append(to, Piece{Text: strings.ToValidUTF8(text[:i], "\ufffd"), Hit: hit})
		}
		if i == len(text) {
			break
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		if r != '\r' || i+n < len(text) { // the end of a line is not shown
			to = append(to, Piece{Text: named(r), Control: true})
		}
		text = text[i+n:]
	}
	return to
}

// WriteText writes text as HTML.
func WriteText(b *strings.Builder, text string) {
	for len(text) > 0 {
		i := indexDeceiving(text)
		if i < 0 {
			i = len(text)
		}
		b.WriteString(html.EscapeString(strings.ToValidUTF8(text[:i], "\ufffd")))
		if i == len(text) {
			break
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		b.WriteString(`<b class="ctl">` + named(r) + `</b>`)
		text = text[i+n:]
	}
}

// Shorten returns at most the first limit bytes of text, in whole characters, and whether it removed any.
func Shorten(text string, limit int) (string, bool) {
	if len(text) <= limit {
		return text, false
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit], true
}

// Text returns text of a repository as a node. Characters that deceive are shown.
func Text(text string) g.Node { return Render(AppendPieces(nil, text, false)) }

// Block returns text of several lines as a node.
func Block(text string) g.Node {
	var b strings.Builder
	for line := range strings.Lines(text) {
		WriteText(&b, strings.TrimRight(line, "\r\n"))
		b.WriteByte('\n')
	}
	return g.Raw(b.String())
}

// Visible returns text of a repository where it cannot be a node: in titles and attributes.
func Visible(text string) string {
	var b strings.Builder
	for _, p := range AppendPieces(nil, text, false) {
		b.WriteString(p.Text)
	}
	return b.String()
}

// Short returns the start of an object ID.
func Short(id string) string { return id[:min(len(id), 10)] }
