package bench

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

// serverCounters are the counters that a Packhorse server has of itself.
type serverCounters struct {
	alloc   float64 // bytes allocated on the heap since the start
	written float64 // bytes written into the pack cache
	served  float64 // bytes sent to clients
	gc      float64 // CPU seconds of the garbage collector, as of its last run

	kernel, user float64 // bytes by the way that they were copied

	hit, miss, follow float64 // packs asked of the cache
	packRuns          float64 // git pack-objects processes

	searches                   bool    // it keeps an index
	indexed, unindexed, failed float64 // repositories that have an index, or need none; that wait for their first; whose index could not be made
}

// defaultOps is where a Packhorse server on this machine shows its metrics unless it is told otherwise.
const defaultOps = "http://127.0.0.1:9090/metrics"

// scraper reads a server's metrics.
type scraper struct {
	url    string // empty: there are none
	wanted bool   // by a flag: then it is an error if they cannot be read
}

func newScraper(t *target, ops string) *scraper {
	switch {
	case ops != "":
		if !strings.Contains(ops, "://") {
			ops = "http://" + ops
		}
		if !strings.HasSuffix(ops, "/metrics") {
			ops = strings.TrimSuffix(ops, "/") + "/metrics"
		}
		return &scraper{url: ops, wanted: true}
	case t.loopback():
		return &scraper{url: defaultOps}
	}
	return &scraper{}
}

// read returns nil where there are no metrics of a Packhorse server.
func (s *scraper) read(ctx context.Context) (*serverCounters, error) {
	if s.url == "" {
		return nil, nil
	}
	c, err := s.get(ctx)
	if err != nil && s.wanted {
		return nil, fmt.Errorf("reading the server's metrics: %w", err)
	}
	return c, nil
}

func (s *scraper) get(ctx context.Context) (*serverCounters, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %d", resp.StatusCode)
	}
	return parseMetrics(io.LimitReader(resp.Body, 64<<20))
}

// parseMetrics reads the Prometheus text format as far as it is needed: one sample a line, label values summed up.
func parseMetrics(r io.Reader) (*serverCounters, error) {
	var c serverCounters
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

// of is where the value of a metric's line is added; nil: it is of no interest.
func (c *serverCounters) of(name, line string) *float64 {
	has := func(label string) bool { return strings.Contains(line, label) }
	switch name {
	case "go_memstats_alloc_bytes_total":
		return &c.alloc
	case "packhorse_cache_written_bytes_total":
		return &c.written
	case "packhorse_served_bytes_total":
		return &c.served
	case "go_cpu_classes_gc_total_cpu_seconds_total":
		return &c.gc
	case "packhorse_copy_bytes_total":
		if has(`path="kernel"`) {
			return &c.kernel
		}
		return &c.user
	case "packhorse_cache_requests_total":
		switch {
		case has(`result="hit"`):
			return &c.hit
		case has(`result="miss"`):
			return &c.miss
		case has(`result="follow"`):
			return &c.follow
		}
	case "packhorse_git_commands_total":
		if has(`subcommand="pack-objects"`) {
			return &c.packRuns
		}
	case "packhorse_search_repositories":
		switch {
		case has(`state="waiting"`):
			return &c.unindexed
		case has(`state="failed"`): // they wait, too, or have an old one
			return &c.failed
		}
		c.searches = true
		return &c.indexed
	}
	return nil
}

const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:"
