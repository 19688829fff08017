package schema

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds in bytes: of a chunk's content, so that a line without end is shown around what was found; and of what is written of one result
// (Whole apart), so that an event stays far below the 10 MiB that clients read.
const (
	maxChunk  = 64 << 10
	before    = 1 << 10 // of a chunk that is too long, before what was found
	maxResult = 1 << 20
)

// Append adds a result to dst: an element of an array, without comma. It allocates nothing where dst has room.
func (f Format) Append(dst []byte, r *File) []byte {
	switch f {
	case StreamLines, StreamChunks:
		return appendStream(dst, r, f == StreamChunks)
	case GraphQL:
		return appendGraphQL(dst, r)
	}
	return appendAPI(dst, r)
}

// appendAPI writes our own form. Its ranges are code points of the line: where they begin, and where they end.
func appendAPI(dst []byte, r *File) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, typeOf(r.Kind)...)
	dst = append(dst, `","repository":`...)
	dst = appendString(dst, Name(r.Repository))
	if r.Kind == Repository {
		return append(dst, '}')
	}
	dst = append(dst, `,"path":`...)
	dst = appendString(dst, r.Path)
	dst = append(dst, `,"commit":`...)
	dst = appendString(dst, r.Commit)
	dst = append(dst, `,"branches":`...)
	dst = appendStrings(dst, r.Branches)
	if r.Language != "" {
		dst = append(dst, `,"language":`...)
		dst = appendString(dst, r.Language)
	}
	dst = append(dst, `,"url":`...)
	dst = appendFileURL(dst, r)
	if r.Unindexed {
		dst = append(dst, `,"unindexed":true`...)
	}
	if len(r.PathRanges) > 0 {
		dst = append(dst, `,"path_ranges":`...)
		dst = appendSpans(dst, r.PathRanges)
	}
	dst = append(dst, `,"lines":[`...)
	if r.Kind != Path {
		dst = appendLines(dst, r, API)
	}
	return append(dst, "]}"...)
}

// appendStream writes the form of Sourcegraph's stream.
func appendStream(dst []byte, r *File, chunks bool) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, typeOf(r.Kind)...)
	if r.Kind == Repository {
		dst = append(dst, `","repository":`...)
		return append(appendString(dst, Name(r.Repository)), '}')
	}
	dst = append(dst, `","path":`...)
	dst = appendString(dst, r.Path)
	dst = append(dst, `,"repository":`...)
	dst = appendString(dst, Name(r.Repository))
	dst = append(dst, `,"branches":`...)
	dst = appendStrings(dst, r.Branches)
	dst = append(dst, `,"commit":`...)
	dst = appendString(dst, r.Commit)
	switch {
	case r.Kind == Symbol:
		dst = append(dst, `,"symbols":[`...)
		dst = append(appendSymbols(dst, r), ']')
	case r.Kind == Path && len(r.PathRanges) > 0:
		dst = append(dst, `,"pathMatches":`...)
		dst = appendRanges(dst, r.PathRanges)
	case r.Kind == Path:
	case chunks:
		dst = append(dst, `,"chunkMatches":[`...)
		dst = append(appendChunks(dst, r), ']')
	default:
		dst = append(dst, `,"lineMatches":[`...)
		dst = append(appendLines(dst, r, StreamLines), ']')
	}
	return append(dst, '}')
}

// appendGraphQL writes the form of Sourcegraph's GraphQL API.
func appendGraphQL(dst []byte, r *File) []byte {
	if r.Kind == Repository {
		dst = append(dst, `{"__typename":"Repository","name":`...)
		dst = appendString(dst, Name(r.Repository))
		dst = append(dst, `,"url":`...)
		return append(appendRepositoryURL(dst, r.Repository), '}')
	}
	dst = append(dst, `{"__typename":"FileMatch","repository":{"name":`...)
	dst = appendString(dst, Name(r.Repository))
	dst = append(dst, `,"url":`...)
	dst = appendRepositoryURL(dst, r.Repository)
	dst = append(dst, `},"file":{"name":`...)
	dst = appendString(dst, r.Path[strings.LastIndexByte(r.Path, '/')+1:])
	dst = append(dst, `,"path":`...)
	dst = appendString(dst, r.Path)
	dst = append(dst, `,"url":`...)
	dst = appendFileURL(dst, r)
	dst = append(dst, `,"content":`...)
	dst = appendString(dst, r.Whole)
	dst = append(dst, `,"commit":{"oid":`...)
	dst = appendString(dst, r.Commit)
	dst = append(dst, `}},"lineMatches":[`...)
	if r.Kind != Path {
		dst = appendLines(dst, r, GraphQL)
	}
	dst = append(dst, `],"symbols":[`...)
	if r.Kind == Symbol {
		dst = appendSymbols(dst, r)
	}
	return append(dst, "]}"...)
}

func typeOf(k Kind) string { return [...]string{"content", "path", "symbol", "repo"}[k] }

// appendChunks writes chunkMatches.
func appendChunks(dst []byte, r *File) []byte {
	begin, comma := len(dst), false
	for i := range r.Chunks {
		if len(dst)-begin > maxResult {
			break
		}
		c := r.Chunks[i].bounded()
		if comma {
			dst = append(dst, ',')
		}
		comma = true
		dst = append(dst, `{"content":`...)
		dst = appendString(dst, c.Content)
		dst = append(dst, `,"contentStart":`...)
		dst = appendPosition(dst, c.Start)
		dst = append(dst, `,"ranges":`...)
		dst = append(appendRanges(dst, c.Ranges), '}')
	}
	return dst
}

// appendRanges writes an array of ranges.
func appendRanges(dst []byte, ranges []Range) []byte {
	dst = append(dst, '[')
	for i := range ranges {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"start":`...)
		dst = appendPosition(dst, ranges[i].Start)
		dst = append(dst, `,"end":`...)
		dst = append(appendPosition(dst, ranges[i].End), '}')
	}
	return append(dst, ']')
}

func appendPosition(dst []byte, p Position) []byte {
	dst = append(dst, `{"offset":`...)
	dst = strconv.AppendInt(dst, int64(p.Offset), 10)
	dst = append(dst, `,"line":`...)
	dst = strconv.AppendInt(dst, int64(p.Line), 10)
	dst = append(dst, `,"column":`...)
	return append(strconv.AppendInt(dst, int64(p.Column), 10), '}')
}

// appendLines writes the lines that have something that was found: our own form, or lineMatches of the stream and of GraphQL.
func appendLines(dst []byte, r *File, form Format) []byte {
	begin, comma := len(dst), false
	for i := range r.Chunks {
		for l := linesOf(r.Chunks[i].bounded()); l.next(); {
			if len(dst)-begin > maxResult {
				return dst
			}
			if comma {
				dst = append(dst, ',')
			}
			comma = true
			if form == API {
				dst = l.appendOwn(dst)
				continue
			}
			text, end := `{"line":`, "}"
			if form == GraphQL {
				text, end = `{"preview":`, `,"limitHit":false}`
			}
			dst = append(dst, text...)
			dst = appendString(dst, l.text)
			dst = append(dst, `,"lineNumber":`...)
			dst = strconv.AppendInt(dst, int64(l.number), 10)
			dst = append(dst, `,"offsetAndLengths":`...)
			dst = append(l.appendSpans(dst, false), end...)
		}
	}
	return dst
}

// appendOwn writes a line in our own form.
func (l *lines) appendOwn(dst []byte) []byte {
	dst = append(dst, `{"line":`...)
	dst = strconv.AppendInt(dst, int64(l.number)+1, 10)
	dst = append(dst, `,"text":`...)
	dst = appendString(dst, l.text)
	dst = append(dst, `,"ranges":`...)
	dst = l.appendSpans(dst, true)
	if s := l.ranges[0].Symbol; s != nil {
		dst = append(dst, `,"symbol":`...)
		dst = appendString(dst, s.Kind)
	}
	return append(dst, '}')
}

// appendSymbols writes the symbols that were found.
func appendSymbols(dst []byte, r *File) []byte {
	begin, comma := len(dst), false
	for i := range r.Chunks {
		for j := range r.Chunks[i].Ranges {
			at := &r.Chunks[i].Ranges[j]
			if at.Symbol == nil || len(dst)-begin > maxResult {
				continue
			}
			if comma {
				dst = append(dst, ',')
			}
			comma = true
			dst = append(dst, `{"url":`...)
			dst = appendFileURL(dst, r)
			dst = append(dst[:len(dst)-1], "#L"...)
			dst = strconv.AppendInt(dst, int64(at.Start.Line)+1, 10)
			dst = append(dst, `","name":`...)
			dst = appendString(dst, at.Symbol.Name)
			dst = append(dst, `,"containerName":`...)
			dst = appendString(dst, at.Symbol.Container)
			dst = append(dst, `,"kind":`...)
			dst = appendString(dst, at.Symbol.Kind)
			dst = append(dst, `,"line":`...)
			dst = append(strconv.AppendInt(dst, int64(at.Start.Line)+1, 10), '}')
		}
	}
	return dst
}

// appendSpans writes ranges of one line as pairs of where they begin and end.
func appendSpans(dst []byte, ranges []Range) []byte {
	dst = append(dst, '[')
	for i := range ranges {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendPair(dst, ranges[i].Start.Column, ranges[i].End.Column)
	}
	return append(dst, ']')
}

func appendPair(dst []byte, a, b int) []byte {
	dst = append(dst, '[')
	dst = strconv.AppendInt(dst, int64(a), 10)
	dst = append(dst, ',')
	return append(strconv.AppendInt(dst, int64(b), 10), ']')
}

// bounded is a chunk whose content is not too long: it begins shortly before what was found first.
func (c Chunk) bounded() Chunk {
	if len(c.Content) <= maxChunk || len(c.Ranges) == 0 {
		c.Content = c.Content[:min(len(c.Content), maxChunk)]
		return c
	}
	first := c.Ranges[0].Start
	if skip := first.Offset - c.Start.Offset - before; skip > 0 && skip < len(c.Content) && first.Line == c.Start.Line {
		for skip > 0 && !utf8.RuneStart(c.Content[skip]) {
			skip--
		}
		c.Start.Column += utf8.RuneCount(c.Content[:skip])
		c.Start.Offset += skip
		c.Content = c.Content[skip:]
	}
	end := min(len(c.Content), maxChunk)
	for end < len(c.Content) && end > 0 && !utf8.RuneStart(c.Content[end]) {
		end--
	}
	c.Content = c.Content[:end]
	n := len(c.Ranges)
	for n > 1 && c.Ranges[n-1].End.Offset > c.Start.Offset+end {
		n--
	}
	c.Ranges = c.Ranges[:n]
	return c
}

// lines walks over the lines of a chunk that have something that was found.
type lines struct {
	rest   []byte
	todo   []Range // that reach into lines from here on
	number int     // of the line that comes next; after next: of text
	column int     // where text begins in its line
	first  bool

	text   []byte
	ranges []Range // that reach into the line
}

func linesOf(c Chunk) lines {
	return lines{rest: c.Content, todo: c.Ranges, number: c.Start.Line - 1, column: c.Start.Column, first: true}
}

func (l *lines) next() bool {
	for len(l.rest) > 0 && len(l.todo) > 0 {
		l.number++
		if !l.first {
			l.column = 0
		}
		l.first = false
		l.text = l.rest
		if i := bytes.IndexByte(l.rest, '\n'); i >= 0 {
			l.text, l.rest = l.rest[:i], l.rest[i+1:]
		} else {
			l.rest = nil
		}
		l.text = bytes.TrimSuffix(l.text, []byte{'\r'})
		for len(l.todo) > 0 && l.todo[0].End.Line < l.number {
			l.todo = l.todo[1:]
		}
		n := 0
		for n < len(l.todo) && l.todo[n].Start.Line <= l.number {
			n++
		}
		if n > 0 {
			l.ranges = l.todo[:n]
			if l.endsHere(n) { // what ends at the begin of a line was found in those before
				continue
			}
			return true
		}
	}
	return false
}

// endsHere tells whether nothing of the first n ranges is in the line but that they end at its begin.
func (l *lines) endsHere(n int) bool {
	for i := range l.ranges[:n] {
		if r := &l.ranges[i]; r.Start.Line == l.number || r.End.Line > l.number || r.End.Column > 0 {
			return false
		}
	}
	return true
}

// appendSpans writes the parts of the ranges that are in the line: where they begin and end, or where they begin and how long they are.
func (l *lines) appendSpans(dst []byte, ends bool) []byte {
	dst = append(dst, '[')
	length := -1 // of the line, in code points
	for i := range l.ranges {
		r := &l.ranges[i]
		from, to := 0, r.End.Column-l.column
		if r.Start.Line == l.number {
			from = max(0, r.Start.Column-l.column)
		}
		if r.End.Line > l.number {
			if length < 0 {
				length = utf8.RuneCount(l.text)
			}
			to = length
		}
		if !ends {
			to -= from
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendPair(dst, from, max(0, to))
	}
	return append(dst, ']')
}

// appendFileURL writes where a browser shows the file as it was searched.
func appendFileURL(dst []byte, r *File) []byte {
	dst = append(dst, `"/-/blob/`...)
	dst = appendEscaped(dst, r.Repository)
	dst = append(dst, '/')
	dst = appendEscaped(dst, r.Commit)
	dst = append(dst, '/')
	return append(appendEscaped(dst, r.Path), '"')
}

// appendRepositoryURL writes where the repository is.
func appendRepositoryURL(dst []byte, name string) []byte {
	dst = append(dst, `"/`...)
	return append(appendEscaped(dst, name), '"')
}

// appendEscaped writes a path as it stands in URLs (RFC 3986, section 3.3), slashes as they are. Nothing in it needs escapes in JSON.
func appendEscaped(dst []byte, path string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(path) {
		switch c := path[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '/', c == '-', c == '_', c == '.', c == '~', c == '@', c == '+', c == '=', c == ',':
			dst = append(dst, c)
		default:
			dst = append(dst, '%', digits[c>>4], digits[c&15])
		}
	}
	return dst
}

func appendStrings(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, s)
	}
	return append(dst, ']')
}

// plain are the bytes that stand for themselves in a JSON string.
var plain = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\' && c != 0x7f
	}
	return t
}()

// appendString writes a JSON string. What is not UTF-8 becomes U+FFFD, as encoding/json does it; lines' ends that JavaScript knows and others do not
// are escaped.
func appendString[S string | []byte](dst []byte, s S) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := decodeRune(s[i:])
			if (r != utf8.RuneError || size > 1) && r != '\u2028' && r != '\u2029' {
				i += size
				continue
			}
			dst = append(dst, s[start:i]...)
			if r == utf8.RuneError {
				dst = append(dst, `\ufffd`...)
			} else {
				dst = append(dst, `\u202`...)
				dst = append(dst, digits[r&15])
			}
			i += size
			start = i
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// decodeRune reads the code point that s begins with.
func decodeRune[S string | []byte](s S) (rune, int) {
	var b [utf8.UTFMax]byte
	n := copy(b[:], s)
	return utf8.DecodeRune(b[:n])
}

// RepositoryURL is where a repository is, as it stands in results.
func RepositoryURL(name string) string { return "/" + string(appendEscaped(nil, name)) }
