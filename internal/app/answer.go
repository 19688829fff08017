package app

import (
	"errors"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// answer is the head of a worker's answer.
type answer struct {
	status     int
	fields     []field // that go to the client
	length     int64   // of the body; -1: it is not said
	chunked    bool
	close      bool     // the connection is not used again
	upgrade    string   // the protocol that the worker switches to
	file       string   // it wants sent; see Options.FileHeader
	unbuffered bool     // it is passed on as it comes, whatever its length
	trailer    []string // names of fields that may follow the body
}

type field struct{ name, value string }

// bad is the error of an answer that is not one.
func bad(what string) error {
	return errors.New("the answer of the application worker is none: " + what)
}

// parseAnswer reads the head of an answer, from its status line to the empty line, strictly as RFC 9112 has it: nobody else may read it in
// another way. Fields that are between a worker and us are not among its fields. fileHeader is Options.FileHeader.
func parseAnswer(head string, fileHeader string, into []field) (a answer, err error) {
	a.length, a.fields = -1, into[:0]
	line, rest, ok := strings.Cut(head, "\r\n")
	if !ok || len(line) < len("HTTP/1.1 200") || line[:7] != "HTTP/1." || line[7] != '0' && line[7] != '1' || line[8] != ' ' ||
		len(line) > 12 && line[12] != ' ' || !validValue(line) {
		return a, bad("bad status line")
	}
	if a.status, err = strconv.Atoi(line[9:12]); err != nil || a.status < 100 || a.status > 599 || line[9] == '+' {
		return a, bad("bad status")
	}
	old := line[7] == '0'
	a.close = old
	var options []string // of Connection
	for n := 0; ; n++ {
		if line, rest, ok = strings.Cut(rest, "\r\n"); !ok {
			return a, bad("its header has no end")
		}
		if line == "" {
			break
		}
		if n >= maxFields {
			return a, bad("too many header fields")
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !ok || !validName(name) || !validValue(value) { // a name with a space before the colon, and a folded line, too
			return a, bad("bad header field")
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		switch name {
		case "Content-Length":
			if a.length >= 0 {
				return a, bad("two lengths")
			}
			if a.length, err = parseLength(value); err != nil {
				return a, err
			}
		case "Transfer-Encoding":
			if a.chunked || old || !strings.EqualFold(value, "chunked") {
				return a, bad("bad transfer encoding")
			}
			a.chunked = true
		case "Connection":
			for option := range strings.SplitSeq(value, ",") {
				option = strings.ToLower(strings.Trim(option, " \t"))
				switch option {
				case "close":
					a.close = true
				case "keep-alive":
					if old && !hasToken(options, "close") {
						a.close = false
					}
				}
				options = append(options, option)
			}
		case "Upgrade":
			a.upgrade = value
		case "Trailer":
			for t := range strings.SplitSeq(value, ",") {
				if t = textproto.CanonicalMIMEHeaderKey(strings.Trim(t, " \t")); validName(t) && mayTrail(t) {
					a.trailer = append(a.trailer, t)
				}
			}
		default:
			if name == fileHeader && fileHeader != "" {
				if a.file != "" || value == "" {
					return a, bad("no file, or two, to send")
				}
				a.file = value
				continue
			}
			if name == "X-Accel-Buffering" && strings.EqualFold(value, "no") || name == "Content-Type" && isEvents(value) {
				a.unbuffered = true
			}
			if !hopByHop[name] && !notFromWorkers[name] && !internal(name) {
				a.fields = append(a.fields, field{name, value})
			}
		}
	}
	if rest != "" {
		return a, bad("bytes behind its header")
	}
	if a.chunked && a.length >= 0 {
		return a, bad("both a length and chunks")
	}
	if hasToken(options, "close") {
		a.close = true
	}
	if !hasToken(options, "upgrade") {
		a.upgrade = ""
	}
	a.fields = without(a.fields, options)
	return a, nil
}

// without takes the fields away that Connection names.
func without(fields []field, options []string) []field {
	for _, option := range options {
		if option == "close" || option == "keep-alive" || option == "upgrade" {
			continue
		}
		kept := fields[:0]
		for _, f := range fields {
			if !strings.EqualFold(f.name, option) {
				kept = append(kept, f)
			}
		}
		fields = kept
	}
	return fields
}

// notFromWorkers are fields that no client may see.
var notFromWorkers = map[string]bool{"X-Sendfile": true, "X-Sendfile-Type": true, "X-Lighttpd-Send-File": true}

func isEvents(contentType string) bool {
	const events = "text/event-stream"
	return len(contentType) >= len(events) && strings.EqualFold(contentType[:len(events)], events)
}

func parseLength(s string) (int64, error) {
	if s == "" || len(s) > 18 {
		return 0, bad("bad length")
	}
	n := int64(0)
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, bad("bad length")
		}
		n = n*10 + int64(c-'0')
	}
	return n, nil
}

// validName tells whether a field's name is a token (RFC 9110, section 5.6.2).
func validName(s string) bool {
	for _, c := range []byte(s) {
		if !tokenByte[c] {
			return false
		}
	}
	return s != ""
}

var tokenByte = func() (t [256]bool) {
	for c := '0'; c <= 'z'; c++ {
		t[c] = c <= '9' || c >= 'a' || c >= 'A' && c <= 'Z'
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] = true
	}
	return t
}()

// validValue tells whether there is no control character in a field's value.
func validValue(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// mayTrail tells whether a field may stand behind a body (RFC 9110, section 6.5.1): none that says how to read, route or believe the answer.
func mayTrail(name string) bool {
	switch name {
	case "Set-Cookie", "Location", "Content-Type", "Content-Encoding", "Content-Range", "Cache-Control", "Expires", "Date", "Age", "Vary",
		"Retry-After", "Www-Authenticate", "Authorization", "Content-Disposition", "Content-Security-Policy":
		return false
	}
	return !hopByHop[name] && !notFromWorkers[name] && !notFromClients[name] && !internal(name)
}

// hasBody tells whether a body follows a head.
func (a *answer) hasBody(method string) bool {
	return method != http.MethodHead && a.status >= 200 && a.status != http.StatusNoContent && a.status != http.StatusNotModified && a.length != 0
}
