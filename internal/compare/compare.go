// Package compare compares the latencies of two access logs, or of two pools in one, so that what it says is so.
//
// Like is compared with like: requests are sorted into routes (route.go), and each route's percentiles stand beside
// those of the same route on the other side, with the sizes of both samples. A difference is a verdict only where its
// confidence interval excludes zero, at a level at which all intervals of the table hold together. What a change of the
// mix of routes does to the whole is shown apart (mix.go).
//
// Memory does not grow with the log: a route's durations are a sketch (sketch.go), with a relative error of 0.8 %, and
// there are maxRoutes routes at most; what is met least goes into "other". The intervals are the bootstrap's for
// percentiles, computed and not drawn (stats.go): nothing depends on a seed. They allow for requests that are slow
// together, by how far stretches of the log lie apart.
//
// Logs are hostile: their lines, paths and numbers are what clients chose.
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

// Options says what is compared, and how.
type Options struct {
	A, B  []string // files, patterns, or Stdin; B is empty if Split is not
	Split string   // the field of A's lines that tells the sides apart
	Pools []string // its two values; empty: the two that there are

	Format       Format // empty: found out
	Operations   bool   // by operation instead of path
	Patterns     []Pattern
	Duration     string // the field with the duration; empty: the format's
	Unit         Unit
	Since, Until time.Time // empty: all
	Failures     bool      // failed, refused and given up requests count, too
	Rows         int       // routes with a row of their own
	Confidence   float64   // e.g. 0.95

	Workers  int // that parse
	Stdin    io.Reader
	Progress func(Progress) // nil: none; called often, in one goroutine
}

// Progress is how far a comparison is.
type Progress struct {
	File  string
	Lines int   // of all files so far
	Read  int64 // bytes of this file, as stored
	Size  int64 // 0: not known
}

// MaxRows is the most that Options.Rows may be.
const MaxRows = maxRoutes / 2

// Run reads the logs and compares them. It takes memory that does not depend on their size: some tens of megabytes.
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

// sideLog are the files of a side. The first is open from the start, to find out the format.
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
			return logs, errors.New("standard input can be one log only")
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

// openFirst opens the first file of some that has anything in it, or else the last one: of a rotated set the newest may
// be empty.
func openFirst(files []string, stdin io.Reader) (*source, error) {
	for i, name := range files {
		s, err := open(name, stdin)
		if err != nil || i == len(files)-1 || !s.empty() {
			return s, err
		}
		s.Close()
	}
	return nil, errors.New("there is no file")
}

// readAll reads a side's files, one after the other.
func (l *sideLog) readAll(ctx context.Context, o *Options, t *table) error {
	first := slices.Index(l.files, l.source.name) // those before it are empty
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
					return fmt.Errorf("%s is a log of the format %s, and %s of %s: one side has to be alike, or --format says what "+
						"all are", name, f, l.files[0], l.reading.format)
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

// enough fails if there is nothing to compare, and says why.
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
		return fmt.Errorf("no request has what --split %s needs: %s have no such field, %s another value%s",
			printable([]byte(t.split)),
			thousands(t.without), thousands(t.foreign), describe(s))
	case t.sides[1].name == "":
		return fmt.Errorf("all requests have the same %s, %q: there is nothing to compare it with%s",
			printable([]byte(t.split)), t.sides[0].name, describe(s))
	}
	return fmt.Errorf("no request of %q was answered%s", t.sides[side].name, describe(s))
}

// describe tells what is wrong with lines that could not be read.
func describe(s *sideData) string {
	var b strings.Builder
	for _, reason := range slices.Sorted(maps.Keys(s.malformed)) {
		fmt.Fprintf(&b, "\n%s malformed lines: %s", thousands(s.malformed[reason]), reason)
		if reason == errNoDuration.Error() {
			b.WriteString("; --duration FIELD says what has it")
		}
	}
	for _, e := range s.examples {
		fmt.Fprintf(&b, "\nline %d: %s", e.Line, e.Text)
	}
	return b.String()
}
