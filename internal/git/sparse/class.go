package sparse

import "bytes"

// classes are the named sets of bytes, as git defines them for all locales.
var classes = map[string]func(c byte) bool{
	"alnum":  func(c byte) bool { return isAlpha(c) || isDigit(c) },
	"alpha":  isAlpha,
	"blank":  func(c byte) bool { return c == ' ' || c == '\t' },
	"cntrl":  func(c byte) bool { return c < ' ' || c == 0x7f },
	"digit":  isDigit,
	"graph":  isGraph,
	"lower":  isLower,
	"print":  func(c byte) bool { return isGraph(c) || c == ' ' },
	"punct":  func(c byte) bool { return isGraph(c) && !isAlpha(c) && !isDigit(c) },
	"space":  func(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' },
	"upper":  isUpper,
	"xdigit": func(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' },
}

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }
func isAlpha(c byte) bool { return isLower(c) || isUpper(c) }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isGraph(c byte) bool { return '!' <= c && c <= '~' }

// parseClass parses a bracket expression at the beginning of a pattern, and returns its length. The length is 0 if the
// expression is malformed or does not end.
func parseClass(p []byte) (set byteSet, negated bool, length int) {
	i := 1
	if i < len(p) && (p[i] == '!' || p[i] == '^') {
		negated = true
		i++
	}
	var from byte // the beginning of a range, if a '-' follows; 0: none
	for first := true; first || i < len(p) && p[i] != ']'; first = false {
		if i == len(p) {
			return set, false, 0
		}
		c := p[i]
		switch {
		case c == '\\':
			if i++; i == len(p) {
				return set, false, 0
			}
			from = p[i]
			set.add(from)
		case c == '-' && from != 0 && i+1 < len(p) && p[i+1] != ']':
			if i++; p[i] == '\\' {
				i++
			}
			if i == len(p) {
				return set, false, 0
			}
			set.addRange(from, p[i])
			from = 0
		case c == '[' && i+1 < len(p) && p[i+1] == ':':
			name, isClass, ok := className(p[i+2:])
			if !ok {
				return set, false, 0
			}
			if !isClass {
				from = c
				set.add(c)
				break
			}
			for c := range 256 {
				if classes[name](byte(c)) {
					set.add(byte(c))
				}
			}
			i += len(name) + 3
			from = 0
		default:
			from = c
			set.add(c)
		}
		i++
	}
	if i >= len(p) {
		return set, false, 0
	}
	return set, negated, i + 1
}

// className parses "name:]". isClass is false if the bracket does not end in ":]", which makes it an ordinary one. ok
// is false if it does not end or the name is unknown.
func className(p []byte) (name string, isClass, ok bool) {
	end := bytes.IndexByte(p, ']')
	if end < 0 {
		return "", false, false
	}
	if end == 0 || p[end-1] != ':' {
		return "", false, true
	}
	name = string(p[:end-1])
	_, ok = classes[name]
	return name, true, ok
}
