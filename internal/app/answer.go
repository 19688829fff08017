package app

import (
	"errors"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// answer is the head of a worker's answer.
type answer struct {
	status     int
	fields     []field // that go to the client
	length     int64   // of the body; -1: it is not said
	written    string  // the same, as it goes to the client; "": it has to be written
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

// errLongHeader is the error of an answer whose header is longer than maxHeader.
var errLongHeader = fault.New(fault.Internal, "the response header of the application is longer than %d bytes", maxHeader)

// heading is an answer's head while it is read.
type heading struct {
	answer
	fileHeader string // Options.FileHeader

	// What Connection says:
	closes, keeps, upgrades bool
	named                   []string // other fields that are not passed on
}

// parseAnswer reads the head of an answer, from its status line to the empty line, strictly as RFC 9112 has it: nobody else may read it in
// another way. Fields that are between a worker and us are not among its fields. fileHeader is Options.FileHeader.
func parseAnswer(head string, fileHeader string, into []field) (answer, error) {
	h := heading{answer: answer{length: -1, fields: into[:0]}, fileHeader: fileHeader}
	line, rest, ok := cutLine(head)
	if !ok {
		return h.answer, bad("bad status line")
	}
	old, err := h.statusLine(line)
	if err != nil {
		return h.answer, err
	}
	for {
		if line, rest, ok = cutLine(rest); !ok {
			return h.answer, bad("its header has no end")
		}
		if line == "" {
			break
		}
		if err := h.field(line, old); err != nil {
			return h.answer, err
		}
	}
	if rest != "" {
		return h.answer, bad("bytes behind its header")
	}
	if h.chunked && h.length >= 0 {
		return h.answer, bad("both a length and chunks")
	}
	h.close = h.closes || old && !h.keeps
	if !h.upgrades {
		h.upgrade = ""
	}
	if len(h.named) > 0 {
		h.fields = slices.DeleteFunc(h.fields, func(f field) bool {
			return slices.ContainsFunc(h.named, func(name string) bool { return strings.EqualFold(f.name, name) })
		})
	}
	return h.answer, nil
}

// cutLine cuts a line off, without its end.
func cutLine(s string) (line, rest string, ok bool) {
	i := strings.IndexByte(s, '\n')
	if i < 1 || s[i-1] != '\r' {
		return "", "", false
	}
	return s[:i-1], s[i+1:], true
}

// statusLine reads the first line; old: it is of HTTP/1.0.
func (h *heading) statusLine(line string) (old bool, err error) {
	if len(line) < len("HTTP/1.1 200") || line[:7] != "HTTP/1." || line[7] != '0' && line[7] != '1' || line[8] != ' ' || len(line) > 12 && line[12] != ' ' || !validValue(line) {
		return false, bad("bad status line")
	}
	for _, c := range []byte(line[9:12]) {
		if c < '0' || c > '9' {
			return false, bad("bad status")
		}
		h.status = h.status*10 + int(c-'0')
	}
	if h.status < 100 || h.status > 599 {
		return false, bad("bad status")
	}
	return line[7] == '0', nil
}

// field reads another line.
func (h *heading) field(line string, old bool) (err error) {
	name, value, ok := strings.Cut(line, ":")
	value = trimBlanks(value)
	if !ok || !validName(name) || !validValue(value) { // a name with a space before the colon, and a folded line, too
		return bad("bad header field")
	}
	name = textproto.CanonicalMIMEHeaderKey(name)
	switch name {
	case "Content-Length":
		if h.length >= 0 {
			return bad("two lengths")
		}
		if h.length, err = parseLength(value); value != "" && value[0] != '0' {
			h.written = value
		}
	case "Transfer-Encoding":
		if h.chunked || old || !strings.EqualFold(value, "chunked") {
			return bad("bad transfer encoding")
		}
		h.chunked = true
	case "Connection":
		h.connection(value)
	case "Upgrade":
		h.upgrade = value
	case "Trailer":
		for t := range strings.SplitSeq(value, ",") {
			if t = textproto.CanonicalMIMEHeaderKey(trimBlanks(t)); validName(t) && mayTrail(t) {
				h.trailer = append(h.trailer, t)
			}
		}
	case h.fileHeader:
		if h.file != "" || value == "" {
			return bad("no file, or two, to send")
		}
		h.file = value
	case "X-Accel-Buffering": // for us alone
		h.unbuffered = h.unbuffered || strings.EqualFold(value, "no")
	default:
		h.unbuffered = h.unbuffered || name == "Content-Type" && isEvents(value)
		if !hopByHop(name) && !notFromWorkers(name) && !internal(name) {
			h.fields = append(h.fields, field{name, value})
		}
	}
	return err
}

// connection reads a field of what concerns the connection (RFC 9110, section 7.6.1).
func (h *heading) connection(value string) {
	for more := true; more; {
		var option string
		option, value, more = strings.Cut(value, ",")
		switch option = trimBlanks(option); {
		case strings.EqualFold(option, "close"):
			h.closes = true
		case strings.EqualFold(option, "keep-alive"):
			h.keeps = true
		case strings.EqualFold(option, "upgrade"):
			h.upgrades = true
		default:
			h.named = append(h.named, option)
		}
	}
}

// trimBlanks takes spaces and tabs off both ends.
func trimBlanks(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// notFromWorkers tells the fields that no client may see.
func notFromWorkers(name string) bool {
	switch name {
	case "X-Sendfile", "X-Sendfile-Type", "X-Lighttpd-Send-File":
		return true
	}
	return false
}

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
	return !hopByHop(name) && !notFromWorkers(name) && !notFromClients(name) && !internal(name)
}

// ends tells of an answer without a body whether it is over, as far as its head says, and its connection may be used again. A worker that answers HEAD as if it were
// GET sends one all the same, and another 204 with a body. One that says nothing of it in the head is believed: what comes late then would be taken for the next answer.
func (a *answer) ends(method string) bool {
	none := method == http.MethodHead || a.status == http.StatusNoContent || a.status == http.StatusNotModified
	return !a.close && (!none || !a.chunked) && (a.status == http.StatusNotModified || a.length <= 0)
}

// hasBody tells whether a body follows a head.
func (a *answer) hasBody(method string) bool {
	return method != http.MethodHead && a.status >= 200 && a.status != http.StatusNoContent && a.status != http.StatusNotModified && a.length != 0
}
