// Package compare compares the latencies of two access logs, or of two pools in one, with statistical confidence.
//
// It sorts requests into routes (route.go) and compares each route's percentiles between the sides, with the sizes of
// both samples. A difference gets a verdict only if its confidence interval excludes zero. All intervals of the table
// hold together. The effect of a change in the mix of routes is shown separately (mix.go).
//
// Memory does not grow with the log. A route's durations are a sketch (sketch.go) with a relative error of 0.8 %. The
// number of routes is limited to maxRoutes, and the rarest ones go into "other". The intervals are those of the
// bootstrap for percentiles, computed without random numbers (stats.go). They take into account that requests are slow
// together, by the differences between parts of the log.
//
// Logs are untrusted: clients choose the contents of lines, paths and numbers.
package compare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Options describe a comparison.
type Options struct {
	A, B  []string // files, patterns, or Stdin; B is empty if Split is set
	Split string   // the field of A's lines that names the side
	Pools []string // its two values; empty: those of the log

	Format       Format // empty: detected
	Operations   bool   // by operation instead of path
	Patterns     []Pattern
	Duration     string // the field of the duration; empty: that of the format
	Unit         Unit
	Since, Until time.Time // empty: all
	Failures     bool      // include failed, refused and cancelled requests
	Rows         int       // routes with a separate row
	Confidence   float64   // e.g. 0.95

	Workers  int // number of parsing goroutines
	Stdin    io.Reader
	Progress func(Progress) // called often, on one goroutine; may be nil
}

// Progress is the progress of a comparison.
type Progress struct {
	File  string
	Lines int   // of all files so far
	Read  int64 // bytes of this file, as stored
	Size  int64 // 0: unknown
}

// MaxRows is the maximum of Options.Rows.
const MaxRows = maxRoutes / 2

// Run reads the logs and compares them. Its memory does not depend on their size: some tens of megabytes.
func Run(ctx context.Context, o Options) (*Report, error) {
	include := [classes]bool{answered: true}
	if o.Failures {
		include = [classes]bool{true, true, true, true}
	}
	t := newTable(include, o.Split, o.Pools)
	logs, err := prepare(&o, t)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, l := range logs {
			l.source.Close()
		}
	}()
	exact := !slices.ContainsFunc(logs, func(l *sideLog) bool { return l.reading.format != Packhorse })
	for _, l := range logs {
		l.reading.exact = exact
		if err := l.readAll(ctx, &o, t); err != nil {
			return nil, err
		}
	}
	if err := t.enough(); err != nil {
		return nil, err
	}
	by := byPath
	if o.Operations {
		by = byOperation
	}
	return t.report(by, o.Confidence, o.Rows), nil
}

// sideLog has the files of a side. The first file is open from the start, to detect the format.
type sideLog struct {
	side    int
	files   []string
	source  *source
	reading *reading
}

func prepare(o *Options, t *table) (logs []*sideLog, err error) {
	defer func() {
		if err != nil {
			for _, l := range logs {
				l.source.Close()
			}
		}
	}()
	sides := [][]string{o.A, o.B}
	if o.Split != "" {
		sides = sides[:1]
	}
	inputs := 0
	for side, names := range sides {
		files, err := expand(names)
		if err != nil {
			return logs, err
		}
		for _, f := range files {
			if f == Stdin {
				inputs++
			}
		}
		if inputs > 1 {
			return logs, errors.New("only one log can be standard input")
		}
		s, err := openFirst(files, o.Stdin)
		if err != nil {
			return logs, err
		}
		l := &sideLog{side: side, files: files, source: s, reading: &reading{format: o.Format, operations: o.Operations,
			patterns: o.Patterns, split: o.Split,
			duration: o.Duration, unit: o.Unit, since: o.Since, until: o.Until}}
		logs = append(logs, l)
		if o.Format == "" {
			if l.reading.format, err = s.sniff(); err != nil {
				return logs, err
			}
		}
		l.reading.settle()
		t.sides[side].files, t.sides[side].format = files, l.reading.format
		if o.Split == "" {
			t.sides[side].name = strings.Join(names, " ")
		}
	}
	return logs, nil
}

// openFirst opens the first file that is not empty, or else the last one. The newest file of a rotated set may be
// empty.
func openFirst(files []string, stdin io.Reader) (*source, error) {
	for i, name := range files {
		s, err := open(name, stdin)
		if err != nil || i == len(files)-1 || !s.empty() {
			return s, err
		}
		s.Close()
	}
	return nil, errors.New("no file")
}

// readAll reads a side's files, one after the other.
func (l *sideLog) readAll(ctx context.Context, o *Options, t *table) error {
	first := slices.Index(l.files, l.source.name) // the earlier ones are empty
	for i, name := range l.files[first:] {
		if i > 0 {
			next, err := open(name, o.Stdin)
			if err != nil {
				return err
			}
			l.source = next
			if o.Format == "" {
				f, err := l.source.sniff()
				if err == nil && f != l.reading.format {
					return fmt.Errorf("%s is a log of the format %s, and %s of %s: use logs of one format for a side, or name the "+
						"format with --format", name, f, l.files[0], l.reading.format)
				}
			}
		}
		t.begin(filepath.Base(name))
		err := scan(ctx, l.source, l.reading, o.Workers, func(b *batch) error {
			if err := t.add(b, l.side); err != nil {
				return err
			}
			if o.Progress != nil {
				o.Progress(Progress{name, t.sides[0].lines + t.sides[1].lines, l.source.raw.n.Load(), l.source.size})
			}
			return nil
		})
		l.source.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// enough returns an error if there is nothing to compare.
func (t *table) enough() error {
	for i := range t.sides {
		s := &t.sides[i]
		n := uint64(0)
		for _, r := range t.routes {
			n += r.times[i].n
		}
		if n += t.other.times[i].n; n > 0 {
			continue
		}
		if t.split != "" {
			return t.noSplit(i)
		}
		why := fmt.Sprintf("%s has no request to compare: %s lines", printable([]byte(s.name)), thousands(s.lines))
		for _, more := range []struct {
			n    int
			what string
		}{{s.other, "about something else"}, {s.outside, "outside the window of time"}} {
			if more.n > 0 {
				why += fmt.Sprintf(", %s %s", thousands(more.n), more.what)
			}
		}
		return errors.New(why + describe(s))
	}
	return nil
}

func (t *table) noSplit(side int) error {
	s := &t.sides[0]
	switch {
	case t.without > 0 && t.sides[0].name == "" || t.fixed && t.foreign+t.without > 0:
		return fmt.Errorf("no request has the field of --split %s: %s have no such field, %s another value%s",
			printable([]byte(t.split)),
			thousands(t.without), thousands(t.foreign), describe(s))
	case t.sides[1].name == "":
		return fmt.Errorf("all requests have the same %s, %q: no second side to compare it with%s",
			printable([]byte(t.split)), t.sides[0].name, describe(s))
	}
	return fmt.Errorf("no request of %q was answered%s", t.sides[side].name, describe(s))
}

// describe describes the malformed lines.
func describe(s *sideData) string {
	var b strings.Builder
	for _, reason := range slices.Sorted(maps.Keys(s.malformed)) {
		fmt.Fprintf(&b, "\n%s malformed lines: %s", thousands(s.malformed[reason]), reason)
		if reason == errNoDuration.Error() {
			b.WriteString("; name its field with --duration FIELD")
		}
	}
	for _, e := range s.examples {
		fmt.Fprintf(&b, "\nline %d: %s", e.Line, e.Text)
	}
	return b.String()
}
