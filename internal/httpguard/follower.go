package httpguard

import (
	"bytes"
	"strconv"

	"golang.org/x/net/http/httpguts"
)

// follower follows the bytes that a client sends from one request to the next. It checks each line outside of bodies
// (RFC 9112, sections 2 to 7) and accepts only what has a single meaning. It keeps an incomplete line, and nothing of a
// body.
type follower struct {
	state  state
	line   []byte // incomplete line
	blanks int    // empty lines before the request line
	left   int64  // bytes of the body or the chunk

	isHEAD, isOld               bool // method HEAD; HTTP/1.0
	hasHost, hasLength, chunked bool
}

type state int

const (
	requestLine state = iota
	fieldLine
	inBody // from here on: states after the head
	sizeLine
	inChunk
	chunkEnd
	trailerLine
)

const (
	maxBlanks = 2    // some clients send empty lines after a body
	maxSize   = 1024 // bytes of a line with a chunk's size and its extensions
	maxPadded = 8    // digits of a chunk's size that begins with 0
	maxDigits = 18   // of Content-Length
)

// inHead reports whether the next byte belongs to a head.
func (f *follower) inHead() bool { return f.state < inBody }

// isBetween reports whether no byte of a request has come.
func (f *follower) isBetween() bool { return f.state == requestLine && len(f.line) == 0 }

// follow takes the next bytes. It returns how many of them are correct: all, or those before the end of a request or
// before a fault.
func (f *follower) follow(p []byte) (n int, bad *Refusal) {
	for n < len(p) {
		if f.state == inBody || f.state == inChunk {
			took := min(f.left, int64(len(p)-n))
			n += int(took)
			if f.left -= took; f.left > 0 {
				return n, nil
			}
			if f.state == inBody {
				f.reset()
				return n, nil
			}
			f.state = chunkEnd
			continue
		}
		line, took, bad := f.cutLine(p[n:])
		if n += took; bad != nil || line == nil {
			return n, bad
		}
		if bad = f.check(line); bad != nil {
			return n, bad
		}
		n++ // the line feed
		if f.line = f.line[:0]; f.isBetween() && f.blanks == 0 {
			return n, nil
		}
	}
	return n, nil
}

// cutLine returns the next line without its line feed, and how many bytes before that are new. A nil line is not
// complete yet.
func (f *follower) cutLine(p []byte) (line []byte, took int, bad *Refusal) {
	if f.isBetween() && p[0] != '\r' && !httpguts.IsTokenRune(rune(p[0])) {
		if p[0] == 0 && f.blanks == maxBlanks { // as a PROXY protocol header of version 2 begins
			return nil, 0, proxyHeader
		}
		return nil, 0, badLine
	}
	limit := len(p) + 1
	switch f.state {
	case sizeLine:
		limit = maxSize - len(f.line)
	case chunkEnd:
		limit = len("\r\n") - len(f.line)
	}
	window := p[:min(limit, len(p))]
	i := bytes.IndexByte(window, '\n')
	switch {
	case i < 0 && len(window) == limit:
		return nil, len(window), badChunk
	case i < 0:
		f.line = append(f.line, window...)
		return nil, len(window), nil
	case len(f.line) == 0:
		return window[:i:i], i, nil
	}
	f.line = append(f.line, window[:i]...)
	return f.line, i, nil
}

// check checks a line, which should end with CR.
func (f *follower) check(line []byte) *Refusal {
	text, ok := bytes.CutSuffix(line, []byte("\r"))
	isChunk := f.state == sizeLine || f.state == chunkEnd
	for _, c := range text {
		switch {
		case c == '\r':
			ok = false
		case (c < ' ' && c != '\t' || c == 0x7f) && !isChunk:
			return control
		case c < ' ' && c != '\t' || c == 0x7f:
			ok = false
		}
	}
	switch {
	case !ok && isChunk:
		return badChunk
	case !ok:
		return badEnd
	}
	switch f.state {
	case requestLine:
		return f.checkRequestLine(text)
	case sizeLine:
		return f.checkSize(text)
	case chunkEnd:
		if f.state = sizeLine; len(text) > 0 {
			return badChunk
		}
		return nil
	}
	if len(text) > 0 {
		return f.checkField(text)
	}
	return f.endFields()
}

func (f *follower) checkRequestLine(text []byte) *Refusal {
	if len(text) == 0 && f.blanks < maxBlanks {
		f.blanks++
		return nil
	}
	method, rest, _ := bytes.Cut(text, []byte(" "))
	target, version, hasVersion := bytes.Cut(rest, []byte(" "))
	f.isHEAD = string(method) == "HEAD"
	switch string(method) {
	case "PROXY":
		if !bytes.HasPrefix(target, []byte("/")) {
			return proxyHeader
		}
	case "PRI":
		if string(target) == "*" {
			return http2
		}
	}
	if !httpguts.ValidHeaderFieldName(string(method)) || !hasVersion || len(target) == 0 {
		return badLine
	}
	isAsterisk := string(target) == "*" && string(method) == "OPTIONS"
	if string(method) == "CONNECT" || target[0] != '/' && !isAsterisk {
		return badTarget
	}
	if bytes.IndexByte(target, '\t') >= 0 || len(version) != len("HTTP/1.1") || !bytes.HasPrefix(version,
		[]byte("HTTP/")) || version[6] != '.' {
		return badLine
	}
	if v := string(version[5:]); v != "1.1" && v != "1.0" {
		return badVersion
	}
	*f = follower{state: fieldLine, line: f.line, isHEAD: f.isHEAD, isOld: version[7] == '0'}
	return nil
}

// checkField checks a field of a head or a trailer.
func (f *follower) checkField(text []byte) *Refusal {
	if text[0] == ' ' || text[0] == '\t' {
		return folded
	}
	name, raw, ok := bytes.Cut(text, []byte(":"))
	if !ok || !httpguts.ValidHeaderFieldName(string(name)) {
		return badName
	}
	value := bytes.Trim(raw, " \t")
	is := func(other string) bool { return len(name) == len(other) && bytes.EqualFold(name, []byte(other)) }
	switch {
	case f.state == trailerLine:
		for _, other := range []string{"host", "content-length", "transfer-encoding", "connection", "trailer", "upgrade",
			"te", "expect"} {
			if is(other) {
				return badTrailer
			}
		}
	case is("host"):
		if f.hasHost || len(value) == 0 {
			return badHost
		}
		f.hasHost = true
	case is("content-length"):
		n, err := strconv.ParseUint(string(value), 10, 63)
		if f.hasLength || err != nil || len(value) > maxDigits || value[0] == '0' && len(value) > 1 {
			return badLength
		}
		f.hasLength, f.left = true, int64(n)
	case is("transfer-encoding"): // other white space than one space is what some read past, and others do not
		if f.chunked || f.isOld || !bytes.EqualFold(bytes.TrimPrefix(raw, []byte(" ")), []byte("chunked")) {
			return badEncoding
		}
		f.chunked = true
	}
	return nil
}

// endFields ends a head or a trailer.
func (f *follower) endFields() *Refusal {
	switch {
	case f.state == trailerLine:
		f.reset()
	case !f.hasHost && !f.isOld:
		return badHost
	case f.chunked && f.hasLength:
		return twoLengths
	case f.chunked:
		f.state = sizeLine
	case f.left > 0:
		f.state = inBody
	default:
		f.reset()
	}
	return nil
}

// checkSize checks the line before a chunk (RFC 9112, section 7.1).
func (f *follower) checkSize(text []byte) *Refusal {
	size, _, _ := bytes.Cut(text, []byte(";"))
	n, err := strconv.ParseUint(string(size), 16, 60)
	if err != nil || size[0] == '0' && len(size) > maxPadded {
		return badChunk
	}
	if f.state, f.left = inChunk, int64(n); n == 0 {
		f.state = trailerLine
	}
	return nil
}

// reset prepares for the next request.
func (f *follower) reset() { *f = follower{line: f.line} }
