package compare

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Format is how a log's lines are written.
type Format string

// The formats. See docs/compare.md for the keys that are read.
const (
	Packhorse Format = "packhorse" // our log, as JSON
	Nginx     Format = "nginx"     // a log_format of JSON, with nginx's variables as keys
	Workhorse Format = "workhorse" // GitLab Workhorse's, as JSON
	Common    Format = "common"    // Common or Combined Log Format with a duration at the end
)

// Formats are all of them.
var Formats = []Format{Packhorse, Nginx, Workhorse, Common}

// class says how a request ended.
type class uint8

const (
	answered class = iota // status below 400
	refused               // 4xx: the client's doing
	failed                // 5xx, or refused for want of room (429)
	gone                  // the client went away before the end
	classes
)

func classOf(status int) class {
	switch {
	case status == 499 || status == 0:
		return gone
	case status >= 500 || status == 429:
		return failed
	case status >= 400:
		return refused
	}
	return answered
}

// classOfResult is for requests of ours that have no status: those over SSH.
func classOfResult(result []byte) class {
	switch string(result) {
	case "ok":
		return answered
	case "internal", "unavailable", "exhausted", "corrupt", "deadline":
		return failed
	}
	return refused
}

// reading says what is read of a line, and how. It does not change.
type reading struct {
	format       Format
	operations   bool // route by operation
	exact        bool // what a request to upload-pack was for is known on both sides
	patterns     []Pattern
	split        string // the field that tells the sides apart; empty: none does
	duration     string // the field that has the duration; empty: the format's own
	unit         Unit
	since, until time.Time
}

// request is one line, read. Its slices are those of the line or of the parser, and good until the next one.
type request struct {
	ns, step int64
	class    class
	method   []byte
	target   []byte
	when     []byte
	pool     []byte
}

var (
	errOther   = errors.New("a line about something else") // not malformed
	errOutside = errors.New("outside the window of time")  // not malformed
	errTime    = errors.New("a time that cannot be read")
	errStatus  = errors.New("no status")
	errTarget  = errors.New("no path")
	errCommon  = errors.New("neither JSON nor Common Log Format")
)

// parser reads lines of one format. Not safe for concurrent use.
type parser struct {
	*reading
	request
	status, result, operation, haves, pack, transport, msg, upstream, took, line []byte

	take func(key, value []byte, kind fieldKind)
}

func newParser(r *reading) *parser {
	p := &parser{reading: r}
	switch r.format {
	case Packhorse:
		p.take = p.takeOurs
	case Nginx:
		p.take = p.takeNginx
	case Workhorse:
		p.take = p.takeWorkhorse
	}
	return p
}

// parse reads a line; errOther and errOutside say that it is not looked at, all other errors that it is malformed.
func (p *parser) parse(line []byte) error {
	*p = parser{reading: p.reading, take: p.take}
	if p.format == Common {
		if err := p.common(line); err != nil {
			return err
		}
	} else if err := scanObject(line, p.take); err != nil {
		return err
	}
	if err := p.relevant(); err != nil {
		return err
	}
	if err := p.measure(); err != nil {
		return err
	}
	return p.within()
}

// own takes what the command line names; it has precedence.
func (p *parser) own(key, value []byte, kind fieldKind) bool {
	if p.split != "" && string(key) == p.split && kind != kindOther {
		p.pool = value
	}
	if p.duration == "" || string(key) != p.duration {
		return false
	}
	p.took = value
	return true
}

func (p *parser) takeOurs(key, value []byte, kind fieldKind) {
	if kind == kindOther || p.own(key, value, kind) {
		return
	}
	switch string(key) {
	case "time":
		p.when = value
	case "msg":
		p.msg = value
	case "operation":
		p.operation = value
	case "result":
		p.result = value
	case "ms":
		p.setTook(value)
	case "status":
		p.status = value
	case "method":
		p.method = value
	case "path":
		p.target = value
	case "transport":
		p.transport = value
	case "haves":
		p.haves = value
	case "pack":
		p.pack = value
	}
}

func (p *parser) takeNginx(key, value []byte, kind fieldKind) {
	if kind == kindOther || p.own(key, value, kind) {
		return
	}
	switch string(key) {
	case "time", "time_iso8601", "time_local", "msec", "timestamp", "@timestamp":
		p.when = value
	case "status":
		p.status = value
	case "request_time":
		p.setTook(value)
	case "upstream_response_time":
		p.upstream = value
	case "request_method", "method":
		p.method = value
	case "request_uri", "uri", "path":
		if string(key) == "request_uri" || p.target == nil {
			p.target = value
		}
	case "request":
		p.line = value
	}
}

func (p *parser) takeWorkhorse(key, value []byte, kind fieldKind) {
	if kind == kindOther || p.own(key, value, kind) {
		return
	}
	switch string(key) {
	case "time":
		p.when = value
	case "msg":
		p.msg = value
	case "duration_ms":
		p.setTook(value)
	case "status":
		p.status = value
	case "method":
		p.method = value
	case "uri":
		p.target = value
	}
}

func (p *parser) setTook(value []byte) {
	if p.duration == "" {
		p.took = value
	}
}

// relevant tells requests from what else stands in a log, and completes what was read.
func (p *parser) relevant() error {
	switch p.format {
	case Packhorse:
		if string(p.msg) != "request" {
			return errOther
		}
	case Workhorse:
		if string(p.msg) != "access" {
			return errOther
		}
	case Nginx:
		if p.took == nil && p.duration == "" {
			p.took = p.upstream
		}
		if p.line != nil && (p.target == nil || p.method == nil) {
			p.requestLine(p.line)
		}
	}
	return p.classify()
}

// requestLine takes a method and a target from "GET /path HTTP/1.1".
func (p *parser) requestLine(line []byte) {
	method, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return
	}
	target, _, _ := bytes.Cut(rest, []byte(" "))
	if p.method == nil {
		p.method = method
	}
	if p.target == nil {
		p.target = target
	}
}

func (p *parser) classify() error {
	status := 0
	for _, c := range p.status {
		if c < '0' || c > '9' || len(p.status) > 3 {
			return errStatus
		}
		status = status*10 + int(c-'0')
	}
	switch {
	case status == 101: // an upgrade lasts as long as both sides like
		return errOther
	case string(p.result) == "cancelled":
		p.class = gone
	case len(p.status) > 0:
		p.class = classOf(status)
	case p.format == Packhorse && p.result != nil:
		p.class = classOfResult(p.result)
	default:
		return errStatus
	}
	return nil
}

// measure reads the duration.
func (p *parser) measure() error {
	unit := p.unit
	if unit == Auto { // of Common Log Format only, see settle
		unit = Microseconds // Apache's %D
		if bytes.IndexByte(p.took, '.') >= 0 {
			unit = Seconds // nginx's $request_time
		}
	}
	if p.format == Nginx && bytes.ContainsAny(p.took, ",:") { // one for each server that was asked
		return p.sum(unit)
	}
	if p.format == Common { // 0.012s, rt=0.012
		for _, u := range []struct {
			text string
			unit Unit
		}{{"ms", Milliseconds}, {"us", Microseconds}, {"s", Seconds}} {
			if rest, ok := bytes.CutSuffix(p.took, []byte(u.text)); ok {
				p.took, unit = rest, u.unit
				break
			}
		}
	}
	var err error
	p.ns, p.step, err = parseDuration(p.took, unit)
	return err
}

// settle finds the unit of durations: that of the field's name, or the one the format has.
func (r *reading) settle() {
	if r.unit != Auto {
		return
	}
	switch {
	case strings.HasSuffix(r.duration, "_ms"):
		r.unit = Milliseconds
	case strings.HasSuffix(r.duration, "_us"):
		r.unit = Microseconds
	case strings.HasSuffix(r.duration, "_ns"):
		r.unit = Nanoseconds
	case strings.HasSuffix(r.duration, "_s"), r.format == Nginx:
		r.unit = Seconds
	case r.format == Packhorse, r.format == Workhorse:
		r.unit = Milliseconds
	}
}

// sum adds up the times of nginx's $upstream_response_time: "0.010, 0.020 : -".
func (p *parser) sum(unit Unit) error {
	took := p.took
	for len(took) > 0 {
		n := bytes.IndexAny(took, ",:")
		if n < 0 {
			n = len(took)
		}
		part := bytes.TrimSpace(took[:n])
		if took = took[min(n+1, len(took)):]; string(part) == "-" {
			continue
		}
		ns, step, err := parseDuration(part, unit)
		if err != nil {
			return err
		}
		if p.ns += ns; p.ns > maxNanos {
			return errTooLong
		}
		p.step = step
	}
	if p.step == 0 {
		return errNoDuration
	}
	return nil
}

// within looks whether the line is in the window of time.
func (p *parser) within() error {
	if p.since.IsZero() && p.until.IsZero() {
		return nil
	}
	at, err := parseTime(p.when)
	if err != nil {
		return err
	}
	if !p.since.IsZero() && at.Before(p.since) || !p.until.IsZero() && !at.Before(p.until) {
		return errOutside
	}
	return nil
}

const commonTime = "02/Jan/2006:15:04:05 -0700"

// parseTime reads what logs write: RFC 3339, seconds since 1970, or the Common Log Format's.
func parseTime(text []byte) (time.Time, error) {
	s := string(text)
	if len(s) > 64 {
		return time.Time{}, errTime
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	if t, err := time.Parse(commonTime, s); err == nil {
		return t, nil
	}
	if ns, err := unixTime(s); err == nil {
		return time.Unix(0, ns).UTC(), nil
	}
	return time.Time{}, errTime
}

func unixTime(s string) (int64, error) {
	var seconds, nanos int64
	whole, fraction, _ := strings.Cut(s, ".")
	if len(whole) == 0 || len(whole) > 10 || len(fraction) > 9 {
		return 0, errTime
	}
	for _, c := range whole {
		if c < '0' || c > '9' {
			return 0, errTime
		}
		seconds = seconds*10 + int64(c-'0')
	}
	if seconds > 9e9 {
		return 0, errTime
	}
	for i := range 9 {
		nanos *= 10
		if i < len(fraction) {
			if fraction[i] < '0' || fraction[i] > '9' {
				return 0, errTime
			}
			nanos += int64(fraction[i] - '0')
		}
	}
	return seconds*1e9 + nanos, nil
}

// noRequest is the route of what was no request: connections that ended before there was one.
const noRequest = "(no request)"

// appendName appends the route of the request that was read last.
func (p *parser) appendName(to []byte) ([]byte, error) {
	if p.format == Packhorse && len(p.operation) == 0 {
		p.operation = []byte("other")
	}
	if p.format == Packhorse && (p.target == nil || p.operations) {
		return p.appendOurs(to), nil
	}
	if len(p.target) == 0 {
		if p.class == answered {
			return to, errTarget
		}
		return append(to, noRequest...), nil
	}
	if p.operations {
		return append(to, operationOf(p.method, p.target)...), nil
	}
	switch string(p.method) {
	case "GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "CONNECT", "TRACE":
		to = append(to, p.method...)
	default:
		to = append(to, "{method}"...)
	}
	return appendRoute(append(to, ' '), p.target, p.patterns), nil
}

// appendOurs names what git clients asked for, of which our log has the operation and no path.
func (p *parser) appendOurs(to []byte) []byte {
	if p.operations {
		switch string(p.operation) {
		case "fetch":
			switch {
			case !p.exact:
				return append(to, "upload-pack"...)
			case p.pack == nil:
				return append(to, "negotiate"...)
			case p.haves == nil || string(p.haves) == "0":
				return append(to, "clone"...)
			}
		case "ls_refs", "object_info", "bundle_uri":
			if !p.exact {
				return append(to, "upload-pack"...)
			}
		}
		return append(to, p.operation[:min(len(p.operation), maxSegment)]...)
	}
	if string(p.transport) == "ssh" {
		to = append(to, "SSH /{repo}"...)
	} else if string(p.operation) == "info_refs" {
		return append(to, "GET /{repo}/info/refs"...)
	} else {
		to = append(to, "POST /{repo}"...)
	}
	switch string(p.operation) {
	case "push":
		return append(to, "/git-receive-pack"...)
	case "ls_refs", "fetch", "object_info", "bundle_uri", "info_refs":
		return append(to, "/git-upload-pack"...)
	}
	return append(append(to, '/'), p.operation[:min(len(p.operation), maxSegment)]...)
}

// operationOf is the operation that a path shows, named as in our log.
func operationOf(method, target []byte) string {
	path := pathOf(target)
	switch {
	case bytes.HasSuffix(path, []byte("/info/refs")):
		return "info_refs"
	case string(method) == "POST" && bytes.HasSuffix(path, []byte("/git-upload-pack")):
		return "upload-pack"
	case string(method) == "POST" && bytes.HasSuffix(path, []byte("/git-receive-pack")):
		return "push"
	case bytes.HasPrefix(path, []byte("/-/api/v1/search")), bytes.HasPrefix(path, []byte("/.api/")):
		return "search"
	case bytes.HasPrefix(path, []byte("/-/api/v1/resolve")):
		return "resolve"
	case bytes.HasPrefix(path, []byte("/-/")):
		return "page"
	}
	return "other"
}

// common reads Common Log Format: host ident user [time] "request" status bytes, then anything, and at the end the duration.
func (p *parser) common(line []byte) error {
	from := bytes.Index(line, []byte(" ["))
	to := bytes.Index(line, []byte("] \""))
	if from < 0 || to < from {
		return errCommon
	}
	p.when = line[from+2 : to]
	request, rest, ok := quoted(line[to+2:])
	if !ok {
		return errCommon
	}
	if bytes.IndexByte(request, '\\') >= 0 {
		request = unescaped(request)
	}
	p.requestLine(request)
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
			p.status = token
		} else if n > 1 {
			p.extra(token, bare || quotes > 2)
		}
	}
	if len(p.status) != 3 {
		return errCommon
	}
	return nil
}

// extra takes what follows the bytes: NAME=VALUE, or a number. The referrer and the agent are neither, though they may look so.
func (p *parser) extra(token []byte, plain bool) {
	name, value, named := bytes.Cut(token, []byte("="))
	if !named {
		value = token
	}
	value = bytes.Trim(value, `"`)
	switch {
	case plain && named && (string(name) == p.split && p.split != "" || p.own(name, value, kindString)):
		if string(name) == p.split {
			p.pool = value
		}
	case p.duration == "":
		if p.took = nil; plain { // the last one counts
			p.took = value
		}
	}
}

// quoted cuts a string in quotes, in which \" is none, off the front.
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

// unescaped undoes what nginx and Apache do to bytes that they think of as dangerous: \x1b, \", \\.
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

// ParseFormat reads "auto", which is empty, or one of Formats.
func ParseFormat(text string) (Format, error) {
	if text == "auto" {
		return "", nil
	}
	for _, f := range Formats {
		if string(f) == text {
			return f, nil
		}
	}
	return "", fmt.Errorf("the format %q: use auto, packhorse, nginx, workhorse or common", text)
}
