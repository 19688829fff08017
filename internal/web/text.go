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
	Hit     bool // it was searched for
	Control bool // it stands for a character that cannot be seen
}

// deceives tells whether a character changes how those around it are shown, so that text reads differently from what it
// is (CVE-2021-42574), or is shown as nothing at all.
func deceives(r rune) bool {
	switch {
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f, r == 0x061c: // order of writing
		return true
	case r >= 0x200b && r <= 0x200d, r == 0x2060, r == 0xfeff, r == 0x00ad: // nothing to see
		return true
	}
	return r < ' ' && r != '\t' || r == 0x7f
}

// named is how such a character is shown.
func named(r rune) string { return fmt.Sprintf("U+%04X", r) }

// appendPieces cuts text into what can be shown. What is no UTF-8 becomes U+FFFD.
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
		if r != '\r' || i+n < len(text) { // of a line's end nobody wants to know
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

// shorten cuts text off behind limit bytes, between two characters.
func shorten(text string, limit int) (string, bool) {
	if len(text) <= limit {
		return text, false
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit], true
}
