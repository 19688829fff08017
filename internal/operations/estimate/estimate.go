// Package estimate reads access logs of Git hosts and estimates what a cache of packs would have saved.
//
// A line counts if it is a successful response to git-upload-pack. The format of each line is detected (line.go), so
// one run reads logs of several programs. Within a window of time all fetches of a repository count as one request to
// the origin, with the size of the largest response. Memory depends on the number of repositories, which is limited,
// and not on the size of the log.
//
// Logs are untrusted: clients choose paths, and lines may have any length and content.
package estimate

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

const (
	maxLine         = 1 << 20 // bytes; longer lines are not read
	maxRepositories = 100_000 // further ones are counted together
	// OtherRepositories is the path of the repositories above the limit.
	OtherRepositories = "(other repositories)"
)

// Assumptions are the numbers that a log does not have. See docs/reference/benchmarks.md.
type Assumptions struct {
	Window      time.Duration `json:"-"`             // in which fetches of a repository are one request to the origin
	CPUPerGB    float64       `json:"cpu_per_gb"`    // seconds of CPU time of the origin for 10^9 bytes; 0: unknown
	CPUPerFetch float64       `json:"cpu_per_fetch"` // seconds, for responses whose size is not logged
}

// DefaultAssumptions returns those of the benchmarks: git makes the packs of full clones from a bitmap.
func DefaultAssumptions() Assumptions {
	return Assumptions{Window: 10 * time.Minute, CPUPerFetch: 0.5}
}

// Totals are requests, of one repository or of all.
type Totals struct {
	Fetches       int64   `json:"fetches"`        // responses to git-upload-pack, without ls-refs
	Distinct      int64   `json:"distinct"`       // pairs of a repository and a window
	Bytes         int64   `json:"bytes"`          // of the responses
	DistinctBytes int64   `json:"distinct_bytes"` // of the largest response of each pair
	Unsized       int64   `json:"unsized"`        // responses whose size is not logged
	CPU           float64 `json:"cpu_seconds"`    // of the origin
	SavedCPU      float64 `json:"saved_cpu_seconds"`
}

// SavedBytes returns the bytes that the origin need not have sent.
func (t *Totals) SavedBytes() int64 { return t.Bytes - t.DistinctBytes }

// Repository is one row of the report.
type Repository struct {
	Path string `json:"path"` // without ".git"
	Totals
}

// Report is the result for all logs.
type Report struct {
	Lines         int64         `json:"lines"`
	Unreadable    int64         `json:"unreadable"` // lines about git-upload-pack in no known format, or too long
	From          time.Time     `json:"from"`
	To            time.Time     `json:"to"`
	WindowSeconds float64       `json:"window_seconds"`
	Advertised    int64         `json:"advertisements"` // GET info/refs
	Total         Totals        `json:"total"`
	Repositories  []*Repository `json:"repositories"` // by saved CPU time
	Assumptions   Assumptions   `json:"assumptions"`
}

// history is what the reader knows about a repository.
type history struct {
	advertised, posts   int64
	window              int64 // number of the current window
	largest             int64 // response of the current window
	distinct, unsized   int64
	bytes, distinctSize int64
}

// Reader collects requests of logs. It is not safe for concurrent use.
type Reader struct {
	assume Assumptions
	report Report
	seen   map[string]*history
}

// NewReader returns a reader without requests.
func NewReader(a Assumptions) *Reader {
	return &Reader{assume: a, report: Report{Assumptions: a, WindowSeconds: a.Window.Seconds()},
		seen: map[string]*history{}}
}

// Read reads a log, which may be compressed with gzip.
func (r *Reader) Read(ctx context.Context, log io.Reader) error {
	text := bufio.NewReaderSize(log, 256<<10)
	if magic, _ := text.Peek(2); string(magic) == "\x1f\x8b" {
		unzipped, err := gzip.NewReader(text)
		if err != nil {
			return err
		}
		text = bufio.NewReaderSize(unzipped, 256<<10)
	}
	var long []byte // the beginning of a line that is longer than the buffer
	for {
		part, err := text.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			if long = append(long, part[:min(len(part), maxLine+1-len(long))]...); ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		line := part
		if len(long) > 0 {
			long = append(long, part...)
			line = long
		}
		if len(line) > 0 {
			r.line(line)
		}
		if long = long[:0]; err != nil {
			return nil
		}
		if r.report.Lines%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// service is in each line that counts.
var service = []byte("git-upload-pack")

func (r *Reader) line(line []byte) {
	r.report.Lines++
	if !bytes.Contains(line, service) {
		return
	}
	if len(line) > maxLine {
		r.report.Unreadable++
		return
	}
	q, ok := parse(bytes.TrimSpace(line))
	if !ok {
		r.report.Unreadable++
		return
	}
	path, kind := q.repository()
	if kind == other || q.status != 200 {
		return
	}
	r.add(path, kind, q)
}

// add adds a successful request.
func (r *Reader) add(path string, kind kind, q request) {
	h := r.seen[path]
	if h == nil {
		if len(r.seen) >= maxRepositories {
			path = OtherRepositories
			h = r.seen[path]
		}
		if h == nil {
			h = &history{window: math.MinInt64}
			r.seen[path] = h
		}
	}
	if r.report.From.IsZero() || q.time.Before(r.report.From) {
		r.report.From = q.time
	}
	if q.time.After(r.report.To) {
		r.report.To = q.time
	}
	if kind == advertisement {
		h.advertised++
		return
	}
	h.posts++
	// Requests are logged when they end, so one of the previous window may come late.
	if w := q.time.UnixNano() / int64(r.assume.Window); w > h.window || w < h.window-1 {
		h.window, h.largest = w, 0
		h.distinct++
	}
	if q.bytes < 0 {
		h.unsized++
		return
	}
	h.bytes = sum(h.bytes, q.bytes)
	if more := q.bytes - h.largest; more > 0 {
		h.largest = q.bytes
		h.distinctSize = sum(h.distinctSize, more)
	}
}

// sum adds sizes. The result stays at the maximum if the numbers of a log are too large.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Report returns the result of the logs that were read. The most expensive repositories come first, at most rows.
func (r *Reader) Report(rows int) *Report {
	report := r.report
	for path, h := range r.seen {
		t := h.totals(r.assume)
		all := &report.Total
		report.Advertised += h.advertised
		all.Fetches += t.Fetches
		all.Distinct += t.Distinct
		all.Unsized += t.Unsized
		all.Bytes, all.DistinctBytes = sum(all.Bytes, t.Bytes), sum(all.DistinctBytes, t.DistinctBytes)
		all.CPU += t.CPU
		all.SavedCPU += t.SavedCPU
		if t.Fetches > 0 {
			report.Repositories = append(report.Repositories, &Repository{path, t})
		}
	}
	slices.SortFunc(report.Repositories, func(a, b *Repository) int {
		return cmp.Or(cmp.Compare(b.SavedCPU, a.SavedCPU), cmp.Compare(b.Fetches, a.Fetches), cmp.Compare(a.Path, b.Path))
	})
	report.Repositories = report.Repositories[:min(rows, len(report.Repositories))]
	return &report
}

// totals returns the requests of a repository. In protocol 2 each client posts ls-refs after the advertisement, so more
// posts than advertisements include one ls-refs for each of these.
func (h *history) totals(a Assumptions) Totals {
	t := Totals{Fetches: h.posts, Distinct: h.distinct, Bytes: h.bytes, DistinctBytes: h.distinctSize, Unsized: h.unsized}
	if h.posts > h.advertised {
		t.Fetches -= h.advertised
	}
	t.Distinct = min(t.Distinct, t.Fetches)
	const gb = 1e9
	t.CPU = float64(t.Bytes) / gb * a.CPUPerGB
	t.SavedCPU = float64(t.SavedBytes()) / gb * a.CPUPerGB
	if h.posts > 0 {
		unsized := float64(h.unsized) / float64(h.posts) // the part of fetches without a size
		t.CPU += float64(t.Fetches) * unsized * a.CPUPerFetch
		t.SavedCPU += float64(t.Fetches-t.Distinct) * unsized * a.CPUPerFetch
	}
	return t
}

// Check returns an error if an assumption is out of range.
func (a Assumptions) Check() error {
	if a.Window < time.Second {
		return fmt.Errorf("window %v: want at least 1s", a.Window)
	}
	for _, v := range []float64{a.CPUPerGB, a.CPUPerFetch} {
		if !(v >= 0 && v <= 1e6) {
			return fmt.Errorf("CPU time %v: want seconds from 0 to 1000000", v)
		}
	}
	return nil
}
