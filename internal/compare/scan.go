package compare

import (
	"bytes"
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
)

// record is a request as the workers hand it to the table. Its texts are in the batch.
type record struct {
	ns              int64
	route, routeEnd uint32
	poolEnd         uint32 // its pool follows the route
	class           class
}

// batch is what a worker made of a chunk. It is used again, with its chunk's buffer.
type batch struct {
	buffer    []byte
	records   []record
	names     []byte
	lines     int
	other     int // about something else than a request
	outside   int // of the window of time
	malformed map[string]int
	examples  []Malformed
	steps     steps
	first     time.Time
	last      time.Time
	when      []byte
}

// job is a chunk on its way through a worker. out gets its batch.
type job struct {
	chunk chunk
	batch *batch
	out   chan *batch
}

// scan reads a log with some workers, and gives what they make of it to add, in the log's order. add may not keep the
// batch.
func scan(ctx context.Context, s *source, r *reading, workers int, add func(*batch) error) error {
	group, ctx := errgroup.WithContext(ctx)
	free := make(chan *batch, 2*workers+3) // as many megabytes are under way at most
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

// feed cuts the log into jobs.
func feed(ctx context.Context, s *source, free <-chan *batch, jobs, order chan<- *job) error {
	taken := []*batch{}
	fresh := func() []byte {
		select {
		case b := <-free:
			taken = append(taken, b)
			return b.buffer
		case <-ctx.Done():
			taken = append(taken, &batch{})
			return make([]byte, maxLine) // chunks will see that it is over
		}
	}
	return s.chunks(ctx, fresh, func(c chunk) error {
		j := &job{chunk: c, batch: taken[0], out: make(chan *batch, 1)}
		taken = taken[1:]
		jobs <- j // there is room for each batch
		order <- j
		return nil
	})
}

// Malformed is a line that could not be read.
type Malformed struct {
	Line   int    `json:"line"` // from 1; of the file
	File   string `json:"file"`
	Reason string `json:"reason"`
	Text   string `json:"text"` // its beginning, without what would move a terminal's cursor
}

const (
	maxExamples  = 3
	exampleBytes = 120
)

// reset makes a batch empty.
func (b *batch) reset() {
	*b = batch{buffer: b.buffer, records: b.records[:0], names: b.names[:0], when: b.when[:0]}
}

// read makes a batch of a chunk.
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
		case errOther: //nolint:errorlint // these are ours, as they are
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
	errLine = errors.New("a line of more than 1 MiB")
	errPool = errors.New("a value to split by of more than 1 KiB")
)

// maxPool is how long a value may be that tells the sides apart. It is kept whole: two that differ at their end are
// two.
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
	if len(b.records) == 1 { // of the first and the last one the time is read
		if t, err := parseTime(p.got[fieldTime]); err == nil {
			b.span(t)
		}
	}
	return nil
}

// span notes the time of a line. Lines of one chunk are taken to be in order, more or less.
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
