package web

import (
	"fmt"
	"html"
	"strings"
	"unicode/utf8"
)

// piece is a part of a line.
type piece struct {
	Text    string
	Hit     bool // a match
	Control bool // the name of an invisible character
}

// deceives reports whether a character is invisible or changes the order in which browsers show its neighbours, so that
// code reads differently from what it does (CVE-2021-42574).
func deceives(r rune) bool {
	switch {
	// writing direction
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f, r == 0x061c:
		return true
	case r >= 0x200b && r <= 0x200d, r == 0x2060, r == 0xfeff, r == 0x00ad: // zero width
		return true
	}
	return r < ' ' && r != '\t' || r == 0x7f
}

// named returns the text that is shown for such a character.
func named(r rune) string { return fmt.Sprintf("U+%04X", r) }

// appendPieces appends the pieces of text. Invalid UTF-8 becomes U+FFFD.
func appendPieces(to []piece, text string, hit bool) []piece {
	for len(text) > 0 {
		i := strings.IndexFunc(text, deceives)
		if i < 0 {
			i = len(text)
		}
		if i > 0 {
			to = append(to, piece{Text: strings.ToValidUTF8(text[:i], "\ufffd"), Hit: hit})
		}
		if i == len(text) {
			break
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		if r != '\r' || i+n < len(text) { // the end of a line is not shown
			to = append(to, piece{Text: named(r), Control: true})
		}
		text = text[i+n:]
	}
	return to
}

// writeText writes text as HTML.
func writeText(b *strings.Builder, text string) {
	for len(text) > 0 {
		i := strings.IndexFunc(text, deceives)
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

// shorten returns at most the first limit bytes of text, in whole characters, and whether it removed any.
func shorten(text string, limit int) (string, bool) {
	if len(text) <= limit {
		return text, false
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit], true
}
