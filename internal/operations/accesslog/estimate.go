package accesslog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
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

// Estimator estimates from logs what a cache of packs would have saved. It is not safe for concurrent use.
//
// A line counts if it is a successful response to git-upload-pack. Within a window of time all fetches of a repository
// count as one request to the origin, with the size of the largest response. Memory depends on the number of
// repositories, which is limited, and not on the size of the log.
type Estimator struct {
	assume Assumptions
	report Report
	seen   map[string]*history
}

// NewEstimator returns an Estimator without requests.
func NewEstimator(a Assumptions) *Estimator {
	return &Estimator{assume: a, report: Report{Assumptions: a, WindowSeconds: a.Window.Seconds()},
		seen: map[string]*history{}}
}

// Read reads a log, which may be compressed with gzip.
func (r *Estimator) Read(ctx context.Context, log io.Reader) error {
	return Lines(ctx, log, r.line)
}

// service is in each line that counts.
var service = []byte("git-upload-pack")

func (r *Estimator) line(line []byte) {
	r.report.Lines++
	if !bytes.Contains(line, service) {
		return
	}
	if len(line) > MaxLine {
		r.report.Unreadable++
		return
	}
	e, err := Parse(line)
	if errors.Is(err, ErrOther) {
		return
	}
	if err != nil || e.Time.IsZero() || e.Target == "" {
		r.report.Unreadable++
		return
	}
	path, kind := repository(e.Method, e.Target)
	if kind == other || e.Status != http.StatusOK {
		return
	}
	r.add(path, kind, e)
}

const maxPath = 512 // bytes of a repository's path; longer ones are cut

// kind is the kind of a request.
type kind uint8

const (
	other kind = iota
	advertisement
	post // ls-refs or fetch
)

// repository returns the path of the repository of a request without ".git", and the kind of the request.
func repository(method, target string) (path string, is kind) {
	target, query, _ := strings.Cut(target, "?")
	if _, rest, ok := strings.Cut(target, "://"); ok {
		if _, rest, ok = strings.Cut(rest, "/"); ok {
			target = rest
		}
	}
	path, suffix, is := target, "/git-upload-pack", post
	switch {
	case method == http.MethodPost:
	case method == http.MethodGet && strings.Contains(query, "service=git-upload-pack"):
		suffix, is = "/info/refs", advertisement
	default:
		return "", other
	}
	path, ok := strings.CutSuffix(target, suffix)
	if !ok {
		return "", other
	}
	path = strings.TrimSuffix(strings.Trim(path, "/"), ".git")
	return strings.ToValidUTF8(path[:min(len(path), maxPath)], "?"), is
}

// add adds a successful request.
func (r *Estimator) add(path string, kind kind, q Entry) {
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
	if r.report.From.IsZero() || q.Time.Before(r.report.From) {
		r.report.From = q.Time
	}
	if q.Time.After(r.report.To) {
		r.report.To = q.Time
	}
	if kind == advertisement {
		h.advertised++
		return
	}
	h.posts++
	// Requests are logged when they end, so one of the previous window may come late.
	if w := q.Time.UnixNano() / int64(r.assume.Window); w > h.window || w < h.window-1 {
		h.window, h.largest = w, 0
		h.distinct++
	}
	if q.Bytes < 0 {
		h.unsized++
		return
	}
	h.bytes = sum(h.bytes, q.Bytes)
	if more := q.Bytes - h.largest; more > 0 {
		h.largest = q.Bytes
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
func (r *Estimator) Report(rows int) *Report {
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
