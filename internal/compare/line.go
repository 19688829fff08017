package compare

import (
	"bytes"
	"errors"
	"time"
)

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
	layout *layout
	keys   keys
	take   func(text, value []byte, kind fieldKind) // the method, bound once

	// Of the line that was read last. Slices are the line's, and good until the next one.
	got      [fields][]byte
	rank     [fields]uint8 // of the keys under which these were found
	ns, step int64
	class    class
}

func newParser(r *reading) *parser {
	p := &parser{reading: r, layout: layouts[r.format], keys: keysOf(r)}
	p.take = p.member
	return p
}

// parse reads a line; errOther and errOutside say that it is not looked at, all other errors that it is malformed.
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

// gather finds the fields of a line.
func (p *parser) gather(line []byte) error {
	*p = parser{reading: p.reading, layout: p.layout, keys: p.keys, take: p.take}
	if p.format == Common {
		return p.common(line)
	}
	return scanObject(line, p.take)
}

// member takes a member of a JSON object, if it is one of the keys.
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

// put notes a field, unless a better key has named it.
func (p *parser) put(f field, value []byte, rank uint8) {
	if p.got[f] == nil || rank <= p.rank[f] {
		p.got[f], p.rank[f] = value, rank
	}
}

// requestLine takes a method and a target from "GET /path HTTP/1.1".
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
	case status == 101: // an upgrade lasts as long as both sides like
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
