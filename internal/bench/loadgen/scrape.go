package loadgen

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ServerCounters are counters from the metrics of a Packhorse server.
type ServerCounters struct {
	Alloc   float64 // bytes allocated on the heap since the start
	Written float64 // bytes written into the pack cache
	Served  float64 // bytes sent to clients
	Gc      float64 // CPU seconds of the garbage collector, as of its last run

	Kernel, User float64 // bytes by the path of the copy

	Hit, Miss, Follow float64 // requests to the pack cache
	PackRuns          float64 // git pack-objects processes
	OtherRuns         float64 // other git processes
	PackCPU, OtherCPU float64 // CPU seconds of those that have ended

	NativePacks             float64 // packs made in process
	PackSelect, PackWrite   float64 // seconds of their two stages
	ReusedDisk, ReusedCache float64 // bytes of their entries, copied
	Encoded                 float64 // bytes of their entries, compressed again
	// Fallbacks are the packs that git made because the server could not make them in process, by reason.
	Fallbacks map[string]*float64

	Searches bool // it keeps a search index
	// Numbers of repositories: with an index or without need of one, waiting for their first index, and failed.
	Indexed, Unindexed, Failed float64
}

// defaultOps is the default URL of the metrics of a Packhorse server on this machine.
const defaultOps = "http://127.0.0.1:9090/metrics"

// Scraper reads a server's metrics.
type Scraper struct {
	URL    string // empty: no metrics
	Wanted bool   // set by a flag: failing to read the metrics is an error
}

func NewScraper(t *Target, ops string) *Scraper {
	switch {
	case ops != "":
		if !strings.Contains(ops, "://") {
			ops = "http://" + ops
		}
		if !strings.HasSuffix(ops, "/metrics") {
			ops = strings.TrimSuffix(ops, "/") + "/metrics"
		}
		return &Scraper{URL: ops, Wanted: true}
	case t.Loopback():
		return &Scraper{URL: defaultOps}
	}
	return &Scraper{}
}

// Read returns nil if no metrics of a Packhorse server are available.
func (s *Scraper) Read(ctx context.Context) (*ServerCounters, error) {
	if s.URL == "" {
		return nil, nil
	}
	c, err := s.get(ctx)
	if err != nil && s.Wanted {
		return nil, fmt.Errorf("reading the server's metrics: %w", err)
	}
	return c, nil
}

func (s *Scraper) get(ctx context.Context) (*ServerCounters, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp, err := GetOps(ctx, s.URL)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %d", resp.StatusCode)
	}
	return parseMetrics(io.LimitReader(resp.Body, 64<<20))
}

// parseMetrics reads the subset of the Prometheus text format that servers use. It adds up the samples of a metric.
func parseMetrics(r io.Reader) (*ServerCounters, error) {
	var c ServerCounters
	ours := false
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		name := line[:len(line)-len(strings.TrimLeft(line, nameChars))]
		ours = ours || strings.HasPrefix(name, "packhorse_")
		to := c.of(name, line)
		if to == nil {
			continue
		}
		rest := line[len(name):]
		if i := strings.LastIndexByte(rest, '}'); i >= 0 {
			rest = rest[i+1:]
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		v, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return nil, fmt.Errorf("bad metric %s", name)
		}
		*to += v
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if !ours {
		return nil, fmt.Errorf("these are not the metrics of a Packhorse server")
	}
	return &c, nil
}

// of returns the counter for a metric's line, or nil for other metrics.
func (c *ServerCounters) of(name, line string) *float64 {
	has := func(label string) bool { return strings.Contains(line, label) }
	switch name {
	case "go_memstats_alloc_bytes_total":
		return &c.Alloc
	case "packhorse_cache_written_bytes_total":
		return &c.Written
	case "packhorse_served_bytes_total":
		return &c.Served
	case "go_cpu_classes_gc_total_cpu_seconds_total":
		return &c.Gc
	case "packhorse_copy_bytes_total":
		if has(`path="kernel"`) {
			return &c.Kernel
		}
		return &c.User
	case "packhorse_cache_requests_total":
		switch {
		case has(`result="hit"`):
			return &c.Hit
		case has(`result="miss"`):
			return &c.Miss
		case has(`result="follow"`):
			return &c.Follow
		}
	case "packhorse_git_commands_total":
		if has(packObjects) {
			return &c.PackRuns
		}
		return &c.OtherRuns
	case "packhorse_git_cpu_seconds_total":
		if has(packObjects) {
			return &c.PackCPU
		}
		return &c.OtherCPU
	case "packhorse_packs_made_total":
		if has(`source="native"`) {
			return &c.NativePacks
		}
	case "packhorse_pack_select_seconds_sum":
		return &c.PackSelect
	case "packhorse_pack_write_seconds_sum":
		return &c.PackWrite
	case "packhorse_pack_bytes_total":
		switch {
		case has(`representation="reused_disk"`):
			return &c.ReusedDisk
		case has(`representation="reused_cache"`):
			return &c.ReusedCache
		}
		return &c.Encoded
	case "packhorse_pack_fallbacks_total":
		_, rest, _ := strings.Cut(line, `reason="`)
		reason, _, _ := strings.Cut(rest, `"`)
		if c.Fallbacks == nil {
			c.Fallbacks = map[string]*float64{}
		}
		if c.Fallbacks[reason] == nil {
			c.Fallbacks[reason] = new(float64)
		}
		return c.Fallbacks[reason]
	case "packhorse_search_repositories":
		switch {
		case has(`state="waiting"`):
			return &c.Unindexed
		case has(`state="failed"`): // they also wait, or have an old index
			return &c.Failed
		}
		c.Searches = true
		return &c.Indexed
	}
	return nil
}

const packObjects = `subcommand="pack-objects"`

const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:"

// Since returns the increase of the counters.
func (c *ServerCounters) Since(before *ServerCounters) ServerCounters {
	return ServerCounters{Alloc: c.Alloc - before.Alloc, Gc: c.Gc - before.Gc, Kernel: c.Kernel - before.Kernel,
		User: c.User - before.User}
}

// GetOps sends a GET request to a private listener, on a separate connection.
func GetOps(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	return transport.RoundTrip(req)
}

// ReadMetric returns the sum of the samples of a metric that have the label, given as name="value". ops is the URL of
// the server's private listener.
func ReadMetric(ctx context.Context, ops, name, label string) (sum float64, err error) {
	response, err := GetOps(ctx, ops+"/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		rest, isMetric := strings.CutPrefix(lines.Text(), name)
		if !isMetric || strings.IndexAny(rest, "{ ") != 0 || !strings.Contains(rest, label) {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum += v
	}
	return sum, lines.Err()
}
