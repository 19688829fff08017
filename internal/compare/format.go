package compare

import (
	"fmt"
	"slices"
)

// Format is how a log's lines are written.
type Format string

// The formats. See docs/how-to/compare.md for the keys that are read.
const (
	Packhorse Format = "packhorse" // our log, as JSON
	Nginx     Format = "nginx"     // a log_format of JSON, with nginx's variables as keys
	Workhorse Format = "workhorse" // GitLab Workhorse's, as JSON
	Common    Format = "common"    // Common or Combined Log Format with a duration at the end
)

// Formats are all of them, the one with less marks of its own after the one with more.
var Formats = []Format{Packhorse, Workhorse, Nginx, Common}

// ParseFormat reads "auto", which is empty, or one of Formats.
func ParseFormat(text string) (Format, error) {
	if text == "auto" {
		return "", nil
	}
	if f := Format(text); slices.Contains(Formats, f) {
		return f, nil
	}
	return "", fmt.Errorf("the format %q: use auto, packhorse, nginx, workhorse or common", text)
}

// field is something that is read of a line.
type field uint8

const (
	fieldTime field = iota
	fieldTook
	fieldUpstream // how long all servers took that nginx asked: it counts where there is nothing else
	fieldStatus
	fieldMethod
	fieldTarget
	fieldLine // method and target, as in "GET / HTTP/1.1"
	fieldMsg
	fieldPool // which side the line is of, if one log is split
	fieldOperation
	fieldResult
	fieldTransport
	fieldHaves
	fieldPack
	fields
)

// layout is how a format names its fields.
type layout struct {
	msg   string           // that of lines about requests; empty: all lines are
	keys  [fields][]string // the best ones first
	needs [][]field        // of each one at least has to be there: by this the format is told from others
	unit  Unit             // of durations; Auto: each line shows it
}

// layouts are those of the formats.
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
	// Its fields have places. These are names in what follows, as in rt=0.012.
	Common: {keys: [fields][]string{fieldTook: {"rt", "request_time", "duration"}}},
}

// key names a field in a line. Of two keys for a field, the one of the lower rank counts.
type key struct {
	text  string
	field field
	rank  uint8
}

// keys are those to look for, by their length: most of what stands in a line is none of them.
type keys [][]key

// keysOf are the keys of a format, and those that the command line names.
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

// have tells whether a text is one of the keys.
func (k keys) have(text []byte) bool {
	return len(text) < len(k) && slices.ContainsFunc(k[len(text)], func(k key) bool { return k.text == string(text) })
}

// detector finds out the format of lines. Not safe for concurrent use.
type detector []*parser

func newDetector() detector {
	var d detector
	for _, f := range Formats {
		d = append(d, newParser(&reading{format: f}))
	}
	return d
}

// formatOf is the format that has a line as that of a request; empty: none has.
func (d detector) formatOf(line []byte) Format {
	for _, p := range d {
		if p.gather(line) == nil && p.fits() {
			return p.format
		}
	}
	return ""
}

// fits tells whether what was gathered is a request.
func (p *parser) fits() bool {
	for _, one := range p.layout.needs {
		if !slices.ContainsFunc(one, func(f field) bool { return p.got[f] != nil }) {
			return false
		}
	}
	return p.layout.msg == "" || string(p.got[fieldMsg]) == p.layout.msg
}
