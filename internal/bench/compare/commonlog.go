package compare

import "bytes"

// common parses Common Log Format: host ident user [time] "request" status bytes, then other fields, with the duration
// at the end.
func (p *parser) common(line []byte) error {
	from := bytes.Index(line, []byte(" ["))
	to := bytes.Index(line, []byte("] \""))
	if from < 0 || to < from {
		return errCommon
	}
	p.got[fieldTime] = line[from+2 : to]
	request, rest, ok := quoted(line[to+2:])
	if !ok {
		return errCommon
	}
	if bytes.IndexByte(request, '\\') >= 0 {
		request = unescaped(request)
	}
	p.got[fieldLine] = request
	for n, quotes := 0, 0; ; n++ {
		if rest = bytes.TrimLeft(rest, " \t"); len(rest) == 0 {
			break
		}
		var token []byte
		bare := rest[0] != '"'
		if bare {
			token, rest, _ = bytes.Cut(rest, []byte(" "))
		} else if token, rest, ok = quoted(rest); ok {
			quotes++
		} else {
			return errCommon
		}
		if n == 0 {
			p.got[fieldStatus] = token
		} else if n > 1 {
			p.extra(token, bare || quotes > 2)
		}
	}
	if len(p.got[fieldStatus]) != 3 {
		return errCommon
	}
	return nil
}

// Ranks of fields that may be the duration but do not have its name.
const (
	rankNumber = 254 // without a name
	rankNamed  = 255 // with another name
)

// extra handles a field after the bytes: NAME=VALUE, or a number. The referrer and the agent are neither of these, even
// if they look like it.
func (p *parser) extra(token []byte, plain bool) {
	name, value, named := bytes.Cut(token, []byte("="))
	if !named {
		value = token
	}
	value = bytes.Trim(value, `"`)
	switch {
	case !plain: // fields before quoted ones are not the duration
		if p.rank[fieldTook] >= rankNumber {
			p.got[fieldTook] = nil
		}
	case named && p.keys.have(name):
		p.member(name, value, kindString)
	case p.duration != "" || !startsNumber(value):
	case named:
		p.put(fieldTook, value, rankNamed)
	default:
		p.put(fieldTook, value, rankNumber)
	}
}

func startsNumber(s []byte) bool {
	s = bytes.TrimLeft(s, "+-.")
	return len(s) > 0 && s[0] >= '0' && s[0] <= '9'
}

// quoted cuts a quoted string off the front. \" does not end it.
func quoted(s []byte) (text, rest []byte, ok bool) {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[1:i], s[i+1:], true
		}
	}
	return nil, nil, false
}

// unescaped removes the escapes of nginx and Apache: \x1b, \", \\.
func unescaped(s []byte) []byte {
	clean := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '\\' && i+1 < len(s) {
			if i++; s[i] == 'x' && i+2 < len(s) && isHex(s[i+1:i+3]) {
				high, low := hexDigit(s[i+1]), hexDigit(s[i+2])
				c, i = high<<4|low, i+2
			} else {
				c = s[i]
			}
		}
		clean = append(clean, c)
	}
	return clean
}

func hexDigit(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c >= 'a':
		return c - 'a' + 10
	}
	return c - 'A' + 10
}
