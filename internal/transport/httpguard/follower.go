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
	ended  int    // requests

	isOld, hasHost, hasLength, isChunked bool // isOld: HTTP/1.0
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
)

// inHead reports whether the next byte belongs to a head.
func (f *follower) inHead() bool { return f.state < inBody }

// isBetween reports whether no byte of a request has come.
func (f *follower) isBetween() bool { return f.state == requestLine && len(f.line) == 0 }

// follow takes the next bytes. It returns how many of them are correct: all, or those before a fault.
func (f *follower) follow(p []byte) (n int, bad *Refusal) {
	for n < len(p) {
		if f.state == inBody || f.state == inChunk {
			took := min(f.left, int64(len(p)-n))
			n += int(took)
			if f.left -= took; f.left == 0 {
				f.endData()
			}
			continue
		}
		line, _, isWhole := bytes.Cut(p[n:], []byte("\n"))
		if f.isBetween() && (len(line) == 0 || line[0] != '\r' && !httpguts.IsTokenRune(rune(line[0]))) {
			return n, badLine
		}
		f.line = append(f.line, line...)
		n += len(line)
		if f.state == sizeLine && len(f.line) >= maxSize || f.state == chunkEnd && len(f.line) > len("\r") {
			return n, badChunk
		}
		if !isWhole {
			break
		}
		if bad = f.check(f.line); bad != nil {
			return n, bad
		}
		f.line = f.line[:0]
		n++ // the line feed
	}
	return n, nil
}

// endData ends the body or a chunk.
func (f *follower) endData() {
	if f.state == inChunk {
		f.state = chunkEnd
		return
	}
	f.reset()
}

// reset prepares for the next request.
func (f *follower) reset() { *f = follower{line: f.line, ended: f.ended + 1} }

// check checks a line, which should end with CR.
func (f *follower) check(line []byte) *Refusal {
	text, isEnded := bytes.CutSuffix(line, []byte("\r"))
	i := bytes.IndexFunc(text, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f })
	switch {
	case (f.state == sizeLine || f.state == chunkEnd) && (i >= 0 || !isEnded):
		return badChunk
	case i >= 0 && text[i] != '\r':
		return control
	case i >= 0 || !isEnded:
		return badEnd
	}
	switch {
	case f.state == requestLine:
		return f.checkRequestLine(text)
	case f.state == sizeLine:
		return f.checkSize(text)
	case f.state == chunkEnd:
		f.state = sizeLine
	case len(text) > 0:
		return f.checkField(text)
	case f.state == trailerLine:
		f.reset()
	default:
		return f.endHead()
	}
	return nil
}

func (f *follower) checkRequestLine(text []byte) *Refusal {
	if len(text) == 0 && f.blanks < maxBlanks {
		f.blanks++
		return nil
	}
	method, rest, _ := bytes.Cut(text, []byte(" "))
	target, version, _ := bytes.Cut(rest, []byte(" "))
	isPath := bytes.HasPrefix(target, []byte("/"))
	isAsterisk := string(target) == "*" && string(method) == "OPTIONS"
	switch {
	case string(method) == "PROXY" && !isPath:
		return proxyHeader
	case !httpguts.ValidHeaderFieldName(string(method)) || len(target) == 0 || bytes.IndexByte(target, '\t') >= 0 ||
		len(version) != len("HTTP/1.1") || !bytes.HasPrefix(version, []byte("HTTP/")) || version[6] != '.':
		return badLine
	case string(version) != "HTTP/1.1" && string(version) != "HTTP/1.0":
		return badVersion
	case string(method) == "CONNECT" || !isPath && !isAsterisk:
		return badTarget
	}
	*f = follower{state: fieldLine, line: f.line, ended: f.ended, isOld: string(version) == "HTTP/1.0"}
	return nil
}

// checkField checks a field of a head or a trailer.
func (f *follower) checkField(text []byte) *Refusal {
	if text[0] == ' ' || text[0] == '\t' {
		return folded
	}
	name, raw, hasColon := bytes.Cut(text, []byte(":"))
	if !hasColon || !httpguts.ValidHeaderFieldName(string(name)) {
		return badName
	}
	value := bytes.Trim(raw, " \t")
	is := func(other string) bool { return len(name) == len(other) && bytes.EqualFold(name, []byte(other)) }
	switch {
	case f.state == trailerLine:
		if !httpguts.ValidTrailerHeader(string(name)) {
			return badTrailer
		}
	case is("host"):
		if f.hasHost || len(value) == 0 {
			return badHost
		}
		f.hasHost = true
	case is("content-length"):
		n, err := strconv.ParseUint(string(value), 10, 59)
		if f.hasLength || err != nil || value[0] == '0' && len(value) > 1 {
			return badLength
		}
		f.hasLength, f.left = true, int64(n)
	case is("transfer-encoding"): // other white space than one space is what some read past, and others do not
		if f.isChunked || f.isOld || !bytes.EqualFold(bytes.TrimPrefix(raw, []byte(" ")), []byte("chunked")) {
			return badCoding
		}
		f.isChunked = true
	}
	return nil
}

// endHead finds out where the body is.
func (f *follower) endHead() *Refusal {
	switch {
	case !f.hasHost && !f.isOld:
		return badHost
	case f.isChunked && f.hasLength:
		return twoLengths
	case f.isChunked:
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
