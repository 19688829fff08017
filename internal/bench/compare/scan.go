package compare

import (
	"bytes"
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
)

// record is a request from a worker for the table. Its texts are in the batch.
type record struct {
	ns              int64
	route, routeEnd uint32
	poolEnd         uint32 // the end of its pool, which follows the route
	class           class
}

// batch is the result of a worker for a chunk. It is reused, with its chunk's buffer.
type batch struct {
	buffer    []byte
	records   []record
	names     []byte
	lines     int
	other     int // lines that are not about a request
	outside   int // lines outside the window of time
	malformed map[string]int
	examples  []Malformed
	steps     steps
	first     time.Time
	last      time.Time
	when      []byte
}

// job is a chunk for a worker. out receives its batch.
type job struct {
	chunk chunk
	batch *batch
	out   chan *batch
}

// scan reads a log with several workers, and calls add for their batches in the log's order. add must not keep the
// batch.
func scan(ctx context.Context, s *source, r *reading, workers int, add func(*batch) error) error {
	group, ctx := errgroup.WithContext(ctx)
	free := make(chan *batch, 2*workers+3) // the maximum number of megabytes in use
	for range cap(free) {
		free <- &batch{buffer: make([]byte, maxLine)}
	}
	jobs, order := make(chan *job, cap(free)), make(chan *job, cap(free))
	group.Go(func() error {
		defer close(jobs)
		defer close(order)
		return feed(ctx, s, free, jobs, order)
	})
	for range workers {
		group.Go(func() error {
			p := newParser(r)
			for j := range jobs {
				p.read(j.chunk, j.batch)
				j.out <- j.batch
			}
			return nil
		})
	}
	group.Go(func() error {
		for j := range order {
			b := <-j.out
			if err := add(b); err != nil {
				return err
			}
			free <- b
		}
		return nil
	})
	return group.Wait()
}

// feed splits the log into jobs.
func feed(ctx context.Context, s *source, free <-chan *batch, jobs, order chan<- *job) error {
	taken := []*batch{}
	fresh := func() []byte {
		select {
		case b := <-free:
			taken = append(taken, b)
			return b.buffer
		case <-ctx.Done():
			taken = append(taken, &batch{})
			return make([]byte, maxLine) // chunks detects the end of ctx
		}
	}
	return s.chunks(ctx, fresh, func(c chunk) error {
		j := &job{chunk: c, batch: taken[0], out: make(chan *batch, 1)}
		taken = taken[1:]
		jobs <- j // buffered: never blocks
		order <- j
		return nil
	})
}

// Malformed is a line that could not be parsed.
type Malformed struct {
	Line   int    `json:"line"` // in the file, from 1
	File   string `json:"file"`
	Reason string `json:"reason"`
	Text   string `json:"text"` // its beginning, without control characters
}

const (
	maxExamples  = 3
	exampleBytes = 120
)

// reset empties a batch.
func (b *batch) reset() {
	*b = batch{buffer: b.buffer, records: b.records[:0], names: b.names[:0], when: b.when[:0]}
}

// read parses a chunk into a batch.
func (p *parser) read(c chunk, b *batch) {
	b.reset()
	for len(c.text) > 0 {
		line, rest, more := bytes.Cut(c.text, []byte("\n"))
		c.text = rest
		b.lines++
		if !more && c.tooLong {
			b.bad(line, errLine)
			break
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		switch err := p.record(line, b); err {
		case nil:
		case errOther: //nolint:errorlint // these errors are never wrapped
			b.other++
		case errOutside: //nolint:errorlint // likewise
			b.outside++
		default:
			b.bad(line, err)
		}
	}
	if t, err := parseTime(b.when); err == nil && len(b.records) > 0 {
		b.span(t)
	}
}

var (
	errLine = errors.New("line longer than 1 MiB")
	errPool = errors.New("value of --split longer than 1 KiB")
)

// maxPool is the maximum length of a value that names the side. It is stored completely, because two values may differ
// at the end.
const maxPool = 1 << 10

func (p *parser) record(line []byte, b *batch) error {
	if err := p.parse(line); err != nil {
		return err
	}
	pool := p.got[fieldPool]
	if len(pool) > maxPool {
		return errPool
	}
	from := len(b.names)
	names, err := p.appendName(b.names)
	if err != nil {
		return err
	}
	r := record{ns: p.ns, class: p.class, route: uint32(from), routeEnd: uint32(len(names))}
	b.names = append(names, pool...)
	r.poolEnd = uint32(len(b.names))
	b.records = append(b.records, r)
	b.steps.add(p.ns, p.step)
	b.when = append(b.when[:0], p.got[fieldTime]...)
	if len(b.records) == 1 { // the times of the first and the last line are parsed
		if t, err := parseTime(p.got[fieldTime]); err == nil {
			b.span(t)
		}
	}
	return nil
}

// span records the time of a line. The lines of a chunk are roughly in order.
func (b *batch) span(t time.Time) {
	if b.first.IsZero() || t.Before(b.first) {
		b.first = t
	}
	if t.After(b.last) {
		b.last = t
	}
}

func (b *batch) bad(line []byte, err error) {
	if b.malformed == nil {
		b.malformed = map[string]int{}
	}
	b.malformed[err.Error()]++
	if len(b.examples) < maxExamples {
		b.examples = append(b.examples, Malformed{Line: b.lines, Reason: err.Error(),
			Text: printable(line[:min(len(line), exampleBytes)])})
	}
}
