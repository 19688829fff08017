package compare

import (
	"bytes"
	"errors"
	"time"
)

// class is the outcome of a request.
type class uint8

const (
	answered class = iota // status below 400
	refused               // 4xx
	failed                // 5xx, or 429
	gone                  // the client disconnected before the end
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

// classOfResult is for requests of Packhorse without a status: those over SSH.
func classOfResult(result []byte) class {
	switch string(result) {
	case "ok":
		return answered
	case "internal", "unavailable", "exhausted", "corrupt", "deadline":
		return failed
	}
	return refused
}

// reading describes how lines are read. It does not change.
type reading struct {
	format       Format
	operations   bool // route by operation
	exact        bool // both sides have the kind of requests to upload-pack
	patterns     []Pattern
	split        string // the field that names the side; empty: none
	duration     string // the field of the duration; empty: that of the format
	unit         Unit
	since, until time.Time
}

var (
	errOther   = errors.New("a line about something else") // not malformed
	errOutside = errors.New("outside the window of time")  // not malformed
	errTime    = errors.New("invalid time")
	errStatus  = errors.New("no status")
	errTarget  = errors.New("no path")
	errCommon  = errors.New("neither JSON nor Common Log Format")
)

// parser parses lines of one format. Not safe for concurrent use.
type parser struct {
	*reading
	layout *layout
	keys   keys
	take   func(text, value []byte, kind fieldKind) // the method, bound once

	// The fields of the last line. Slices point into the line, and are valid until the next one.
	got      [fields][]byte
	rank     [fields]uint8 // of the keys of these
	ns, step int64
	class    class
}

func newParser(r *reading) *parser {
	p := &parser{reading: r, layout: layouts[r.format], keys: keysOf(r)}
	p.take = p.member
	return p
}

// parse parses a line. errOther and errOutside exclude the line, and all other errors mean that it is malformed.
func (p *parser) parse(line []byte) error {
	if err := p.gather(line); err != nil {
		return err
	}
	if want := p.layout.msg; want != "" && string(p.got[fieldMsg]) != want {
		return errOther
	}
	if request := p.got[fieldLine]; request != nil {
		p.requestLine(request)
	}
	if err := p.classify(); err != nil {
		return err
	}
	if err := p.measure(); err != nil {
		return err
	}
	return p.within()
}

// gather collects the fields of a line.
func (p *parser) gather(line []byte) error {
	*p = parser{reading: p.reading, layout: p.layout, keys: p.keys, take: p.take}
	if p.format == Common {
		return p.common(line)
	}
	return scanObject(line, p.take)
}

// member handles a member of a JSON object, if it has one of the keys.
func (p *parser) member(text, value []byte, kind fieldKind) {
	if len(text) >= len(p.keys) {
		return
	}
	alike := p.keys[len(text)]
	for i := range alike {
		if k := &alike[i]; k.text[0] == text[0] && k.text == string(text) &&
			(kind < kindOther || kind == kindBool && k.field == fieldPool) {
			p.put(k.field, value, k.rank)
		}
	}
}

// put stores a field, unless it has a value from a better key.
func (p *parser) put(f field, value []byte, rank uint8) {
	if p.got[f] == nil || rank <= p.rank[f] {
		p.got[f], p.rank[f] = value, rank
	}
}

// requestLine parses a method and a target like "GET /path HTTP/1.1".
func (p *parser) requestLine(line []byte) {
	method, rest, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return
	}
	target, _, _ := bytes.Cut(rest, []byte(" "))
	if p.got[fieldMethod] == nil {
		p.got[fieldMethod] = method
	}
	if p.got[fieldTarget] == nil {
		p.got[fieldTarget] = target
	}
}

func (p *parser) classify() error {
	status := 0
	for _, c := range p.got[fieldStatus] {
		if c < '0' || c > '9' || len(p.got[fieldStatus]) > 3 {
			return errStatus
		}
		status = status*10 + int(c-'0')
	}
	switch {
	case status == 101: // the peers choose the duration of an upgraded connection
		return errOther
	case string(p.got[fieldResult]) == "cancelled":
		p.class = gone
	case len(p.got[fieldStatus]) > 0:
		p.class = classOf(status)
	case p.format == Packhorse && p.got[fieldResult] != nil:
		p.class = classOfResult(p.got[fieldResult])
	default:
		return errStatus
	}
	return nil
}
