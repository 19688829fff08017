// Package compare compares the latencies of two access logs, or of two pools in one, route by route.
//
// It sorts requests into routes (route.go). For each route it has the number of requests and the 50th, 95th and 99th
// percentiles of both sides, and a confidence interval of each change (stats.go). Memory does not grow with the log.
// The durations of a route are counted in buckets that are at most 0.8 % wide, and the number of routes is limited.
package compare

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/packhorse-git/packhorse/internal/operations/accesslog"
)

// Options describe a comparison.
type Options struct {
	A, B  []string // files, patterns, or Stdin; B is empty if Split is set
	Split string   // the field of A's lines that names the side

	ByOperation  bool // instead of by path
	Patterns     []Pattern
	Duration     string        // the field of the duration; empty: that of the format
	Unit         time.Duration // of durations; 0: that of the field
	Since, Until time.Time     // zero: all
	Failures     bool          // include failed, refused and cancelled requests
	Rows         int           // routes with a separate row

	Stdin io.Reader
}

// Stdin is the name of standard input.
const Stdin = "-"

const (
	maxRoutes = 512 // further ones are counted in otherRoute
	maxPool   = 1 << 10
	// otherRoute is the route of requests without a row of their own. They are not comparable.
	otherRoute = "other"
	confidence = 0.95 // of each interval
)

// Outcomes are numbers of requests by outcome.
type Outcomes struct {
	Requests int `json:"requests"`
	Compared int `json:"compared"` // the sample
	Answered int `json:"answered"` // below 400
	Refused  int `json:"refused"`  // 4xx
	Failed   int `json:"failed"`   // 5xx and 429
	Gone     int `json:"gone"`     // the client disconnected
}

// add counts a request.
func (o *Outcomes) add(e *accesslog.Entry) (isAnswered bool) {
	o.Requests++
	result := e.Fields["result"]
	switch {
	case result == "cancelled" || e.Status == 499:
		o.Gone++
	case e.Status >= 500 || e.Status == 429:
		o.Failed++
	case e.Status >= 400:
		o.Refused++
	case e.Status > 0 || result == "ok":
		o.Answered++
		return true
	case slices.Contains([]string{"internal", "unavailable", "exhausted", "corrupt", "deadline"}, result):
		o.Failed++ // over SSH there is no status
	default:
		o.Refused++
	}
	return false
}

// side is one side of a route.
type side struct {
	Outcomes
	times sketch
}

// route has the requests of a route, by side.
type route struct {
	name  string
	sides [2]side
}

// table collects the requests of both sides.
type table struct {
	*Options
	names  [2]string
	routes map[string]*route
	other  route
	inputs []Input
	input  *Input // the current one
}

// Run reads the logs and compares them.
func Run(ctx context.Context, o Options) (*Report, error) {
	t := &table{Options: &o, routes: map[string]*route{}, other: route{name: otherRoute}, inputs: make([]Input, 0, 2)}
	for i, patterns := range [][]string{o.A, o.B} {
		if i == 1 && o.Split != "" {
			break
		}
		if o.Split == "" {
			t.names[i] = strings.Join(patterns, " ")
		}
		t.inputs = append(t.inputs, Input{Malformed: map[string]int{}})
		t.input = &t.inputs[i]
		var err error
		if t.input.Files, err = expand(patterns); err != nil {
			return nil, err
		}
		for _, name := range t.input.Files {
			if err := t.read(ctx, name, i); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if err := t.enough(); err != nil {
		return nil, err
	}
	return t.report(), nil
}

// expand returns the files of names, which may be patterns such as access.log*.
func expand(names []string) (files []string, err error) {
	for _, name := range names {
		found, err := filepath.Glob(name)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", name, err)
		}
		if len(found) == 0 {
			found = []string{name} // its error names it
		}
		files = append(files, found...)
	}
	return files, nil
}

// read reads a file of a side.
func (t *table) read(ctx context.Context, name string, side int) error {
	log := t.Stdin
	if name != Stdin {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer file.Close()
		log = file
	}
	packed := bufio.NewReaderSize(log, 64<<10)
	log = packed
	if magic, _ := packed.Peek(4); bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		unpacked, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return err
		}
		defer unpacked.Close()
		log = unpacked
	}
	return accesslog.Lines(ctx, log, func(line []byte) { t.line(line, side) })
}

var (
	errLine    = errors.New("a line of more than 1 MiB")
	errPool    = errors.New("value of --split longer than 1 KiB")
	errTarget  = errors.New("no path")
	errNoTime  = errors.New("no time")
	errOutside = errors.New("outside the window of time")
)

// line counts a line.
func (t *table) line(line []byte, side int) {
	t.input.Lines++
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	switch err := t.request(line, side); {
	case errors.Is(err, accesslog.ErrOther):
		t.input.Other++
	case errors.Is(err, errOutside):
		t.input.Outside++
	case err != nil:
		t.input.Malformed[err.Error()]++
		if t.input.Example == "" {
			t.input.Example = printable(fmt.Sprintf("line %d, %v: %s", t.input.Lines, err, line[:min(len(line), 120)]))
		}
	}
}

func (t *table) request(line []byte, side int) error {
	if len(line) > accesslog.MaxLine {
		return errLine
	}
	e, err := accesslog.Parse(line)
	if err != nil {
		return err
	}
	if e.Status == 101 { // the peers choose the duration of an upgraded connection
		return accesslog.ErrOther
	}
	if !t.Since.IsZero() || !t.Until.IsZero() {
		switch {
		case e.Time.IsZero():
			return errNoTime
		case e.Time.Before(t.Since) || !t.Until.IsZero() && !e.Time.Before(t.Until):
			return errOutside
		}
	}
	took, err := t.took(&e)
	if err != nil {
		return err
	}
	if t.Split != "" {
		pool := e.Fields[t.Split]
		if len(pool) > maxPool {
			return errPool
		}
		if side = t.sideOf(pool); side < 0 {
			t.input.Unsplit++
			return nil
		}
	}
	name := routeOf(&e, t.ByOperation, t.Patterns)
	if name == "" {
		return errTarget
	}
	r := t.routes[name]
	switch {
	case r != nil:
	case len(t.routes) == maxRoutes || name == otherRoute:
		r = &t.other
	default:
		r = &route{name: name}
		t.routes[name] = r
	}
	s := &r.sides[side]
	if s.add(&e) || t.Failures {
		s.Compared++
		s.times.add(took)
	}
	if in := t.input; !e.Time.IsZero() {
		if in.First.IsZero() || e.Time.Before(in.First) {
			in.First = e.Time
		}
		if e.Time.After(in.Last) {
			in.Last = e.Time
		}
	}
	return nil
}

// took returns the duration of a request.
func (t *table) took(e *accesslog.Entry) (time.Duration, error) {
	text, unit := e.Duration, e.Unit
	if t.Duration != "" {
		text, unit = e.Fields[t.Duration], time.Second
		for suffix, u := range map[string]time.Duration{"_ms": time.Millisecond, "_us": time.Microsecond,
			"_ns": time.Nanosecond} {
			if strings.HasSuffix(t.Duration, suffix) {
				unit = u
			}
		}
	}
	return accesslog.ParseDuration(text, cmp.Or(t.Unit, unit))
}

// sideOf returns the side of a pool, or -1.
func (t *table) sideOf(pool string) int {
	if pool != "" && !slices.Contains(t.names[:], pool) {
		if i := slices.Index(t.names[:], ""); i >= 0 {
			t.names[i] = pool
		}
	}
	if pool == "" {
		return -1
	}
	return slices.Index(t.names[:], pool)
}

// enough returns an error if there is nothing to compare.
func (t *table) enough() error {
	for i := range t.names {
		n := t.other.sides[i].Compared
		for _, r := range t.routes {
			n += r.sides[i].Compared
		}
		if n > 0 {
			continue
		}
		in := t.inputs[min(i, len(t.inputs)-1)]
		text := fmt.Sprintf("%s has no request to compare", printable(cmp.Or(t.names[i], strings.Join(in.Files, " "))))
		if t.Split != "" {
			text = fmt.Sprintf("no two values of the field %s have requests: %d requests are on neither side", t.Split,
				in.Unsplit)
		}
		text += fmt.Sprintf(": %d lines, %d about something else, %d outside the window of time", in.Lines, in.Other,
			in.Outside)
		for _, reason := range slices.Sorted(maps.Keys(in.Malformed)) {
			text += fmt.Sprintf("\n%d malformed lines: %s", in.Malformed[reason], reason)
		}
		if in.Example != "" {
			text += "\n" + in.Example
		}
		return errors.New(text)
	}
	return nil
}

// report compares the sides.
func (t *table) report() *Report {
	if t.Split != "" && t.names[0] > t.names[1] {
		t.names[0], t.names[1] = t.names[1], t.names[0]
		t.other.swap()
		for _, r := range t.routes {
			r.swap()
		}
	}
	r := &Report{By: "path", Confidence: confidence, Inputs: t.inputs, Rows: []Row{}, Notes: []string{}}
	if t.ByOperation {
		r.By = "operation"
	}
	routes := slices.SortedFunc(maps.Values(t.routes), func(a, b *route) int {
		return cmp.Or(cmp.Compare(b.requests(), a.requests()), cmp.Compare(a.name, b.name))
	})
	for i, one := range routes {
		if i >= t.Rows {
			t.other.merge(one)
			continue
		}
		r.Rows = append(r.Rows, newRow(one))
	}
	if t.other.requests() > 0 {
		r.Rows = append(r.Rows, newRow(&t.other))
	}
	for i := range r.Sides {
		r.Sides[i].Name = printable(t.names[i])
		for _, row := range r.Rows {
			r.Sides[i].Outcomes.join(row.side(i))
		}
	}
	if t.input.Unsplit > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d requests are on neither side: their %s is another one, or missing.",
			t.input.Unsplit, printable(t.Split)))
	}
	a, b := r.Sides[0], r.Sides[1]
	if x, y := a.failedShare(), b.failedShare(); max(x, y) > 0.002 && max(x, y) > 1.5*min(x, y) {
		r.Notes = append(r.Notes, fmt.Sprintf("A failed %.2f %% of its requests, B %.2f %%: latencies are those of answered "+
			"requests, and a server that fails slow requests looks fast.", 100*x, 100*y))
	}
	if t.Split == "" && (t.inputs[0].Last.Before(t.inputs[1].First) || t.inputs[1].Last.Before(t.inputs[0].First)) {
		r.Notes = append(r.Notes, "The logs cover different times: other conditions may also have changed.")
	}
	return r
}

func (r *route) requests() int { return r.sides[0].Requests + r.sides[1].Requests }

func (r *route) swap() { r.sides[0], r.sides[1] = r.sides[1], r.sides[0] }

func (r *route) merge(o *route) {
	for i := range r.sides {
		r.sides[i].join(o.sides[i].Outcomes)
		r.sides[i].times.merge(&o.sides[i].times)
	}
}

func (o *Outcomes) join(more Outcomes) {
	o.Requests += more.Requests
	o.Compared += more.Compared
	o.Answered += more.Answered
	o.Refused += more.Refused
	o.Failed += more.Failed
	o.Gone += more.Gone
}

func (o *Outcomes) failedShare() float64 {
	return float64(o.Failed+o.Gone) / float64(max(o.Requests, 1))
}

// Report is the comparison.
type Report struct {
	Sides      [2]Side  `json:"sides"`
	Inputs     []Input  `json:"inputs"` // of A and of B, or of the split log
	By         string   `json:"by"`
	Confidence float64  `json:"confidence"` // of each interval
	Rows       []Row    `json:"rows"`       // routes by traffic; the last one may be "other"
	Notes      []string `json:"notes"`
}

// Side is A or B.
type Side struct {
	Name string `json:"name"`
	Outcomes
}

// Input is a log.
type Input struct {
	Files     []string       `json:"files"`
	Lines     int            `json:"lines"`
	Other     int            `json:"other_lines"`   // not about a request
	Outside   int            `json:"outside_lines"` // outside the window of time
	Unsplit   int            `json:"unsplit_lines"` // without the field of --split, or of a third side
	Malformed map[string]int `json:"malformed"`     // by reason
	Example   string         `json:"example,omitempty"`
	First     time.Time      `json:"first,omitzero"`
	Last      time.Time      `json:"last,omitzero"`
}

// Row is the comparison of a route.
type Row struct {
	Route string   `json:"route"`
	A     Outcomes `json:"a"`
	B     Outcomes `json:"b"`
	Cells []Cell   `json:"cells"`
}

func (r *Row) side(i int) Outcomes {
	if i == 0 {
		return r.A
	}
	return r.B
}

// Cell is the comparison of a percentile of a route, in milliseconds. Unknown values are null.
type Cell struct {
	Of                 string      `json:"of"`
	A                  *float64    `json:"a_ms"`
	B                  *float64    `json:"b_ms"`
	Ratio              *float64    `json:"ratio"` // B/A
	RatioInterval      *[2]float64 `json:"ratio_interval"`
	DifferenceInterval *[2]float64 `json:"difference_interval"` // of B-A
	Needs              int         `json:"needs"`               // requests on each side for an interval
}
