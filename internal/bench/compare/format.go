package compare

import (
	"fmt"
	"slices"
)

// Format is the format of a log.
type Format string

// The formats. See docs/how-to/compare.md for the keys that are read.
const (
	Packhorse Format = "packhorse" // our log, as JSON
	Nginx     Format = "nginx"     // JSON of Packhorse
	Workhorse Format = "workhorse" // GitLab Workhorse's, as JSON
	Common    Format = "common"    // Common or Combined Log Format with a duration at the end
)

// Formats lists all formats. A format with fewer specific keys comes after one with more.
var Formats = []Format{Packhorse, Workhorse, Nginx, Common}

// ParseFormat parses "auto", which is the empty format, or one of Formats.
func ParseFormat(text string) (Format, error) {
	if text == "auto" {
		return "", nil
	}
	if f := Format(text); slices.Contains(Formats, f) {
		return f, nil
	}
	return "", fmt.Errorf("format %q: want auto, packhorse, nginx, workhorse or common", text)
}

// field is a part of a line that the parser reads.
type field uint8

const (
	fieldTime field = iota
	fieldTook
	fieldUpstream // time of all upstream servers of nginx; used if there is no other duration
	fieldStatus
	fieldMethod
	fieldTarget
	fieldLine // method and target, as in "GET / HTTP/1.1"
	fieldMsg
	fieldPool // names the side of the line, if one log is split
	fieldOperation
	fieldResult
	fieldTransport
	fieldHaves
	fieldPack
	fields
)

// layout describes the fields of a format.
type layout struct {
	msg   string           // the message of lines about requests; empty: all lines are about requests
	keys  [fields][]string // preferred keys first
	needs [][]field        // at least one of each is required; identifies the format
	unit  Unit             // of durations; Auto: depends on the line
}

// layouts has the layouts of the formats.
var layouts = map[Format]*layout{
	Packhorse: {
		msg: "request",
		keys: [fields][]string{
			fieldTime: {"time"}, fieldTook: {"ms"}, fieldStatus: {"status"}, fieldMethod: {"method"}, fieldTarget: {"path"},
			fieldMsg:       {"msg"},
			fieldOperation: {"operation"}, fieldResult: {"result"}, fieldTransport: {"transport"}, fieldHaves: {"haves"},
			fieldPack: {"pack"},
		},
		needs: [][]field{{fieldOperation}, {fieldTook}},
		unit:  Milliseconds,
	},
	Workhorse: {
		msg: "access",
		keys: [fields][]string{
			fieldTime: {"time"}, fieldTook: {"duration_ms"}, fieldStatus: {"status"}, fieldMethod: {"method"},
			fieldTarget: {"uri"}, fieldMsg: {"msg"},
		},
		needs: [][]field{{fieldTook}, {fieldTarget}},
		unit:  Milliseconds,
	},
	Nginx: {
		keys: [fields][]string{
			fieldTime: {"time_iso8601", "msec", "time_local", "time", "timestamp", "@timestamp"}, fieldTook: {"request_time"},
			fieldUpstream: {"upstream_response_time"}, fieldStatus: {"status"}, fieldMethod: {"request_method", "method"},
			fieldTarget: {"request_uri", "uri", "path"}, fieldLine: {"request"},
		},
		needs: [][]field{{fieldStatus}, {fieldTarget, fieldLine}},
		unit:  Seconds,
	},
	// The fields have fixed positions. The keys are for the following fields, as in rt=0.012.
	Common: {keys: [fields][]string{fieldTook: {"rt", "request_time", "duration"}}},
}

// key names a field of a line. If two keys of a field occur, the one of the lower rank counts.
type key struct {
	text  string
	field field
	rank  uint8
}

// keys are the keys to find, by their length, because most keys of a line are others.
type keys [][]key

// keysOf returns the keys of a format, and those of the command line.
func keysOf(r *reading) keys {
	var all keys
	add := func(text string, f field, rank int) {
		for len(all) <= len(text) {
			all = append(all, nil)
		}
		all[len(text)] = append(all[len(text)], key{text, f, uint8(rank)})
	}
	for i, texts := range layouts[r.format].keys {
		f := field(i)
		if r.duration != "" && (f == fieldTook || f == fieldUpstream) {
			continue
		}
		for rank, text := range texts {
			add(text, f, rank)
		}
	}
	if r.duration != "" {
		add(r.duration, fieldTook, 0)
	}
	if r.split != "" {
		add(r.split, fieldPool, 0)
	}
	return all
}

// have reports whether a text is one of the keys.
func (k keys) have(text []byte) bool {
	return len(text) < len(k) && slices.ContainsFunc(k[len(text)], func(k key) bool { return k.text == string(text) })
}

// detector detects the format of lines. Not safe for concurrent use.
type detector []*parser

func newDetector() detector {
	var d detector
	for _, f := range Formats {
		d = append(d, newParser(&reading{format: f}))
	}
	return d
}

// formatOf returns the format in which a line is a request, or "".
func (d detector) formatOf(line []byte) Format {
	for _, p := range d {
		if p.gather(line) == nil && p.fits() {
			return p.format
		}
	}
	return ""
}

// fits reports whether the fields of the last line are those of a request.
func (p *parser) fits() bool {
	for _, one := range p.layout.needs {
		if !slices.ContainsFunc(one, func(f field) bool { return p.got[f] != nil }) {
			return false
		}
	}
	return p.layout.msg == "" || string(p.got[fieldMsg]) == p.layout.msg
}
